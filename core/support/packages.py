"""The name of the distribution, and the error for a package that a feature needs and that is not installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from ..errors import MissingPackageError

DISTRIBUTION = "penstock-streams"
"""The name by which penstock is installed. `penstock` on PyPI is another project, with the same import name."""
IMPORT_NAME = "penstock"


@contextmanager
def needed(feature: str, extra: str | None = None) -> Iterator[None]:
    """Raise MissingPackageError for a module that the block imports and that is not installed.

    `feature`: what needs the module, as the message's subject. `extra`: the distribution's extra that installs the
    module; None for a package that penstock requires, and that an installation without Spark leaves out. Blocks may be
    nested: the outermost names its feature and its extra.
    """
    try:
        yield
    except (ModuleNotFoundError, MissingPackageError) as error:
        missing = error.name or ""
        package = missing.partition(".")[0]
        if package in ("", IMPORT_NAME):
            raise
        raise MissingPackageError(
            f"{feature} needs the package {package}, which is not installed: {install_command(extra, package)}",
            name=missing,
        ) from error


def check_installed(feature: str, extra: str | None, *packages: str) -> None:
    """Raise MissingPackageError, as `needed` does, for the first of `packages` that is not installed; import none."""
    with needed(feature, extra):
        for package in packages:
            if find_spec(package) is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def install_command(extra: str | None, package: str) -> str:
    """Return the command that installs an extra, or `package` in a version that penstock requires.

    An installation from a checkout names the checkout, since no index may have that version.
    """
    from shlex import quote

    if extra is not None:
        return f"pip install '{_source()}[{extra}]'"
    try:
        required = distribution(DISTRIBUTION).requires or ()
    except PackageNotFoundError:
        required = ()
    pinned = (each for each in required if re.match(rf"{re.escape(package)}\b(?!.*extra ==)", each))
    return f"pip install {quote(next(pinned, package))}"


def other_distribution() -> str | None:
    """Return that a distribution with our import name is installed too, and what to do; None if there is none."""
    try:
        other = distribution(IMPORT_NAME)
    except PackageNotFoundError:
        return None
    source = _source()
    return (
        f"the distribution {IMPORT_NAME} {other.version} is installed beside {DISTRIBUTION}. It is another "
        "project with the same import name, and each replaces files of the other: pip uninstall "
        f"{IMPORT_NAME}, then pip install --force-reinstall --no-deps '{source}'"
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
