"""A package of somebody else's, really installed: its parts are found by name, in this process's children and in
Spark's."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..rotation import by_turns, of_today
from .commands import run_apart

HERE = Path(__file__).parent

pytestmark = pytest.mark.xdist_group("acme")  # installed once


def install(tmp_path: Path, target: Path) -> None:
    """Install the package into a folder of its own, so that the environment of development stays as it is."""
    source = tmp_path / "acme"  # building leaves files behind
    shutil.copytree(HERE / "acme", source)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps",
            "--no-build-isolation", "--no-compile", "--target", str(target), str(source),
        ],
        check=True,
        timeout=300,
    )  # fmt: skip


class Installation:
    """Runs Python and `penstock` where the packages of some folders are installed, in processes that have not loaded
    any package yet."""

    def __init__(self, *targets: Path) -> None:
        self.targets = targets
        path = os.pathsep.join(filter(None, [*map(str, targets), os.environ.get("PYTHONPATH")]))
        self._environment = {**os.environ, "PYTHONPATH": path}

    def python(self, *arguments: str, cwd: Path, input: str | None = None, code: int = 0) -> str:
        """What it printed; for an exit code other than 0, what it complained of."""
        done = subprocess.run(
            [sys.executable, *arguments], env=self._environment, cwd=cwd, input=input,
            check=False, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    def penstock(self, *arguments: str, cwd: Path, input: str | None = None, code: int = 0) -> str:
        out, err = run_apart(*arguments, path=self.targets, directory=cwd, given=input, code=code)
        return err if code else out


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    directory = tmp_path_factory.mktemp("acme")
    install(directory, directory / "target")
    return Installation(directory / "target")


PIPELINE = """
from penstock import Application, Topology, key_value_store

# Every part but the topics is somebody else's, and none of them is imported here.
topology = Topology().add_source("readings", "readings")
topology.add_processor("dedupe", "acme.dedupe", "readings", stores=[key_value_store("last", backend="acme.sqlite")])
topology.add_sink("changes", "changes", "dedupe", value_serde="acme.upper")
application = Application("acme", topology, changelog="acme.history:history")
"""
READINGS = [("a", "one"), ("a", "one"), ("b", "one"), ("a", "two"), ("b", "one"), ("a", "one")]
CHANGES = {"a": ["ONE", "TWO", "ONE"], "b": ["ONE"]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    return tmp_path


def test_its_parts_are_listed_with_their_package(acme: Installation, tmp_path: Path) -> None:
    listed = json.loads(acme.penstock("plugins", "--check", "--json", cwd=tmp_path))
    assert not listed["broken"]
    found = [(each["kind"], each["name"]) for each in listed["components"] if each["package"] == "penstock-acme"]
    assert found == [
        ("processor", "acme.count"), ("processor", "acme.dedupe"),
        ("store backend", "acme.sqlite"), ("store kind", "acme.set"),
        ("serde", "acme.framed"), ("serde", "acme.upper"),
        ("changelog", "acme.history"), ("changelog", "acme.topics"),
        ("renderer", "acme.names"), ("engine", "acme.audited"), ("setting", "acme.ignore_case"), ("command", "acme"),
    ]  # fmt: skip
    assert {each["version"] for each in listed["components"] if each["package"] == "penstock-acme"} == {"1.2.3"}


def test_its_command_is_one_of_penstocks(acme: Installation, tmp_path: Path) -> None:
    assert acme.penstock("acme", "you", cwd=tmp_path) == "Acme greets you.\n"
    assert "Greet NAME." in acme.penstock("--help", cwd=tmp_path)


@pytest.mark.parametrize("file", of_today(["check_changelogs.py", "check_sqlite.py"], 2))
def test_its_parts_pass_the_published_contracts(acme: Installation, tmp_path: Path, file: str) -> None:
    check = shutil.copy(HERE / "acme" / file, tmp_path)
    output = acme.python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(check), cwd=tmp_path)
    assert " passed" in output


def test_a_pipeline_of_names_runs_in_the_driver(acme: Installation, project: Path) -> None:
    program = f"""
import json
from penstock.testing import TopologyTestDriver
from pipeline import application
with TopologyTestDriver(application, reopen_tasks=True) as driver:
    for key, value in {READINGS!r}:
        driver.pipe("readings", key, value)
    print(json.dumps([[record.key, record.value] for record in driver.read_all("changes")]))
    print(json.dumps(dict(driver.store("last").all())))
"""
    changes, last = map(json.loads, acme.python("-c", program, cwd=project).splitlines())
    assert changes == [["a", "ONE"], ["b", "ONE"], ["a", "TWO"], ["a", "ONE"]]
    assert last == {"a": "one", "b": "one"}


ENGINE = """
from pipeline import application
from penstock import ConfigError, run

audited = application.with_settings(engine="acme.audited")
print(run(audited, file="audit.txt").records_in)
with audited.start("0s", file="audit.txt"):
    pass
try:
    run(audited, master="local[2]")
except ConfigError as error:
    print(error)
"""


def test_an_engine_is_chosen_by_its_name(acme: Installation, project: Path) -> None:
    acme.penstock("topics", "create", "readings", "changes", cwd=project)
    acme.penstock("produce", "readings", "--key-separator", ":", cwd=project, input="a:one\nb:one\na:one\n")
    records, refused = acme.python("-c", ENGINE, cwd=project).splitlines()
    assert records == "3"
    assert "'master' is no option of Acme's engine: its options are file" in refused
    assert (project / "audit.txt").read_text() == "acme: 3 in, 2 out\nacme: 0 in, 0 out\n"
    said = acme.penstock("run", "pipeline:application", "--set", "engine=acme.audited", cwd=project, code=2)
    assert "expected the option file=PATH" in said


FRAMED = """
from penstock import Topology
from penstock.testing import TopologyTestDriver


def topology(serde):
    return Topology().add_source("in", "in", value_serde="json").add_sink("out", "out", "in", value_serde=serde)


for serde, value in {
    "acme.framed:acme.upper": "one", "acme.framed:acme.framed:str": "one", "list:acme.framed:str": ["one"]
}.items():
    reads_back = topology(serde).add_source("back", "out", value_serde="bytes")
    reads_back.add_sink("raw", "raw", "back", value_serde="bytes")
    with TopologyTestDriver(reads_back) as driver:
        driver.pipe("in", "a", value)
        print(driver.read("raw").value)
for wrong in ("acme.framed:", "acme.framed:uper", "acme.upper:str"):
    try:
        topology(wrong)
    except Exception as error:
        print(error)
"""


def test_a_serde_takes_what_is_after_a_colon(acme: Installation, tmp_path: Path) -> None:
    *written, none, unknown, without = acme.python("-c", FRAMED, cwd=tmp_path).splitlines()
    assert written == [str(b"[ONE]"), str(b"[[one]]"), str(b"\1\0\0\0\1\0\0\0\5[one]")]
    assert none == "sink 'out', value_serde: serde 'acme.framed:': expected a serde after the colon"
    assert unknown.startswith("sink 'out', value_serde: serde 'acme.framed:uper': no serde named 'uper' is installed")
    assert "Did you mean 'acme.upper'?" in unknown
    assert "serde 'acme.upper:str': 'acme.upper' takes no argument after a colon" in without


RESTORE = """
import json, sys
from pipeline import application
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition

readings = TopicPartition("readings", 0)
log = open_log(application.settings)
for topic in ("readings", "changes"):
    log.create_topic(topic, 1)

def run(host, *values):
    here = application.with_settings(changelog=sys.argv[1], state_dir=host)
    prepare(here, log)
    worker = TaskWorker(here, TaskId(0, 0), [readings], log, resources=ProcessResources())
    for value in values:
        log.append(OutputBatch("readings", [value.encode()], [value.encode()], [1]))
        report = worker.run_batch(log.end_offsets([readings]), 0)
    restored = worker.run_batch({}, 0).restored if not values else 0
    print(json.dumps([restored, dict(worker.task.stores["last"].all())]))
    worker.close()

run("one", "a", "b")
run("two")
run("two", "c")
run("one")
"""


@pytest.mark.parametrize("changelog", ["acme.history:history", "acme.topics:"])
def test_its_changelogs_restore_the_state_on_another_host(acme: Installation, project: Path, changelog: str) -> None:
    lines = [json.loads(line) for line in acme.python("-c", RESTORE, changelog, cwd=project).splitlines()]
    two, three = {"a": "a", "b": "b"}, {"a": "a", "b": "b", "c": "c"}
    assert [last for _, last in lines] == [two, two, three, three]
    # Host `one` has the first two entries: the history has a way from there, and the topics are read from the start.
    assert [restored for restored, _ in lines] == [0, 2, 0, 1 if changelog.startswith("acme.history") else 3]


COUNT = """
import json
from penstock import Topology
from penstock.dsl import StreamsBuilder
from penstock.testing import TopologyTestDriver

def plain():
    topology = Topology().add_source("visits", "visits")
    topology.add_processor("count", "acme.count", "visits", store="counts", late_ms=1000)
    return topology.add_sink("out", "out", "count", value_serde="int")

def of_verbs():
    builder = StreamsBuilder()
    counted = builder.stream("visits").filter(bool).process("acme.count", store="counts", late_ms=1000)
    counted.map_values(lambda count: count * 10).to("out", value_serde="int")
    return builder.build()

def by_class():
    from penstock_acme.count import Count
    builder = StreamsBuilder()
    counted = builder.stream("visits").process_values(Count, store="counts", late_ms=1000)
    counted.to("out", value_serde="int")
    return builder.build()

for topology in (plain(), of_verbs(), by_class()):
    (node,) = [each for each in topology.build().nodes.values() if "counts" in getattr(each, "stores", ())]
    with TopologyTestDriver(topology, reopen_tasks=True) as driver:
        # The task is opened again before each record: without the saved time, the second one would count.
        for key, timestamp in (("anna", 5_000), ("anna", 3_000), ("ben", 4_500), ("anna", 6_000)):
            driver.pipe("visits", key, "/", timestamp)
        counts = [[record.key, record.value] for record in driver.read_all("out")]
        print(json.dumps([node.saved_as[0], counts]))
"""


def test_its_operator_counts_with_and_without_the_dsl(acme: Installation, tmp_path: Path) -> None:
    found = [json.loads(line) for line in acme.python("-c", COUNT, cwd=tmp_path).splitlines()]
    counts = [("anna", 1), ("ben", 1), ("anna", 2)]
    times = [1, 10, 1]
    assert found == [["counts", [[key, count * each] for key, count in counts]] for each in times]


def test_an_operator_whose_times_belong_to_a_store_that_it_does_not_have_is_refused(
    acme: Installation, tmp_path: Path
) -> None:
    program = (
        COUNT.partition("for topology in")[0]
        + """
from penstock_acme.count import Count
class Wrong(Count):
    @classmethod
    def saved_with(cls, store, late_ms):
        return "times"
Topology().add_source("visits", "visits").add_processor("count", Wrong, "visits", store="counts", late_ms=1000)
"""
    )
    message = acme.python("-c", program, cwd=tmp_path, code=1)
    assert "processor 'count': its saved_with names store 'times', to which it is not connected; connected: counts" in (
        message
    )


SETS = """
from penstock import Application, Processor, Topology
from penstock_acme.sets import SetSpec

class First(Processor):
    def process(self, record):
        if self.context.get_store("seen").add(record.value):
            self.context.forward(record)

topology = Topology().add_source("readings", "readings")
topology.add_processor("first", First, "readings", stores=[SetSpec("seen", "str")])
topology.add_sink("out", "firsts", "first")
application = Application("sets", topology)
"""


def test_its_kind_of_store_is_kept_and_restored_like_ours(acme: Installation, project: Path) -> None:
    (project / "pipeline.py").write_text(SETS)
    program = """
import json
from penstock.testing import TopologyTestDriver
from pipeline import application, topology
with TopologyTestDriver(application, reopen_tasks=True) as driver:
    for value in ("b", "a", "b", "c", "a"):
        driver.pipe("readings", "k", value)
    print(json.dumps([record.value for record in driver.read_all("firsts")]))
    print(json.dumps(list(driver.store("seen"))))
print(json.dumps(topology.build().fingerprint()["subtopologies"]["0"]["stores"]["seen"]["kind"]))
"""
    firsts, seen, kind = map(json.loads, acme.python("-c", program, cwd=project).splitlines())
    assert (firsts, seen, kind) == (["b", "a", "c"], ["a", "b", "c"], "SetSpec")


def test_a_kind_of_store_that_nobody_brings_is_refused_where_it_is_declared(acme: Installation, project: Path) -> None:
    (project / "pipeline.py").write_text(SETS + "class OtherSpec(SetSpec):\n    kind = 'acme.sets'\n")
    program = "from pipeline import *; Topology().add_store(OtherSpec('seen'))"
    message = acme.python("-c", program, cwd=project, code=1)
    assert "store 'seen': no store kind named 'acme.sets' is installed; installed: acme.set, key_value" in message


def test_its_setting_is_one_of_penstocks(acme: Installation, project: Path) -> None:
    def config(*arguments: str) -> list[str]:
        lines = acme.penstock("config", "pipeline.py:application", *arguments, cwd=project).splitlines()
        return next(line.split(maxsplit=2) for line in lines if line.startswith("acme."))

    assert config() == ["acme.ignore_case", "False", "default"]
    (project / "penstock.toml").write_text("[acme]\nignore_case = true\n")
    assert config() == ["acme.ignore_case", "True", "penstock.toml, line 2"]
    assert config("--set", "acme.ignore_case=false") == ["acme.ignore_case", "False", "--set acme.ignore_case"]
    program = """
import json
from penstock.config_sources import layers
from penstock.testing import TopologyTestDriver
from pipeline import application
with TopologyTestDriver(application.under(layers())) as driver:
    for value in ("one", "ONE", "two"):
        driver.pipe("readings", "a", value)
    print(json.dumps([record.value for record in driver.read_all("changes")]))
"""
    assert json.loads(acme.python("-c", program, cwd=project)) == ["ONE", "TWO"]
    (project / "penstock.toml").write_text("[acme]\nignore_cases = true\n")
    message = acme.penstock("config", "pipeline.py:application", cwd=project, code=2)
    assert "penstock.toml, line 2: unknown setting 'acme.ignore_cases'; did you mean 'acme.ignore_case'" in " ".join(
        message.split()
    )


def test_its_renderer_is_a_format_of_describe(acme: Installation, project: Path) -> None:
    assert acme.penstock("describe", "pipeline.py:application", "--format", "acme.names", cwd=project) == (
        "readings\ndedupe\nchanges\n"
    )
    message = acme.penstock("describe", "pipeline.py:application", "--format", "names", cwd=project, code=2)
    assert "no renderer named 'names' is installed; installed: acme.names, dot, json, mermaid, svg, text" in " ".join(
        message.split()
    )


@by_turns(1, 2)
@pytest.mark.spark
def test_a_pipeline_of_names_runs_on_spark(acme: Installation, project: Path) -> None:
    acme.penstock("topics", "create", "readings", "changes", "--partitions", "2", cwd=project)
    lines = "".join(f"{key}:{value}\n" for key, value in READINGS)
    acme.penstock("produce", "readings", "--key-separator", ":", cwd=project, input=lines)
    command = ["run", "pipeline.py:application", "--master", "local[2]", "--json"]
    summary = json.loads(acme.python("-m", "penstock.plugins.operate.cli", *command, cwd=project))
    assert (summary["records_in"], summary["records_out"]) == (6, 4)
    found: dict[str, list[str]] = {}
    for line in acme.penstock("consume", "changes", "--json", cwd=project).splitlines():
        record: dict[str, Any] = json.loads(line)
        found.setdefault(record["key"], []).append(record["value"])
    assert found == CHANGES
    assert list((project / ".penstock" / "state").rglob("state.sqlite")), "the state is where the backend keeps it"


@by_turns(0, 2)
@pytest.mark.spark
def test_executors_with_another_version_of_a_plugin_are_refused(acme: Installation, project: Path) -> None:
    """Spark's workers find packages by PYTHONPATH, and the driver a later one before them."""
    newer = project / "newer"
    shutil.copytree(acme.targets[0], newer)
    (info,) = newer.glob("penstock_acme-*.dist-info")
    metadata = (info / "METADATA").read_text().replace("Version: 1.2.3", "Version: 2.0.0")
    (info / "METADATA").write_text(metadata)
    info.rename(newer / "penstock_acme-2.0.0.dist-info")
    acme.penstock("topics", "create", "readings", "changes", cwd=project)
    program = f"import sys; sys.path.insert(0, {str(newer)!r}); from pipeline import application; "
    program += "from penstock.spark import run; run(application, master='local[2]')"
    message = acme.python("-c", program, cwd=project, code=1)
    assert "has version 1.2.3 of penstock-acme, and the driver has version 2.0.0: install" in message
    assert f"executor driver on {socket.gethostname()}" in message


def test_a_name_that_nobody_brings_lists_what_is_installed(acme: Installation, project: Path) -> None:
    (project / "pipeline.py").write_text(PIPELINE.replace('"acme.dedupe"', '"acme.dedup"'))
    message = acme.penstock("describe", "pipeline.py:application", cwd=project, code=2)
    message = " ".join(message.split())
    assert "no processor named 'acme.dedup' is installed; installed: acme.count, acme.dedupe, contrib.dedupe" in message
    assert "Did you mean 'acme.dedupe'" in message


def test_without_the_package_its_names_are_errors_that_say_so(project: Path) -> None:
    message = Installation(project / "nothing").penstock("describe", "pipeline.py:application", cwd=project, code=2)
    assert "no processor named 'acme.dedupe' is installed" in " ".join(message.split())


def test_a_broken_plugin_is_shown_and_harms_nobody(acme: Installation, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "pipeline.py").write_text(PIPELINE)
    site = tmp_path / "target"
    info = site / "penstock_broken-0.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-broken\nVersion: 0.9\n")
    (info / "entry_points.txt").write_text("[penstock]\nbroken = penstock_broken\n")
    (site / "penstock_broken.py").write_text("import a_library_that_nobody_has\n")
    both = Installation(*acme.targets, site)
    listed = json.loads(both.penstock("plugins", "--json", cwd=tmp_path))
    assert listed["broken"] == [
        {
            "plugin": "penstock-broken 0.9 (broken)",
            "error": "ModuleNotFoundError: No module named 'a_library_that_nobody_has'",
        }
    ]
    assert both.penstock("acme", cwd=tmp_path) == "Acme greets nobody.\n"
    assert "Processor: dedupe (stores: [last])" in both.penstock(
        "describe", "pipeline.py:application", cwd=tmp_path / "work"
    )
    # And whoever looks for something it may have brought is told of it.
    (tmp_path / "work" / "pipeline.py").write_text(PIPELINE.replace('"acme.dedupe"', '"broken.thing"'))
    message = " ".join(both.penstock("describe", "pipeline.py:application", cwd=tmp_path / "work", code=2).split())
    assert "plugin penstock-broken 0.9 (broken) could not be loaded: ModuleNotFoundError" in message
