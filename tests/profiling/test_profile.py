"""`profile`: real runs, whose counts are known. No test looks at how fast the machine is."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from penstock import (
    Application,
    ConfigError,
    Log,
    OutputBatch,
    PenstockError,
    Processor,
    Record,
    RuntimeUnavailableError,
    TopicPartition,
    Topology,
    UnknownTopicError,
    run,
    skip,
)
from penstock.plugins.engine.task.locations import open_log
from penstock.task.compiling import Nodes
from penstock.task.progress import TaskProgress
from penstock.task.task import Task
from penstock.testing import TopologyTestDriver
from penstock.testing.profiling import NodeProfile, Profile, profile

from .programs import Slow, many_kinds, word_count

LINES = [(None, f"word{number % 7} of many{number % 3} in a line", number * 10) for number in range(300)]
WORDS = [(f"k{number % 5}", f"v{number}", number * 10) for number in range(400)]
NAMES = [(f"k{number}", f"name {number}", 0) for number in range(5)]


def by_name(found: Profile) -> dict[str, NodeProfile]:
    return {each.name: each for each in found.nodes}


def counts(found: Profile) -> dict[str, tuple[int, int, int]]:
    return {each.name: (each.records_in, each.records_out, each.dropped) for each in found.nodes}


def counts_of_driver(program: Any, records: dict[str, list[Any]], **options: Any) -> dict[str, tuple[int, int, int]]:
    """Return the counts of the test driver for the same records."""
    partitions = options.pop("partitions", 1)
    with TopologyTestDriver(program, partitions=partitions, commit_every=1_000_000, **options) as driver:
        driver.pipe_many(records)
        found = driver.metrics()
    return {name: (each.records_in, each.records_out, sum(each.dropped.values())) for name, each in found.items()}


@pytest.fixture(scope="module")
def of_kinds() -> Profile:
    return profile(many_kinds(), {"names": NAMES, "words": WORDS})


def test_the_slow_node_is_the_top(of_kinds: Profile) -> None:
    top = max(of_kinds.nodes, key=lambda each: each.seconds or 0.0)
    assert (top.name, top.kind) == ("slow", "Slow")
    # 80 ms of work; a busy machine may stop the process anywhere, in either run.
    assert top.own_seconds is not None and 0.03 < top.own_seconds < of_kinds.seconds
    assert top.own_seconds / of_kinds.phases["nodes"] > 0.5
    assert of_kinds.error is None and of_kinds.records == 400


def test_counts_are_those_of_the_driver(of_kinds: Profile) -> None:
    expected = counts_of_driver(many_kinds(), {"names": NAMES, "words": WORDS})
    found = counts(of_kinds)
    # The driver's wall clock stands still, and a profile moves it once, so that each of two schedules is called.
    assert found.pop("ticked") == (2, 2, 0) and expected.pop("ticked") == (0, 0, 0)
    ticks, of_driver = found.pop("ticks"), expected.pop("ticks")
    assert ticks == (400, 2, 0) and of_driver == (400, 0, 0)
    assert found == expected


def test_calls_of_stores_are_counted_by_node(of_kinds: Profile) -> None:
    nodes = by_name(of_kinds)
    [counted] = nodes["count"].stores
    assert (counted.store, dict(counted.calls)) == ("counts", {"get": 400, "put": 400})
    [seen] = nodes["seen"].stores
    # Forty scans of five entries, each of which is one step more: its end.
    assert dict(seen.calls) == {"get": 400, "range": 40, "range entries": 40 * 6}
    [named] = nodes["loud"].stores
    assert (named.store, dict(named.calls)) == ("names", {"get": 400})
    stores = {each.name: dict(each.calls) for each in of_kinds.stores}
    assert stores["counts"] == {"get": 800, "put": 400, "range": 40, "range entries": 240}
    assert all(each.seconds > 0 for each in of_kinds.stores if each.calls)
    assert next(each for each in of_kinds.stores if each.name == "counts").commit_seconds > 0


def test_punctuators_and_timers_are_counted_and_are_their_nodes_time(of_kinds: Profile) -> None:
    ticks = by_name(of_kinds)["ticks"]
    # Every 10 ms there is a record, and a punctuator with each. A timer is due before the next record, but for the last
    # one. The wall clock has two schedules.
    assert ticks.schedule_calls == 400 + 399 + 2
    assert ticks.own_seconds is not None and ticks.own_seconds > 0.3 * 800 * 10e-6


def test_serdes_are_timed_where_they_do_something(of_kinds: Profile) -> None:
    nodes = by_name(of_kinds)
    assert nodes["in"].serde_seconds > 0  # decoding
    assert nodes["out"].serde_seconds > 0  # JSON
    assert nodes["ticked"].serde_seconds == 0  # text, which C encodes


def test_a_global_store_has_counts_and_no_time(of_kinds: Profile) -> None:
    fill = by_name(of_kinds)["fill"]
    assert (fill.records_in, fill.own_seconds, fill.seconds) == (5, None, None)
    assert "global store" in fill.kind


def test_phases_add_up(of_kinds: Profile) -> None:
    assert sum(of_kinds.phases.values()) == pytest.approx(of_kinds.seconds, rel=0.01)
    assert list(of_kinds.phases)[:6] == ["read", "decode", "nodes", "stores", "sinks", "loop"]
    assert all(of_kinds.phases[each] > 0 for each in ("nodes", "stores", "sinks", "commit", "changelog"))
    divided = sum(each.own_seconds or 0.0 for each in of_kinds.nodes)
    sinks = [each for each in of_kinds.nodes if each.kind.startswith("sink")]
    own_of_sinks = sum(each.own_seconds or 0.0 for each in sinks)
    assert divided - own_of_sinks == pytest.approx(of_kinds.phases["nodes"], rel=0.01)
    encoding = own_of_sinks + sum(each.serde_seconds for each in sinks)
    assert encoding == pytest.approx(of_kinds.phases["sinks"], rel=0.01)


def test_functions_of_the_user_are_named(of_kinds: Profile) -> None:
    busiest = of_kinds.functions[0]
    assert (busiest.name, Path(busiest.file).name) == ("busy", "programs.py")
    assert busiest.own_seconds > 0.3 * sum(of_kinds.stacks.values())
    process = next(each for each in of_kinds.functions if each.name == "Slow.process")
    # `busy` is called by it, and the nodes below it are, too.
    assert process.total_seconds > process.own_seconds
    assert not any("penstock" in each.file or "site-packages" in each.file for each in of_kinds.functions)


def test_frames_of_a_flame_graph_are_nodes_and_functions(of_kinds: Profile, tmp_path: Path) -> None:
    of_kinds.write_flame(str(tmp_path / "flame.json"))
    document = json.loads((tmp_path / "flame.json").read_text())
    [only] = document["profiles"]
    names = [each["name"] for each in document["shared"]["frames"]]
    stacks = [[names[each] for each in sample] for sample in only["samples"]]
    # The nodes are below each other, as they forward.
    assert any(
        [each for each in stack if each.startswith("node ")][:2] == ["node once", "node slow"] for stack in stacks
    )
    assert any(stack[-1].startswith("busy (programs.py:") for stack in stacks)
    assert len(only["weights"]) == len(stacks) and sum(only["weights"]) == pytest.approx(only["endValue"])
    assert document["$schema"].endswith("file-format-schema.json")
    of_kinds.write_flame(str(tmp_path / "flame.folded"))
    lines = (tmp_path / "flame.folded").read_text().splitlines()
    assert len(lines) == len(stacks)
    assert all(line.rpartition(" ")[2].isdigit() for line in lines)


def test_the_verbs_of_a_dsl_program_are_named() -> None:
    found = profile(word_count(), {"lines": LINES}, partitions=2)
    assert found.error is None and found.records == 300
    kinds = [(each.kind, [text.partition(" ")[0] for text in each.functions]) for each in found.nodes]
    assert ("flat_map_values", ["<lambda>"]) in kinds and ("filter", ["is_long"]) in kinds
    assert ("map_values", ["shouted"]) in kinds and ("map_values", ["str"]) in kinds and ("count", []) in kinds
    assert ("sink totals", []) in kinds


def test_counts_of_a_dsl_program_over_partitions_are_those_of_the_driver() -> None:
    application = Application("counts", word_count(), statestore_cache_max_bytes=0)
    found = profile(application, {"lines": LINES}, partitions=2)
    assert counts(found) == counts_of_driver(application, {"lines": LINES}, partitions=2)


def test_what_a_record_cache_forwards_is_the_time_of_its_node() -> None:
    """The nodes below a cached store run inside its `put`, when the cache is full: no time of the store."""
    builder = word_count()
    application = Application("counts", builder, statestore_cache_max_bytes=2_000)
    found = profile(application, {"lines": LINES})
    nodes = {each.kind: each for each in found.nodes}
    assert nodes["sink totals"].records_in > 3, "the cache was flushed on the way"
    assert nodes["to_stream"].own_seconds and nodes["sink totals"].own_seconds
    assert nodes["count"].records_out == nodes["to_stream"].records_in
    sinks = sum((each.own_seconds or 0.0) + each.serde_seconds for each in found.nodes if each.kind.startswith("sink"))
    assert sinks == pytest.approx(found.phases["sinks"], rel=0.01)


class Fails(Processor):
    def process(self, record: Record) -> None:
        if record.value == "v70":
            raise ValueError("not this one")
        self.context.forward(record)


def failing() -> Topology:
    topology = Topology().add_source("in", "words").add_processor("slow", Slow, "in")
    return topology.add_processor("fails", Fails, "slow").add_sink("out", "out", "fails")


def test_a_program_that_fails_is_profiled_up_to_there() -> None:
    found = profile(failing(), {"words": WORDS})
    assert isinstance(found.error, PenstockError) and "not this one" in str(found.error)
    assert counts(found)["slow"] == (71, 71, 0) and counts(found)["out"] == (70, 70, 0)
    slow = by_name(found)["slow"]
    assert slow.own_seconds is not None and slow.own_seconds > 0.3 * 71 * 200e-6
    assert found.phases["nodes"] >= slow.own_seconds * 0.99


def test_records_that_are_skipped_count_as_dropped() -> None:
    application = Application("skips", failing(), processing_handler=skip)
    found = profile(application, {"words": WORDS})
    assert found.error is None and counts(found)["fails"] == (400, 399, 1)


calls = 0


class Calls(Processor):
    def process(self, record: Record) -> None:
        global calls
        calls += 1


@pytest.mark.parametrize(("once", "times"), [(False, 3), (True, 1)])
def test_how_often_functions_are_called(once: bool, times: int) -> None:
    global calls
    calls = 0
    topology = Topology().add_source("in", "words").add_processor("calls", Calls, "in")
    found = profile(topology, {"words": WORDS}, once=once)
    assert calls == times * len(WORDS)
    assert (found.overhead is None) is once
    assert (found.seconds == found.hooked_seconds) is once


def test_commits_come_as_often_as_told() -> None:
    assert profile(failing_not(), {"words": WORDS}, once=True).commits == 1
    assert profile(failing_not(), {"words": WORDS}, once=True, commit_every=100).commits == 4


def failing_not() -> Topology:
    return Topology().add_source("in", "words").add_processor("slow", Slow, "in").add_sink("out", "out", "slow")


def test_the_cost_of_the_hooks_is_said_and_is_small_beside_a_slow_node() -> None:
    found = profile(failing_not(), {"words": WORDS})
    assert found.overhead is not None and found.overhead < 0.5
    assert found.hooked_cpu_seconds > 0 and found.cpu_seconds > 0


def test_without_samples_the_rest_is_there() -> None:
    profiles: list[Profile] = []
    thread = Thread(target=lambda: profiles.append(profile(failing_not(), {"words": WORDS}, once=True)))
    thread.start()
    thread.join()
    [found] = profiles
    assert "main thread" in found.why_no_samples and not found.functions
    assert counts(found)["slow"] == (400, 400, 0)
    with pytest.raises(RuntimeUnavailableError, match="no flame graph: .*main thread"):
        found.write_flame("flame.json")


def test_a_signal_that_something_else_uses_is_left_alone() -> None:
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    try:
        mine = signal.getsignal(signal.SIGALRM)
        found = profile(failing_not(), {"words": WORDS[:10]}, once=True)
        assert "SIGALRM" in found.why_no_samples and signal.getsignal(signal.SIGALRM) is mine
    finally:
        signal.signal(signal.SIGALRM, before)


def test_nothing_is_left_of_the_hooks() -> None:
    profile(failing_not(), {"words": WORDS[:10]})
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert (Task.nodes_class, Task.progress_class) == (Nodes, TaskProgress)


# ---------------------------------------------------------------------- the log of an application


@pytest.fixture
def application(tmp_path: Path) -> Application:
    made = Application(
        "app", word_count(), log="local:log", data_dir=str(tmp_path), statestore_cache_max_bytes=0, engine="embedded"
    )
    with closing(open_log(made.settings)) as log:
        log.create_topic("lines", 2)
        log.create_topic("totals", 1)
        for number in range(2):
            values = [f"word{each % 7} from {number}" for each in range(200)]
            times = [each * 1000 for each in range(200)]
            log.append(
                OutputBatch(
                    "lines", [None] * 200, [each.encode() for each in values], times, partitions=[(number,)] * 200
                )
            )
    return made


def state_of(log: Log, directory: Path) -> Any:
    topics = {name: info.partitions for name, info in log.topics().items()}
    partitions = [TopicPartition(name, each) for name, count in topics.items() for each in range(count)]
    files = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and "lock" not in path.name
    }
    return topics, dict(log.end_offsets(partitions)), dict(log.committed("app", partitions)), files


def test_the_application_is_untouched(application: Application, tmp_path: Path) -> None:
    run(application)
    with closing(open_log(application.settings)) as log:
        before = state_of(log, tmp_path)
    found = profile(application)
    with closing(open_log(application.settings)) as log:
        after = state_of(log, tmp_path)
    assert found.records == 400 and after[:3] == before[:3]
    assert after[3] == before[3], "no file of log, changelog and state was written"


def taken(application: Application, **options: Any) -> list[str]:
    """Return the values that a profile of these options processes, in order."""
    found: list[str] = []

    class Note(Processor):
        def process(self, record: Record) -> None:
            found.append(f"{record.timestamp} {record.value.rpartition(' ')[2]}")

    topology = Topology().add_source("in", "lines").add_processor("note", Note, "in")
    noting = Application("app", topology, log="local:log", data_dir=application.settings.data_dir)
    profile(noting, once=True, **options)
    return sorted(found, key=lambda each: (each.partition(" ")[2], int(each.partition(" ")[0])))


def test_which_records_are_taken(application: Application) -> None:
    assert len(taken(application)) == 400
    newest = taken(application, limit=6)
    assert newest == ["197000 0", "198000 0", "199000 0", "197000 1", "198000 1", "199000 1"]
    assert taken(application, limit=4, from_beginning=True) == ["0 0", "1000 0", "0 1", "1000 1"]
    assert taken(application, limit=2, since_ms=49_500) == ["50000 0", "50000 1"]
    assert taken(application, limit=1) == ["199000 1"] or taken(application, limit=1) == ["199000 0"]


def test_a_compacted_topic_is_a_table_and_read_whole(application: Application) -> None:
    with closing(open_log(application.settings)) as log:
        log.create_topic("table", 1, {"cleanup.policy": "compact"})
        keys = [str(each).encode() for each in range(50)]
        log.append(OutputBatch("table", list(keys), list(keys), [0] * 50))
    topology = Topology().add_source("in", "lines").add_source("table", "table")
    topology.add_processor("slow", Slow, "in").add_processor("other", Calls, "table")
    noting = Application("app", topology, log="local:log", data_dir=application.settings.data_dir)
    found = profile(noting, limit=4, once=True)
    assert counts(found)["in"] == (4, 4, 0) and counts(found)["table"] == (50, 50, 0)


def test_errors_say_what_to_do(application: Application, tmp_path: Path) -> None:
    other = Application("app", failing_not(), log="local:log", data_dir=str(tmp_path))
    with pytest.raises(
        UnknownTopicError, match=r"reads topic 'words', which the log 'local:log' does not have.*--file"
    ):
        profile(other)
    with closing(open_log(application.settings)) as log:
        log.create_topic("words", 1)
    with pytest.raises(ConfigError, match=r"nothing to profile: no records in its source topics \('words'\)"):
        profile(other)
    with pytest.raises(ConfigError, match="nothing to profile"):
        profile(application, since_ms=10**12)
    with pytest.raises(UnknownTopicError, match="no source reads topic 'word'; did you mean"):
        profile(other, {"word": WORDS})
    with pytest.raises(ConfigError, match="limit: expected a number of records from 1 on, found 0"):
        profile(other, {"words": WORDS}, limit=0)
    with pytest.raises(ConfigError, match="commit_every: expected a number of records from 1 on, found 0"):
        profile(other, {"words": WORDS}, commit_every=0)
    found = profile(other, {"words": WORDS}, once=True)
    with pytest.raises(ConfigError, match=r"flame.svg: expected a name that ends with .json"):
        found.write_flame("flame.svg")
    with pytest.raises(ConfigError, match="there is no directory"):
        found.write_flame("nowhere/flame.json")


@pytest.mark.parametrize("changelog", ["topic:", "directory:changelog", "memory:m"])
@pytest.mark.parametrize("backend", ["lmdb", "memory"])
def test_changelogs_and_backends_are_the_applications(changelog: str, backend: str) -> None:
    application = Application(
        "counts", word_count(), changelog=changelog, store_backend=backend, statestore_cache_max_bytes=0
    )
    found = profile(application, {"lines": LINES}, once=True)
    assert found.error is None
    assert found.phases["changelog" if changelog[0] == "d" else "commit"] > 0
