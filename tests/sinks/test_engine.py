"""External sinks on the embedded engine and in the test driver: each record once, whatever fails between two steps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    ConfigError,
    DeadLetter,
    FencedError,
    ProductionError,
    Retry,
    Running,
    SinkError,
    SinkMovedError,
    SinkPosition,
    SinkUnavailableError,
    Topology,
    TopologyError,
    run,
    skip,
)
from penstock.dsl import StreamsBuilder
from penstock.testing import MemorySink, TopologyTestDriver
from penstock.testing.profiling import profile
from penstock.testing.simulation import SimulatedCluster

from ..processes import opened_workers
from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .programs import Times, Wrapped, direct, expected, rows, through_outbox, written

PROGRAMS = {"direct": direct, "through a topic": through_outbox}


@pytest.fixture
def target() -> Iterator[MemorySink]:
    sink = MemorySink("target")
    yield sink
    sink.forget()


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 3})
        yield made


def application(surroundings: Surroundings, topology: Any, **settings: Any) -> Application:
    return surroundings.application("app", topology, **{"engine": "embedded", "commit_interval": "10ms", **settings})


def _has_written(running: Running, target: MemorySink, count: int) -> bool:
    return len(target.records) >= count or running.state == "failed"


@pytest.mark.parametrize("trigger", ["available_now", "continuous", "0s"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_record_is_written_once(
    surroundings: Surroundings, target: MemorySink, trigger: str, program: str
) -> None:
    # The target fails before some writes, and after others, when nobody can say whether it has written.
    flaky = Wrapped(target, Times(1, 4, 5), Times(2, 3, 6))
    change: Callable[[str], str] = str if program == "direct" else str.upper
    given = application(surroundings, PROGRAMS[program](flaky), commit_bytes=2_000)
    for start in (0, 60):
        surroundings.put("in", rows(range(start, start + 60)))
        with given.start(trigger) as running:
            wait_until(partial(_has_written, running, target, start + 60), "all is written")
        running.wait()
        assert written(target) == expected(range(start + 60), change)
    for key in {record.key for record in target.records}:
        numbers = [int(record.value[1:]) for record in target.records if record.key == key]
        assert numbers == sorted(numbers)


def test_a_topic_lies_between_unless_a_source_has_nothing_else(target: MemorySink) -> None:
    builder = StreamsBuilder()
    first = builder.stream("first")
    first.to_sink(target, "one")
    second = builder.stream("second")
    second.to_sink(target, "two")
    second.to("copy")
    builder.stream("third").to_sink(target, "three")
    builder.stream("third").to("more")
    program = Application("app", builder).program
    assert set(program.internal_topics) == {"two-repartition", "three-repartition"}
    parents = {name: node.parents for name, node in program.nodes.items()}
    assert parents["two"] == ("two-repartition-source",)
    assert program.nodes[parents["one"][0]].topics == ("first",)  # type: ignore[union-attr]


def test_a_sink_in_the_processor_api(target: MemorySink) -> None:
    topology = Topology().add_source("in", "in").add_external_sink("rows", target, "in").add_sink("copy", "out", "in")
    with TopologyTestDriver(topology, reopen_tasks=True) as driver:
        driver.pipe("in", "a", "1")
        driver.pipe("in", None, "2", headers=(("h", b"x"),))
        assert [(each.key, each.value, each.headers) for each in target.records] == [
            ("a", "1", ()), (None, "2", (("h", b"x"),)),
        ]  # fmt: skip
        assert [record.value for record in driver.read_all("out")] == ["1", "2"]


def test_a_sink_by_name(target: MemorySink) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to_sink("memory", "rows", table="target")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", "a", "1")
    assert target.values() == ["1"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda stream: stream.to_sink(3, "x"), "expected a Sink, or the name of an installed one; found 3"),
        (
            lambda stream: stream.to_sink("acme.none", "x"),
            "no sink named 'acme.none' is installed; installed: .*memory",
        ),
        (lambda stream: stream.to_sink("memory", "x", colour=1), "sink 'memory' with options \\['colour'\\]"),
        (lambda stream: stream.to_sink(MemorySink("x"), "x", colour=1), "is one already"),
        (lambda stream: stream.to_sink(MemorySink("x"), None), "to_sink: expected a name"),
    ],
)
def test_mistakes_in_programs(make: Any, said: str) -> None:
    with pytest.raises(Exception, match=said):
        make(StreamsBuilder().stream("in"))


def test_mistakes_in_topologies(target: MemorySink) -> None:
    topology = Topology().add_source("in", "a", "b").add_source("other", "c")
    with pytest.raises(TopologyError, match=r"must be those of one topic.*add_external_sink\('rows'"):
        topology.add_direct_sink("rows", target, "in")
    topology.add_direct_sink("rows", target, "other")
    with pytest.raises(
        TopologyError, match="is an external sink, which has no children; name the source above it, 'ot"
    ):
        topology.add_sink("out", "out", "rows")


# ---------------------------------------------------------------------------------------- a target that is away


def test_other_tasks_go_on_while_a_target_is_away(
    surroundings: Surroundings, target: MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.to_sink(target, "target")
    stream.map_values(str.upper).to("out")
    surroundings.create(out=1)
    surroundings.put("in", rows(range(20)))
    target.is_away = True
    for trigger in ("continuous", "0s"):
        with application(surroundings, builder).start(trigger) as running:
            wait_until(lambda: sum(map(len, surroundings.read("out").values())) == 20, "the other sink has all")
            wait_until(lambda: "external sink 'target': memory sink 'target': it is away" in caplog.text)
            assert not target.records
        running.wait()
    target.is_away = False
    assert run(application(surroundings, builder)).records_in > 0
    assert written(target) == expected(range(20), str)


def test_the_test_driver_says_that_a_target_is_away(target: MemorySink) -> None:
    with TopologyTestDriver(direct(target)) as driver:
        target.is_away = True
        with pytest.raises(SinkUnavailableError, match="external sink 'target': memory sink 'target': it is away"):
            driver.pipe("in", "a", "1")
        target.is_away = False
        driver.pipe("in", "a", "2")
        assert target.values() == ["1", "2"]


# ---------------------------------------------------------------------------------------- records that it refuses


class Refusing:
    """Refuses values by their text."""

    def __init__(self, *values: str) -> None:
        self.values = values

    def __call__(self, record: Any) -> str:
        return f"value {record.value} does not fit" if record.value in self.values else ""


def bad(*values: str) -> MemorySink:
    return MemorySink("target", refuses=Refusing(*values))


@pytest.mark.parametrize("trigger", ["available_now", "continuous"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_refused_records_go_where_the_handler_says(
    surroundings: Surroundings, target: MemorySink, trigger: str, program: str
) -> None:
    change: Callable[[str], str] = str if program == "direct" else str.upper
    numbers = {3, 4, 17, 18, 40, 59}
    surroundings.create(dead=1)
    surroundings.put("in", rows(range(60)))
    given = application(
        surroundings, PROGRAMS[program](bad(*(change(f"v{each}") for each in numbers))),
        production_handler=DeadLetter("dead"),
    )  # fmt: skip
    with given.start(trigger) as running:
        wait_until(
            lambda: running.state == "failed" or (len(target.records), len(surroundings.read("dead")[0])) >= (54, 6)
        )
    running.wait()
    assert written(target) == expected(set(range(60)) - numbers, change)
    letters = [value for _, value, _ in surroundings.read("dead")[0]]
    assert sorted(map(str, letters)) == sorted(change(f"v{each}") for each in numbers)


def test_a_dead_letter_is_not_lost_where_the_target_is_ahead_of_the_log(
    surroundings: Surroundings, target: MemorySink
) -> None:
    # Commits of the log fail after the target has written: what follows on a refused record must not be there yet.
    surroundings.create(dead=1)
    surroundings.put("in", rows(range(8)), partition=0)
    given = application(
        surroundings, direct(Wrapped(bad("v3"), after=Times(*range(1, 30, 2)))), production_handler=DeadLetter("dead")
    )
    run(given)
    assert written(target) == expected(set(range(8)) - {3}, str)
    assert [value for _, value, _ in surroundings.read("dead")[0]] == ["v3"]


def test_a_refused_record_ends_the_run_by_default(surroundings: Surroundings, target: MemorySink) -> None:
    surroundings.put("in", rows(range(8)), partition=0)
    with pytest.raises(
        ProductionError,
        match="task 0_0, node 'target' while writing to memory sink 'target', at topic 'in' partition 0 offset 5: "
        "value v5 does not fit",
    ):
        run(application(surroundings, direct(bad("v5"))))
    assert written(target) == expected(range(5), str)
    assert run(application(surroundings, direct(target), production_handler=skip)).records_in > 0
    assert written(target) == expected(range(8), str)


def test_a_retry_asks_the_target_again(target: MemorySink) -> None:
    class Late:
        asked = 0

        def __call__(self, record: Any) -> str:
            Late.asked += record.value == "late"
            return "too early" if record.value == "late" and Late.asked < 4 else ""

    sink = MemorySink("target", refuses=Late())
    with TopologyTestDriver(direct(sink), production_handler=Retry(attempts=5)) as driver:
        driver.pipe_all("in", [("a", "early"), ("a", "late"), ("a", "later")])
    assert target.values() == ["early", "late", "later"]


# ---------------------------------------------------------------------------------------- positions


def place_of(sink: MemorySink) -> Any:
    (place,) = sink.positions
    return place


def test_a_zombie_writes_nothing_twice(surroundings: Surroundings, target: MemorySink) -> None:
    given = application(surroundings, direct(target))
    surroundings.put("in", rows(range(6)), partition=0)
    log = surroundings.log
    with opened_workers(given, log) as (zombie, *_), opened_workers(given, log) as (successor, *_):
        ends = log.end_offsets(zombie.partitions)
        zombie.run_batch(ends, 0)
        surroundings.put("in", rows(range(6, 9)), partition=0)
        ends = log.end_offsets(zombie.partitions)
        successor.run_batch({}, 0)  # it takes the fence, and reads the position
        # The zombie did not ask whether it is current: it was frozen in front of its write.
        with pytest.raises(FencedError):
            zombie.try_batch(ends, 0, is_current=True)
        assert written(target) == expected(range(9), str)  # the same records as the successor's
        with pytest.raises(FencedError, match="another process has run the task meanwhile"):
            successor.try_batch(ends, 0, is_current=True)
        successor.run_batch(ends, 0)
    assert written(target) == expected(range(9), str)


def test_a_target_behind_the_log_is_refused(surroundings: Surroundings, target: MemorySink) -> None:
    given = application(surroundings, direct(target))
    surroundings.put("in", rows(range(6)), partition=0)
    run(given)
    place = place_of(target)
    position = target.positions[place]
    assert position.next_offset == 6 and position.topic_id
    target.positions[place] = SinkPosition(position.topic_id, 4)
    with pytest.raises(
        SinkError, match="its position in topic 'in', partition 0, is 4, and a commit has passed 6: the"
    ):
        run(given)
    del target.positions[place]
    with pytest.raises(SinkError, match="is not there, and a commit has passed 6"):
        run(given)
    target.positions[place] = SinkPosition(position.topic_id, 9)
    with pytest.raises(SinkError, match="its position in in-0 is 9, and the log ends at 6: the log"):
        run(given)
    target.positions[place] = position
    surroundings.put("in", rows(range(6, 8)), partition=0)
    run(given)
    assert written(target) == expected(range(8), str)


def test_a_topic_that_was_made_again_is_refused(surroundings: Surroundings, target: MemorySink) -> None:
    surroundings.put("in", rows(range(6)), partition=0)
    run(application(surroundings, direct(target)))
    surroundings.log.delete_topic("in")
    surroundings.create(**{"in": 3})
    surroundings.put("in", rows(range(6, 9)), partition=0)
    again = application(surroundings, direct(target), offset_out_of_range="earliest")
    with pytest.raises(SinkError, match="external sink 'target'.*the topic was deleted and made again"):
        run(again)
    target.forget()  # as the message says
    run(again)
    assert written(target) == expected(range(6, 9), str)


def test_moved_is_a_takeover_and_not_an_error_of_the_run(surroundings: Surroundings, target: MemorySink) -> None:
    surroundings.put("in", rows(range(30)))
    flaky = Wrapped(target, before=Times(2, 3, error=SinkMovedError))
    run(application(surroundings, direct(flaky)))
    assert written(target) == expected(range(30), str)


def test_a_log_line_in_a_minute_while_a_target_is_away(
    surroundings: Surroundings, target: MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    surroundings.put("in", rows(range(3)), partition=0)
    seen = threading.Event()
    flaky = Wrapped(target, before=Times(*range(1, 6)), after=lambda records: seen.set())
    with caplog.at_level(logging.WARNING, "penstock.worker"), application(surroundings, direct(flaky)).start("0s"):
        assert seen.wait(60)
    lines = [line for line in caplog.messages if "attempt" in line]
    assert lines[0].endswith("attempt 1 failed; again in 100 ms")


# ---------------------------------------------------------------------------------------- programs that are run aside


def test_the_test_driver_takes_other_targets(target: MemorySink) -> None:
    other = MemorySink("other")
    with TopologyTestDriver(direct(target), sinks={"target": other}, reopen_tasks=True) as driver:
        driver.pipe("in", "a", "1")
        driver.pipe("in", "a", "2")
    assert other.values() == ["1", "2"] and target.values() == []
    other.forget()
    with pytest.raises(ConfigError, match="sinks: 'rows': no external sink of the program; there is: 'target'"):
        TopologyTestDriver(direct(target), sinks={"rows": other})


def test_a_look_at_a_stream_writes_nothing(target: MemorySink) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.to_sink(target, "target")
    assert list(stream.to_pandas({"in": [("a", "1", 0)]})["value"]) == ["1"]
    assert target.values() == []


def test_a_profile_writes_nothing(target: MemorySink) -> None:
    found = profile(through_outbox(target), {"in": [(f"k{number}", "v") for number in range(50)]}, once=True)
    assert found.error is None
    assert "target" in str(found)
    assert target.values() == []


def test_a_simulation_writes_nothing(target: MemorySink) -> None:
    with SimulatedCluster(through_outbox(target), partitions=1) as cluster:
        for number in range(5):
            cluster.pipe("in", "k", f"v{number}")
        cluster.freeze(1, before="commit")
        cluster.work()
        cluster.move("1_0", 2)
        cluster.work()
        cluster.wake(1)
        cluster.settle()
        cluster.pipe("in", "k", "v")
        cluster.settle()
    assert target.values() == []
