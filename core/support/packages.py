"""The name of the distribution, and the error for a package that a feature needs and that is not installed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any

from ..errors import MissingPackageError

DISTRIBUTION = "penstock-streams"
"""The name by which penstock is installed. `penstock` on PyPI is another project, with the same import name."""
IMPORT_NAME = "penstock"


@contextmanager
def needed(feature: str, extra: str | None = None) -> Iterator[None]:
    """Raise MissingPackageError for an import of the block that fails: no package, or one of another version.

    `feature`: the user of the module, as the message's subject. `extra`: the distribution's extra that installs the
    module; None for a package that penstock requires, and that an installation without Spark leaves out. Blocks may be
    nested: the outermost names its feature and its extra.
    """
    try:
        yield
    except ImportError as error:
        if not error.name or error.name.partition(".")[0] == IMPORT_NAME:
            raise
        if isinstance(error, MissingPackageError):
            packages, lack = error.packages, error.lack
        elif part := _missing_part(error):
            packages, lack = (part,), "is not installed"
        else:
            packages, lack = (error.name.partition(".")[0],), f"is too old or too new ({error})"
        raise _missing(feature, extra, packages, lack) from error


def _missing_part(error: ImportError) -> str | None:
    """Return the package that an import lacks, None where it is there in another version.

    It may be a part of a namespace package, which other distributions bring, too: `google.protobuf`.
    """
    name = error.name or ""
    if isinstance(error, ModuleNotFoundError):
        parent = name.rpartition(".")[0]
        return name if not parent or _is_namespace(parent) else None
    match = re.match(r"cannot import name '(\w+)'", error.msg)
    return f"{name}.{match[1]}" if match and _is_namespace(name) else None


def _is_namespace(name: str) -> bool:
    spec = _spec(name)
    return spec is not None and spec.origin is None and spec.submodule_search_locations is not None


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ModuleNotFoundError:  # so is the package that it is in
        return None


def check_installed(feature: str, extra: str | None, *packages: str) -> None:
    """Raise MissingPackageError if some of `packages` are not installed, or are too old; import none.

    As `needed` does. One in a namespace package is named with it, as "google.protobuf".
    """
    if lacking := tuple(package for package in packages if _spec(package) is None):
        raise _missing(feature, extra, lacking, "is not installed" if len(lacking) == 1 else "are not installed")
    for package in packages:
        if too_old := _too_old(extra, package):
            raise _missing(feature, extra, (package,), too_old)


def installed_version(package: str) -> str:
    """Return the version of an installed package; "" if it is not installed."""
    try:
        return distribution(package).version
    except PackageNotFoundError:
        return ""


def _too_old(extra: str | None, package: str) -> str | None:
    """Return that a package has another version than the extra asks for, None if it has not or cannot be compared."""
    wanted = next((each for each in _required() if _is_of(extra, each, package)), "")
    least = re.search(r">=\s*([\d.]+)", wanted)
    if not (found := installed_version(package)) or least is None or _numbers(found) >= _numbers(least[1]):
        return None
    return f"is too old ({found}; {least[1]} or later is needed)"


def _numbers(version: str) -> list[int]:
    match = re.match(r"\d+(\.\d+)*", version)
    return [int(each) for each in re.sub(r"(\.0+)+$", "", match[0]).split(".")] if match else []


def later_version(requirements: Iterable[str]) -> str | None:
    """Return a message if an installed distribution requires a later penstock; None if none does.

    >>> later_version(["penstock-streams >= 99.1", "click"]), later_version(["penstock-streams>=0.1"])
    ('penstock-streams >= 99.1', None)
    """
    now = installed_version(DISTRIBUTION)
    for requirement in requirements:
        named, _, marker = requirement.partition(";")
        name = re.match(r"[\w.-]+", named)
        least = re.search(r"(>=|~=|==|>)\s*([\d.]+)", named)
        if not now or not name or not least or "extra" in marker or re.sub(r"[-_.]+", "-", name[0]) != DISTRIBUTION:
            continue
        if _numbers(least[2]) > _numbers(now) or (least[1] == ">" and _numbers(least[2]) == _numbers(now)):
            return named.strip()
    return None


def lazy_names(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports a name when it is first used.

    Every command imports the packages of all plugins, and few commands need what is in them. `places`: the submodule of
    each name, or "SUBMODULE:NAME" where it has another name there.
    """

    def __getattr__(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        submodule, _, found = places[name].partition(":")
        return getattr(import_module(f"{module}.{submodule}"), found or name)

    return __getattr__


def importable(module: str, names: Iterable[str]) -> list[str]:
    """Return the lazy `names` of a module whose packages are installed: its `__all__`, so that a star import works."""
    found = []
    for name in names:
        with suppress(MissingPackageError):
            getattr(import_module(module), name)
            found.append(name)
    return found


def _missing(feature: str, extra: str | None, packages: tuple[str, ...], lack: str) -> MissingPackageError:
    what = f"package{'s' if len(packages) > 1 else ''} {', '.join(packages)}"
    text = f"{feature} needs the {what}, which {lack}: {install_command(extra, packages)}"
    return MissingPackageError(text, name=packages[0], packages=packages, lack=lack)


def install_command(extra: str | None, packages: Sequence[str]) -> str:
    """Return the command that installs an extra, or `packages` in the versions that penstock requires.

    An installation from a checkout names the checkout, since no index may have that version. One without Spark stays
    without it: it gets the packages of the extra, since penstock itself would bring Spark.
    """
    from shlex import quote

    required = _required()
    if extra is None:
        found = [next((each for each in required if _is_of(None, each, package)), package) for package in packages]
    elif find_spec("pyspark") is None and required:
        marker = re.compile(rf"; extra == ['\"]{re.escape(extra)}['\"]$")
        found = [marker.sub("", each) for each in required if marker.search(each)]
    else:
        return f"pip install '{_source()}[{extra}]'"
    return f"pip install {' '.join(map(quote, found))}"


def _required() -> Sequence[str]:
    """Return the requirements of the distribution, including its extras'."""
    try:
        return distribution(DISTRIBUTION).requires or ()
    except PackageNotFoundError:
        return ()


def _is_of(extra: str | None, requirement: str, package: str) -> bool:
    """Return whether a requirement names a package, and belongs to this extra, or to none."""
    name, _, marker = requirement.partition(";")
    of = re.search(r"extra == ['\"]([\w-]+)", marker)
    plain = re.match(r"[\w.-]+", name)
    return plain is not None and re.sub(r"[-_.]+", "_", plain[0]) == package and (of[1] if of else None) == extra


def other_distribution() -> str | None:
    """Return advice if a distribution with our import name is installed too; None if there is none."""
    try:
        other = distribution(IMPORT_NAME)
    except PackageNotFoundError:
        return None
    where = "" if (source := _source()) == DISTRIBUTION else f" (pip install '{source}')"
    return (
        f"the distribution {IMPORT_NAME} {other.version} is installed beside {DISTRIBUTION}. It is another "
        "project with the same import name, and each replaces files of the other: "
        f"pip uninstall {IMPORT_NAME} {DISTRIBUTION}, then install {DISTRIBUTION} again{where}"
    )


def _source() -> str:
    """Return the directory of the checkout that was installed, or the distribution's name."""
    import json
    from urllib.parse import unquote, urlsplit

    try:
        url = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return DISTRIBUTION
    return unquote(urlsplit(url["url"]).path) if "dir_info" in url else DISTRIBUTION
