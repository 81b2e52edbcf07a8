"""Settings that all tests share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from penstock import RuntimeUnavailableError
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.stores.lmdb import registry

from . import rotation
from .kafka.shared_broker import shared_broker
from .waiting import wait_until

# As users have it, whatever the tests are run with: the many processes that tests start compile no module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Programs that use hypothesis find there what it knows of penstock's source; it takes seconds to read that.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(__file__).parents[1] / ".hypothesis"))

# A busy machine makes single examples slow; a time limit would make the suite fail at random. Of properties that set no
# number, fewer examples than hypothesis' 100 but where all tests run: the contracts have many suites here.
settings.register_profile(
    "penstock",
    deadline=None,
    max_examples=100 if rotation.DAY == "all" else 25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("penstock")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and the programs that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A million objects are made while tests are collected, and stay: looking for garbage among them takes long.
gc.disable()

_SHARED = ("spark", "broker")
"""Marks of tests that start JVMs, and names of the fixtures with the one that many of them share."""
_OF_SPARK = Path(__file__).parent / "spark"
_LONG = (
    "test_cluster.py",
    "test_bench.py",
    "test_crash.py",
    "test_demo.py",
    "test_run.py",
    "test_docs.py",
    "test_installed.py",
)
"""Files with tests that take longest: they begin early, so that no process is left with one of them at the end."""
_EACH_DAY = ("changelogs/test_contract.py", "logs/test_contract.py", "stores/test_contract.py")
"""Files whose contract suites run whole each day: those of what is used by default."""
_MATRICES = (
    "examples/test_examples.py",
    "kafka/test_refused_records.py",
    "runtime/test_out_of_range.py",
    "simulate/test_operators.py",
    "upgrades/test_dsl.py",
    "upgrades/test_windows.py",
)
"""Files with tests of which each has many cases that take long, such as programs on engines or verbs with changes."""
_OF_APPLICATIONS = ("copying", "embedded", "kafka", "sinks", "spark")
"""Rooms whose tests take whole applications, with a broker, Spark or a target, through something."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep the tests that share a JVM of Spark in one process; a module with a broker of its own names its group
    itself.

    There are two processes with Spark, one for tests/spark: all of these tests in one would take longest. Tests of a
    broker wait more than they work, so each file may be in a process of its own. Other files are in one process each,
    so that no other one makes what their tests share again, nor imports the same.
    """
    if (parts := _parts(item)) > 1 and item.get_closest_marker("skipif") is None:
        item.add_marker(rotation.by_turns(crc32(item.nodeid.encode()), parts))
    names = getattr(item, "fixturenames", ())
    for name in _SHARED:
        if name in names:
            item.add_marker(name)
    group = next((name for name in _SHARED if name in names), None)
    if group == "spark" and _OF_SPARK not in item.path.parents:
        group = "spark elsewhere"
    elif group == "broker":
        group = f"broker, {item.path.stem}"
    elif group is None and item.path.name not in _LONG:
        group = item.nodeid.partition("::")[0]
    if group is not None and item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(group))


def _parts(item: pytest.Item) -> int:
    """Return in how many days a test runs once.

    What is planted and was found once need not be found each day, and a rule that many suites or cases try need not be
    tried by each of them. Tests of whole applications take more than half of the time: half of them run each day.
    """
    if "_planted_" in getattr(item, "originalname", ""):
        return 3
    of_a_contract = getattr(item, "obj", _parts).__module__.startswith("penstock.plugins.testing.contracts.")
    file = item.path.relative_to(Path(__file__).parent).as_posix()
    is_of_matrix = hasattr(item, "callspec") and file in _MATRICES
    if (of_a_contract and file not in _EACH_DAY) or is_of_matrix or file.partition("/")[0] in _OF_APPLICATIONS:
        return 2
    return 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long ones: what shares the session first, then what starts JVMs.

    Tests of a broker wait more than they work: their groups are spread over all others but the last, so that at each
    time some processes work while others wait.
    """
    groups = [_waiting_group(item) for item in items]
    waiting = list(dict.fromkeys(filter(None, groups)))
    others = groups.count(None)
    seen = 0  # of the others

    def place(item: pytest.Item) -> tuple[bool, bool, float]:
        nonlocal seen
        group = _waiting_group(item)
        seen += group is None
        return (
            "spark" not in getattr(item, "fixturenames", ()),
            item.get_closest_marker("spark") is None and item.path.name not in _LONG,
            seen / others if group is None else 0.85 * waiting.index(group) / len(waiting),
        )

    items.sort(key=place)


def _waiting_group(item: pytest.Item) -> str | None:
    """Return the group of a test of a broker that starts no Spark."""
    marker = item.get_closest_marker("xdist_group")
    if marker is None or item.get_closest_marker("broker") is None or item.get_closest_marker("spark") is not None:
        return None
    return str(marker.args[0])


def pytest_collection_finish() -> None:
    """Keep no compiled module of a test: one that is written twice in a second would be the first one again.

    What was collected stays until the end, so the garbage collector need not look at its million objects.
    """
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()
    gc.enable()


def _log_levels() -> dict[str, tuple[int, bool, bool]]:
    """Return what decides whether a line of penstock's, or of the tests', is logged."""
    loggers = {"root": logging.getLogger()} | {
        name: logger
        for name, logger in logging.Logger.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in ("penstock", "tests")
    }
    return {name: (logger.level, logger.propagate, logger.disabled) for name, logger in loggers.items()}


@pytest.fixture(autouse=True)
def log_levels_are_left_alone() -> Iterator[None]:
    """Fail the test that leaves a logger with another level: a later test would miss lines, or find too many."""
    before = _log_levels()
    yield
    new = (logging.NOTSET, True, False)
    changed = {name: level for name, level in _log_levels().items() if level != before.get(name, new)}
    for name in changed:
        logger = logging.getLogger(None if name == "root" else name)
        level, logger.propagate, logger.disabled = before.get(name, new)
        logger.setLevel(level)
    assert not changed, f"loggers have another (level, propagate, disabled) than before the test: {changed}"


@pytest.fixture(autouse=True)
def stores_are_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves LMDB open in its directory: a task host would have it open for as long as it runs."""
    own = os.path.realpath(request.getfixturevalue("tmp_path")) if "tmp_path" in request.fixturenames else None
    yield
    if own is not None:
        wait_until(lambda: not any(each.startswith(f"{own}/") for each in list(registry._environments)), seconds=10)


OF_OTHER_QUERIES = {
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.encodingFormat": "avro",
    "spark.sql.streaming.stopActiveRunOnRestart": "false",
}
"""What a given session may have for other queries. The query of an application would fail with the first two."""


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The SparkSession of all tests that need one: a process can have only one, and a start takes seconds."""
    from penstock.plugins.spark.sessions import make_session

    session = make_session("local[2]", OF_OTHER_QUERIES)
    yield session
    session.stop()


@pytest.fixture
def runs_here(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `penstock run` and scripts in this process use its session: each application would start a JVM."""
    from penstock.plugins.spark import runner

    run_order = runner.run_order

    def run_in_it(application: Any, order: Any, *, session: Any = None, **options: Any) -> Any:
        return run_order(application, order, session=session or spark, **options)

    monkeypatch.setattr(runner, "run_order", run_in_it)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """The Kafka broker of all tests that need one, in all processes; names are made by `fresh_name`. Tests that stop,
    kill or freeze a broker have one of their own. Skips them where there is no Java."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent  # that of each process is below that of the run
    with ExitStack() as stack:
        try:
            shared = stack.enter_context(shared_broker(directory / "broker"))
        except RuntimeUnavailableError as error:
            pytest.skip(str(error))
        yield shared
