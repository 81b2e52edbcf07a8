"""Without an optional package each module imports, or says which feature lacks what and how to install it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from penstock import (
    Application,
    ConfigError,
    MissingPackageError,
    PenstockError,
    Processor,
    Record,
    RuntimeUnavailableError,
    Topology,
    TopologyError,
    key_value_store,
    skip,
)
from penstock.dsl import StreamsBuilder
from penstock.hooks import registry
from penstock.hooks.rules import normal_name
from penstock.plugins.engine.program.preparation import check
from penstock.plugins.engine.run.settings import replace_task, replaces
from penstock.plugins.engine.task.locations import open_log
from penstock.support import packages
from penstock.support.packages import DISTRIBUTION, check_installed, install_command, needed, other_distribution
from penstock.testing import TopologyTestDriver

from .test_packaging import CFG, FOLDERS, ROOT, SOURCES, imports

EXTRAS = sorted(set(CFG["options.extras_require"]) - {"dev"})
SMALL = ROOT / "docs" / "deploying" / "requirements-embedded.txt"
IMPORT_ALL = """
import importlib, json, sys
hidden, names = json.loads(sys.stdin.read())

class Hiding:
    # A finder that does not find what is hidden.
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in hidden:
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)
from penstock import MissingPackageError
said = {}
for name in names:
    try:
        importlib.import_module(name)
    except MissingPackageError as error:
        said[name] = str(error)
    else:
        exec(f"from {name} import *", {})
print(json.dumps(said))
"""


def requirements(lines: Iterable[str]) -> list[Requirement]:
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


def closure(wanted: list[Requirement]) -> set[str]:
    """Names of the distributions that an installation of these brings."""
    found: set[tuple[str, str]] = set()
    while wanted:
        each = wanted.pop()
        for extra in ("", *each.extras):
            if (each.name, extra) not in found:
                found.add((each.name, extra))
                try:
                    required = requirements(distribution(each.name).requires or ())
                except PackageNotFoundError:
                    continue
                wanted += [one for one in required if one.marker is None or one.marker.evaluate({"extra": extra})]
    return {normal_name(name) for name, _ in found}


def modules_of(wanted: list[Requirement]) -> set[str]:
    """Top-level modules that an installation with these requirements has, penstock included."""
    names = closure(wanted)
    return {"penstock", *(top for top, owners in owners_by_module().items() if names & owners)}


@cache
def owners_by_module() -> dict[str, set[str]]:
    return {top: set(map(normal_name, owners)) for top, owners in packages_distributions().items()}


@cache
def every_module() -> list[str]:
    found = [
        ".".join([name, *source.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(".__init__")
        for name, folder in FOLDERS.items()
        for source in (ROOT / folder).rglob("*.py")
        if source.stem != "__main__"
    ]
    return sorted(found)


def imported_with(wanted: list[Requirement], names: list[str]) -> dict[str, str]:
    """Import modules where only `wanted` is installed; return what each said that lacks a package.

    From those that can be imported, `import *` must work, too.
    """
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        input=json.dumps([sorted(owners_by_module().keys() - modules_of(wanted)), names]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return said


REQUIRED = requirements(CFG["options"]["install_requires"].splitlines())


def of_extra(extra: str) -> list[Requirement]:
    return [*REQUIRED, *requirements(CFG["options.extras_require"][extra].splitlines())]


@cache
def lacking_without_extras() -> dict[str, str]:
    return imported_with(list(REQUIRED), every_module())


def test_each_module_imports_without_extras_or_names_one() -> None:
    for module, said in lacking_without_extras().items():
        named = re.search(r"which (?:is|are) not installed: pip install '.*\[([\w-]+)\]'$", said)
        assert named is not None and named[1] in EXTRAS, f"{module}: {said}"


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_names_an_extra_imports_with_it(extra: str) -> None:
    names = [name for name, said in lacking_without_extras().items() if said.endswith(f"[{extra}]'")]
    assert not imported_with(of_extra(extra), names)


def test_without_spark_all_but_the_parts_for_it_import() -> None:
    small = requirements(SMALL.read_text().splitlines())
    names = {each.name for each in small}
    assert names == {each.name for each in REQUIRED} - {"numpy", "pandas", "pyarrow", "pyspark"} | {"prometheus-client"}
    assert {str(each) for each in small} >= {str(each) for each in REQUIRED if each.name in names}

    said = imported_with(small, every_module())
    for module in said.keys() - lacking_without_extras().keys():
        assert re.search(r"pip install '?(pyspark|pandas)\b", said[module]), f"{module}: {said[module]}"
        assert module.startswith(("penstock.plugins.spark.", "penstock.plugins.testing.frames")), module


def test_a_file_that_imports_an_optional_package_guards_it() -> None:
    """Also in a function: where it is called, the error must name the feature and the extra."""
    small = modules_of(requirements(SMALL.read_text().splitlines())) - {"prometheus_client"}
    of_spark = modules_of(list(REQUIRED))
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        at_run_time = [
            each for each in tree.body if not (isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING")
        ]
        tops = {name.partition(".")[0] for _, level, name in imports(ast.Module(at_run_time, [])) if not level}
        optional = tops - sys.stdlib_module_names - small
        if "spark" in source.relative_to(ROOT).parts:
            optional -= of_spark  # `check_java` has looked before anything else of Spark is called
        if optional:
            guards = [source, *(parent / "__init__.py" for parent in source.parents if parent.is_relative_to(ROOT))]
            text = "".join(guard.read_text() for guard in guards if guard.exists())
            looks = r"\b(needed|check_installed|check_libraries|find_spec)\("
            assert re.search(looks, text), f"{source} imports {sorted(optional)}"


def test_the_error_names_feature_package_and_command() -> None:
    with pytest.raises(MissingPackageError) as raised, needed("the test", "avro"):
        import no_such_package  # type: ignore[import-not-found] # noqa: F401
    command = rf"pip install '({DISTRIBUTION}|{re.escape(str(ROOT))})\[avro\]'"
    text = rf"the test needs the package no_such_package, which is not installed: {command}"
    assert re.fullmatch(text, str(raised.value))
    assert isinstance(raised.value, (ImportError, RuntimeUnavailableError)) and raised.value.name == "no_such_package"


def test_the_outermost_feature_is_named() -> None:
    with pytest.raises(MissingPackageError, match=r"the outer .*\[serve\]"), needed("the outer", "serve"):
        check_installed("the inner", "avro", "no_such_package")


def test_what_penstock_requires_is_named_with_its_versions() -> None:
    with pytest.raises(MissingPackageError, match=r"pip install 'pyspark(<5,>=4.2|>=4.2,<5)'$"), needed("it"):
        raise ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql")


def test_all_packages_that_are_missing_are_named_at_once() -> None:
    said = r"the packages no_such, nor_this, which are not installed: pip"
    with pytest.raises(MissingPackageError, match=said) as raised:
        check_installed("it", None, "no_such", "pytest", "nor_this")
    assert raised.value.packages == ("no_such", "nor_this")


def test_a_package_of_another_version_is_not_said_to_be_missing() -> None:
    said = r"the package json, which is too old or too new \(.*no_such_name"
    with pytest.raises(MissingPackageError, match=said), needed("it", "testing"):
        from json import no_such_name  # type: ignore[attr-defined] # noqa: F401


@pytest.mark.parametrize("statement", ["import acme_space.part", "from acme_space import part"])
def test_a_part_of_a_namespace_package_is_missing(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another distribution brings the namespace, as with google.protobuf and opentelemetry."""
    (tmp_path / "acme_space" / "other").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    said = r"it needs the package acme_space\.part, which is not installed: pip install .*\[protobuf\]"
    with pytest.raises(MissingPackageError, match=said), needed("it", "protobuf"):
        exec(statement)
    with pytest.raises(MissingPackageError, match=said):
        check_installed("it", "protobuf", "acme_space.part")
    with pytest.raises(MissingPackageError, match=r"the packages no_such\.part, acme_space\.part"):
        check_installed("it", "protobuf", "no_such.part", "acme_space.part")


def test_a_package_that_is_too_old_is_named_with_the_version_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "pydantic-1.10.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pydantic\nVersion: 1.10.2\n")
    check_installed("it", "pydantic", "pydantic")
    monkeypatch.syspath_prepend(tmp_path)
    least = next(each.specifier for each in of_extra("pydantic") if each.name == "pydantic")
    said = rf"it needs the package pydantic, which is too old \(1\.10\.2; {str(least)[2:]} or later is needed\): pip"
    with pytest.raises(MissingPackageError, match=said):
        check_installed("it", "pydantic", "pydantic")


def test_an_installation_without_spark_stays_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra of the distribution would bring it."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    found = find_spec
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "pyspark" else found(name))
    assert re.fullmatch(r"pip install 'rocksdict>=[\d.]+'", install_command("rocksdb", ["rocksdict"]))
    assert "starlette" in install_command("serve", ["anyio"])


class Silent(Processor):
    def process(self, record: Record) -> None: ...


@pytest.mark.parametrize(
    ("setting", "value", "package", "kind"),
    [
        ("store_backend", "contrib.rocksdb", "rocksdict", "store backend"),
        ("changelog", "directory:S3://bucket/shop", "pyarrow", ""),
        ("metrics_port", 9_000, "prometheus_client", ""),
        ("metrics_reporters", "opentelemetry", "opentelemetry.exporter.otlp.proto.http", "metrics reporter"),
        ("queries", "127.0.0.1:0", "uvicorn", ""),
    ],
)
def test_a_start_and_its_plan_look_for_packages_first(
    setting: str, value: object, package: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_spec
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == package else found(name))
    if kind:
        component = registry().find(kind, str(value))
        vars(component).pop("_found", None)
        monkeypatch.delitem(sys.modules, component.target.partition(":")[0], raising=False)
    topology = Topology().add_source("in", "in").add_processor("p", Silent, "in", stores=[key_value_store("s")])
    application = Application("shop", topology, log="memory:packages", config={setting: value}, data_dir=str(tmp_path))
    with closing(open_log(application.settings)) as log, pytest.raises(MissingPackageError, match=package):
        check(application, log)
    monkeypatch.undo()
    if kind:
        component.load()


def test_a_path_as_a_url_needs_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_spec
    monkeypatch.setattr(packages, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    topology = Topology().add_source("in", "in").add_processor("p", Silent, "in")
    application = Application("shop", topology, log="memory:", changelog=f"directory:FILE://{tmp_path}")
    with closing(open_log(application.settings)) as log, pytest.raises(TopologyError):  # there is no topic "in"
        check(application, log)


def test_no_handler_drops_records_for_a_package_that_is_missing() -> None:
    def fails(value: object) -> object:
        with needed("serde 'avro'", "avro"):
            raise ModuleNotFoundError("No module named 'avro'", name="avro")

    builder = StreamsBuilder()
    builder.stream("in").map_values(fails).to("out")
    with (
        TopologyTestDriver(Application("shop", builder, processing_handler=skip)) as driver,
        pytest.raises(MissingPackageError, match="not at fault, so no handler was asked"),
    ):
        driver.pipe("in", "k", "v")


def test_a_package_that_is_missing_ends_a_run_whatever_the_handler_says() -> None:
    assert replaces(replace_task, PenstockError("another"))
    assert not replaces(replace_task, MissingPackageError("it needs a package"))


def test_modules_of_ours_that_are_missing_are_no_missing_package() -> None:
    with pytest.raises(ModuleNotFoundError, match="penstock.nowhere"), needed("it", "avro"):
        import penstock.nowhere  # type: ignore[import-not-found] # noqa: F401
    with pytest.raises(ConfigError), needed("it", "avro"):
        raise ConfigError("another error")


def test_another_project_of_our_import_name_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert other_distribution() is None
    info = tmp_path / "penstock-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "penstock 0.1.0 is installed beside penstock-streams" in (other_distribution() or "")


def test_the_command_line_says_that_another_project_is_imported(tmp_path: Path) -> None:
    """Its files have replaced `penstock/__init__.py`, and ours are beside it."""
    package = tmp_path / "penstock"
    package.mkdir()
    (package / "__init__.py").write_text("def trace(): ...\n")
    (package / "plugins").symlink_to(ROOT / "plugins")
    done = subprocess.run(
        [sys.executable, "-c", "from penstock.plugins.operate.cli import main"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 2 and DISTRIBUTION in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_pages_and_messages_name_the_distribution() -> None:
    """`pip install penstock` would install the other project."""
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "contrib").rglob("*.md"), *SOURCES]
    for path in texts:
        for line in path.read_text().splitlines():
            wrong = re.search(r"pip install (?:-\S+ )*'?penstock(?!-streams)\b|\bpenstock\[", line)
            assert wrong is None, f"{path}: {line.strip()}"
