"""The name of the distribution, and the error for a package that a feature needs and that is not installed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from ..errors import MissingPackageError

DISTRIBUTION = "penstock-streams"
"""The name by which penstock is installed. `penstock` on PyPI is another project, with the same import name."""
IMPORT_NAME = "penstock"


@contextmanager
def needed(feature: str, extra: str | None = None) -> Iterator[None]:
    """Raise MissingPackageError for an import of the block that fails: no package, or one of another version.

    `feature`: what needs the module, as the message's subject. `extra`: the distribution's extra that installs the
    module; None for a package that penstock requires, and that an installation without Spark leaves out. Blocks may be
    nested: the outermost names its feature and its extra.
    """
    try:
        yield
    except ImportError as error:
        missing = error.name or ""
        package = missing.partition(".")[0]
        if package in ("", IMPORT_NAME):
            raise
        if isinstance(error, MissingPackageError):
            packages, lack = error.packages, error.lack
        elif isinstance(error, ModuleNotFoundError) and missing == package:
            packages, lack = (package,), "is not installed"
        else:
            packages, lack = (package,), f"is too old or too new ({error})"
        raise _missing(feature, extra, packages, lack) from error


def check_installed(feature: str, extra: str | None, *packages: str) -> None:
    """Raise MissingPackageError, as `needed` does, for those of `packages` that are not installed; import none."""
    if lacking := tuple(package for package in packages if find_spec(package) is None):
        raise _missing(feature, extra, lacking, "is not installed" if len(lacking) == 1 else "are not installed")


def importable(module: str, names: Iterable[str]) -> list[str]:
    """Return those of a module's lazy `names` whose packages are installed: its `__all__`, so a star import works."""
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

    try:
        required = distribution(DISTRIBUTION).requires or ()
    except PackageNotFoundError:
        required = ()
    if extra is None:
        found = [next((each for each in required if _is_plain(each, package)), package) for package in packages]
    elif find_spec("pyspark") is None and required:
        marker = re.compile(rf"; extra == ['\"]{re.escape(extra)}['\"]$")
        found = [marker.sub("", each) for each in required if marker.search(each)]
    else:
        return f"pip install '{_source()}[{extra}]'"
    return f"pip install {' '.join(map(quote, found))}"


def _is_plain(requirement: str, package: str) -> bool:
    return re.match(rf"{re.escape(package)}\b(?!.*extra ==)", requirement) is not None


def other_distribution() -> str | None:
    """Return that a distribution with our import name is installed too, and what to do; None if there is none."""
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
