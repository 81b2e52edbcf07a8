"""setup.cfg and the tree say the same thing, and imports keep to the table of layers."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.support.packages import DISTRIBUTION

ROOT = Path(__file__).parent.parent
CFG = configparser.ConfigParser()
CFG.read(ROOT / "setup.cfg")


def pairs(section: str, key: str) -> dict[str, str]:
    lines = [line.partition("=") for line in CFG[section][key].strip().splitlines()]
    return {name.strip(): value.strip() for name, _, value in lines}


FOLDERS = pairs("options", "package_dir")
SOURCES = sorted(file for folder in FOLDERS.values() for file in (ROOT / folder).rglob("*.py"))

# Library -> the parts that may import it. Core is not among them: it has the standard library and pluggy.
LIBRARIES = {
    "click": {"plugins/operate/cli"},
    "cronsim": {"contrib/cron"},
    "avro": {"plugins/serdes"},
    "cloudpickle": {"plugins/engine/task", "plugins/testing"},
    "confluent_kafka": {"plugins/logs", "plugins/serdes"},
    "fastavro": {"plugins/serdes"},
    "google": {"plugins/serdes"},
    "deltalake": {"contrib/delta"},
    "greenlet": {"plugins/testing"},
    "hypothesis": {"plugins/testing"},
    "jsonschema": {"plugins/serdes"},
    "lmdb": {"stores", "plugins/logs"},
    "msgpack": {"plugins/serdes", "plugins/logs", "plugins/changelogs", "plugins/spark", "plugins/state/transfer"},
    "msgspec": {"plugins/serdes", "plugins/copying"},
    "numpy": {"plugins/dsl", "plugins/spark", "plugins/logs", "plugins/state/copies"},
    "opentelemetry": {"plugins/engine/run"},
    "orjson": {"plugins/serdes", "plugins/operate/cli"},
    "pandas": {"plugins/dsl", "plugins/spark", "plugins/testing"},
    "pluggy": {"core"},
    "prometheus_client": {"plugins/engine/run"},
    "pyarrow": {
        "plugins/dsl",
        "plugins/spark",
        "plugins/changelogs",
        "plugins/copying",
        "plugins/engine/program",
        "plugins/state/copies",
        "plugins/operate/cli",
        "contrib/arrow",
    },
    "pydantic": {"plugins/serdes"},
    "pyspark": {"plugins/spark"},
    "pytest": {"plugins/testing"},
    "rich": {"plugins/operate/cli"},
    "psycopg": {"contrib/postgres", "plugins/copying"},
    "pyiceberg": {"contrib/iceberg"},
    "rocksdict": {"contrib/rocksdb"},
    "anyio": {"plugins/operate/console", "plugins/state/queries"},
    "httptools": {"plugins/state/queries"},
    "jinja2": {"plugins/operate/console"},
    "markupsafe": {"plugins/operate/console"},
    "starlette": {"plugins/operate/console", "plugins/state/queries"},
    "uvicorn": {"plugins/state/queries"},
    "typing_extensions": {"plugins/dsl"},  # for type checkers, which bring it
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
HEAVY = {
    "anyio",
    "avro",
    "cloudpickle",
    "confluent_kafka",
    "cronsim",
    "deltalake",
    "fastavro",
    "google",
    "greenlet",
    "httptools",
    "hypothesis",
    "jinja2",
    "jsonschema",
    "lmdb",
    "msgpack",
    "msgspec",
    "numpy",
    "opentelemetry",
    "orjson",
    "pandas",
    "prometheus_client",
    "psycopg",
    "pyarrow",
    "pydantic",
    "pyspark",
    "rocksdict",
    "starlette",
    "uvicorn",
}


FAMILIES = (("engine",), ("state",), ("operate",))
"""Folders of plugins whose folders are layers."""


def layer(source: Path) -> str:
    """The layer a file belongs to: relative imports stay inside it."""
    parts = source.relative_to(ROOT).parts[:-1]
    return "/".join(parts[: {"plugins": 2, "contrib": 2}.get(parts[0], 1) + (parts[1:2] in FAMILIES)])


def import_name(of_layer: str) -> str:
    return "penstock" if of_layer == "core" else "penstock." + of_layer.replace("/", ".")


Import = tuple[int, int, str]
"""The line of an import, its level (0: absolute) and the name of the module."""


def imports(tree: ast.Module) -> Iterator[Import]:
    """Yield what a module imports, names of `from` imports included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, node.level, ".".join(filter(None, [node.module, alias.name]))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name


def loaded_by(program: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after `program`."""
    program += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_every_package_is_listed() -> None:
    found = {
        ".".join([name, *init.parent.relative_to(ROOT / folder).parts])
        for name, folder in FOLDERS.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert set(CFG["options"]["packages"].split()) == found


def test_every_source_is_in_a_package() -> None:
    assert not [str(source) for source in SOURCES if not (source.parent / "__init__.py").exists()]


def test_core_hides_no_folder() -> None:
    subpackages = {name.removeprefix("penstock.") for name in FOLDERS if name != "penstock"}
    assert not {path.stem for path in (ROOT / "core").iterdir()} & subpackages


def test_installed_entry_points_are_current() -> None:
    installed = {
        point.name: point.value for point in distribution(DISTRIBUTION).entry_points if point.group == "penstock"
    }
    assert installed == pairs("options.entry_points", "penstock"), (
        "setup.cfg changed since the install: run `make venv`"
    )


DOORS = [name for name, folder in FOLDERS.items() if folder.startswith("doors/")]


@pytest.mark.parametrize("door", DOORS)
def test_a_door_gives_the_names_of_its_plugin_and_the_same_objects(door: str) -> None:
    assert find_spec(door), f"setup.cfg has {door}, and the installation does not: run `make venv`"
    room = {"client": "state.queries.client", "console": "operate.console", "queries": "state.queries"}
    name = door.removeprefix("penstock.")
    ours, behind = import_module(door), import_module(f"penstock.plugins.{room.get(name, name)}")
    names = getattr(behind, "__all__", ())
    assert set(names) <= set(ours.__all__)
    assert all(getattr(ours, name) is getattr(behind, name) for name in names)
    assert all(getattr(ours, name).__module__.startswith("penstock.plugins.") for name in ours.__all__)


def test_importing_penstock_imports_no_plugin() -> None:
    loaded_by("import sys, penstock; assert not [each for each in sys.modules if each.startswith('penstock.plugins')]")


def test_type_checkers_find_the_editable_installation() -> None:
    """They follow no import hook, so `make view` links the tree as stubs, by which nothing is imported."""
    # Here, because every process imports this module.
    from mypy.build import default_data_dir
    from mypy.modulefinder import FindModuleCache, compute_search_paths
    from mypy.options import Options

    options = Options()
    options.python_executable = sys.executable
    finder = FindModuleCache(compute_search_paths([], options, default_data_dir()), None, options)
    missing = [name for name in ("penstock", *DOORS) if not isinstance(finder.find_module(name), str)]
    assert not missing, f"mypy does not find {missing}: run `make view`"


def test_no_plugin_of_ours_is_broken() -> None:
    from penstock.hooks import registry

    assert not registry().broken


def test_sources_keep_the_rules() -> None:
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        imported = list(imports(tree))
        check_that_it_opens_with_a_sentence(source, tree)
        check_that_imports_are_relative_inside_a_layer_and_absolute_across(source, imported)
        check_that_libraries_are_imported_only_by_the_parts_that_need_them(source, imported)
        if layer(source) == "core":
            check_that_it_names_no_plugin(source, tree, imported)


def check_that_it_opens_with_a_sentence(source: Path, tree: ast.Module) -> None:
    first = (ast.get_docstring(tree) or "").partition("\n")[0]
    assert first.endswith((".", "?")), f"{source}: the first line of the module docstring is {first!r}"


def check_that_imports_are_relative_inside_a_layer_and_absolute_across(source: Path, imported: list[Import]) -> None:
    ours = layer(source)
    inside = len(source.relative_to(ROOT / ours).parts)
    for line, level, name in imported:
        if level:
            assert level <= inside, f"{source}:{line}: a relative import leaves {ours}/: write `from penstock...`"
        elif ours == "core":
            assert name.partition(".")[0] != "penstock", f"{source}:{line}: write `from .{name}`: core is one layer"
        else:
            within = name == import_name(ours) or name.startswith(import_name(ours) + ".")
            assert not within, f"{source}:{line}: {name} is in this layer: import it relatively"
        assert level or name.partition(".")[0] not in FOLDERS.values(), f"{source}:{line}: {name} is a folder's name"


def check_that_libraries_are_imported_only_by_the_parts_that_need_them(source: Path, imported: list[Import]) -> None:
    for line, level, name in imported:
        top = name.partition(".")[0]
        if not level and top not in sys.stdlib_module_names and top != "penstock":
            allowed = LIBRARIES.get(top, set())
            assert layer(source) in allowed, f"{source}:{line}: {top} may be imported by {sorted(allowed) or 'nobody'}"


def check_that_it_names_no_plugin(source: Path, tree: ast.Module, imported: list[Import]) -> None:
    """By a name in a string neither: what plugins bring is looked up in the registry."""
    docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, DOCUMENTED)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for text in (texts - docstrings) | {name for _, _, name in imported}:
        assert not re.search(r"penstock\.(plugins|stores|contrib)\b", text), f"{source}: {text!r} names a plugin"


def test_importing_penstock_loads_nothing_heavy() -> None:
    assert not loaded_by("import penstock") & HEAVY


def test_looking_up_plugins_loads_nothing_heavy() -> None:
    assert not loaded_by("from penstock.hooks import registry; registry()") & HEAVY


def test_the_command_line_starts_without_spark() -> None:
    program = """
import contextlib, sys
from penstock.plugins.operate.cli import main
sys.argv = ["penstock", "--help"]
with contextlib.suppress(SystemExit):
    main()
"""
    assert not loaded_by(program) & {"pyspark", "pandas", "pyarrow", "hypothesis", "confluent_kafka"}
