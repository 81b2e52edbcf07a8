"""The verb `new`: writes a package with a plugin, its tests included."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from string import Template

import click

from penstock import hooks
from penstock.support.packages import DISTRIBUTION

from .command import verb, verbose_option
from .output import note

_NEEDED = (DISTRIBUTION, "setuptools", "pytest", "hypothesis")
"""What a new package is built and tested with."""


@verb(
    ("A package with a processor and its tests", "penstock new processor acme-sessions"),
    ("A package with a store backend", "penstock new backend acme-engine --directory engines/acme"),
    ("A package with a sink", "penstock new sink acme-table"),
    target=False,
)
@click.argument("kind", type=click.Choice(["processor", "backend", "sink"]))
@click.argument("name")
@click.option("--directory", type=click.Path(path_type=Path), help="Where it is written. [default: a folder NAME]")
@verbose_option
def new(kind: str, name: str, directory: Path | None) -> None:
    """Write a Python package NAME with a plugin: a processor, a store backend or a sink.

    It has tests with hypothesis (the contract suites), a workflow that runs them, and the entry point by which penstock
    finds it. It works as it is; put your own code in place of its example.
    """
    from penstock import ConfigError
    from penstock.hooks.rules import prefixes_of

    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or name == "penstock":
        raise ConfigError(
            f"package name {name!r}: expected small letters and digits, in words with a dash between them, as in "
            "acme-sessions; others install it by that name"
        )
    if name in _NEEDED:
        raise ConfigError(
            f"package name {name!r}: the new package needs the one that has this name, and would be installed in its "
            "place: choose another one"
        )
    if keyword.iskeyword(name) or name.replace("-", "_") in sys.stdlib_module_names:
        raise ConfigError(
            f"package name {name!r}: Python has a keyword or a module of this name, so the package could not be "
            "imported: choose another one"
        )
    place = directory or Path(name)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"{place} is there already: name an empty directory (--directory), or another package")
    component = f"{prefixes_of(name)[0]}.{_NAMES[kind]}"
    written = files(kind, name, component)
    for path, text in written.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    note(f"{place}: a package with the {KINDS[kind]} {component!r}, in {len(written)} files")
    note(f"next: cd {place}; pip install --editable '.[test]'; penstock plugins --check; pytest")


_OF_ALL = ("pyproject.toml", "README.md", ".github/workflows/test.yml", "src/$MODULE/__init__.py")
_OF_KIND = {
    "processor": ("src/$MODULE/processor.py", "pipeline.py", "tests/test_processor.py"),
    "backend": ("src/$MODULE/backend.py", "tests/test_backend.py"),
    "sink": ("src/$MODULE/sink.py", "tests/test_sink.py"),
}
"""The files of a package; `templates/` has the text of each under its name."""
_TARGETS = {"processor": "processor:Count", "backend": "backend:Backend", "sink": "sink:TableSink"}
_NAMES = {"processor": "count", "backend": "sqlite", "sink": "table"}
KINDS = {"processor": "processor", "backend": "store backend", "sink": "sink"}


def files(kind: str, name: str, component: str) -> dict[str, str]:
    """Return the files of a package by path: the package brings a thing of a kind, by the name `component`."""
    values = {
        "NAME": name,
        "MODULE": name.replace("-", "_"),
        "COMPONENT": component,
        "KIND": KINDS[kind],
        "DISTRIBUTION": DISTRIBUTION,
    }
    values |= {"HOOK": hooks.KINDS[KINDS[kind]], "TARGET": _TARGETS[kind]}
    texts = {"src/$MODULE/py.typed": ""}
    for path in (*_OF_ALL, *_OF_KIND[kind]):
        texts[path] = (Path(__file__).parent / "templates" / f"{Path(path).name}.txt").read_text("utf-8")
    return {Template(path).substitute(values): Template(text).substitute(values) for path, text in texts.items()}
