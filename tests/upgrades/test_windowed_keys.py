"""A topic of windowed keys keeps the partitioner with which an application has written it, until its sink says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import Processor, Record, Topology, Windowed, default_partitioner
from penstock.plugins.dsl import StreamsBuilder, sessions, tumbling
from penstock.plugins.engine.program.plan import made_plan, offline_log
from penstock.plugins.engine.program.preparation import check_program
from penstock.plugins.engine.program.reset import plan_reset, reset, to_earliest
from penstock.plugins.operate.cli.plan import _print
from penstock.plugins.testing.contracts.log_tests import everything

from .restarts import Restarts, Row

NAMES = [f"k{number}" for number in range(20)]
MANY = 50


def rows(time: int) -> list[Row]:
    return [("left", name, "v", time) for name in NAMES]


def counts(*topics: Any, windows: Any = None, **options: Any) -> StreamsBuilder:
    """Return a program that writes counts of windows to topics."""
    builder = StreamsBuilder()
    grouped = builder.stream("left").group_by_key().windowed_by(windows or tumbling("5s", grace="1s"))
    made = grouped.count("kept").to_stream()
    for topic in topics:
        made.to(topic, value_serde="int", **options)
    return builder


class InWindow(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_key(Windowed(record.key, record.timestamp, record.timestamp + 5_000)))


def choosing(**options: Any) -> Topology:
    """Return a program that chooses the topic of each windowed key."""
    topology = Topology().add_source("in", "left", key_serde="str", value_serde="str")
    topology.add_processor("window", InWindow, "in")
    return topology.add_sink(
        "out", lambda record, metadata: "many", "window", key_serde="windowed:str:5s", value_serde="str", **options
    )


class Life:
    """An application on a log that starts again and again. `seen` has the parts of keys that chose partitions."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.restarts = Restarts(directory, **settings)
        self.log = self.restarts.log
        for topic in ("many", "more"):
            self.log.create_topic(topic, MANY)
        self.time = 0
        self._read = dict.fromkeys(("many", "more"), 0)

    def start(self, program: Any) -> None:
        self.restarts.start(program, rows(self.time))
        self.time += 10_000

    def becomes_older(self) -> None:
        """Let the log have what a version saved that knew one partitioner only."""
        note = json.loads(self.log.get_meta("app", "program") or b"")
        del note["whole_keys"]
        self.log.put_meta("app", "program", json.dumps(note).encode())

    def partitioned(self, topic: str = "many") -> str:
        """Return how the records since the last call are partitioned: "key", or "window" for key and window."""
        found = everything(self.log, topic)
        new = [each for each in found if each.timestamp >= self._read[topic]]
        self._read[topic] = self.time
        size = 16 if len(new[0].key or b"") > 11 else 8
        pairs = [(each.key or b"", each.partition) for each in new]
        by_key = all(default_partitioner(key[:-size], MANY) == partition for key, partition in pairs)
        by_window = all(default_partitioner(key, MANY) == partition for key, partition in pairs)
        assert by_key != by_window
        return "key" if by_key else "window"

    def plan(self, program: Any) -> Any:
        return made_plan(self.restarts.application(program), self.log)[0]


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


@pytest.fixture
def older(life: Life) -> Life:
    """One that a version has run that partitioned by key and window."""
    life.start(counts("many", partition_by=lambda key: key))
    life.becomes_older()
    assert life.partitioned() == "window"
    return life


def test_a_new_application_partitions_by_the_key(life: Life) -> None:
    assert life.plan(counts("many")).whole_keys == ()
    for _ in range(2):
        life.start(counts("many"))
        assert life.partitioned() == "key"


@pytest.mark.parametrize(
    "windows", [tumbling("5s", grace="1s"), sessions(gap="2s", grace="1s")], ids=["time", "session"]
)
def test_an_older_one_keeps_key_and_window(life: Life, windows: Any) -> None:
    life.start(counts("many", windows=windows, partition_by=lambda key: key))
    life.becomes_older()
    life.partitioned()
    for _ in range(2):
        assert life.plan(counts("many", windows=windows)).whole_keys == ("many",)
        life.start(counts("many", windows=windows))
        assert life.partitioned() == "window"


def test_until_it_is_told_otherwise(older: Life) -> None:
    by_key = counts("many", partition_by=lambda key: key.key)
    assert (older.plan(by_key).whole_keys, older.plan(by_key).left_whole_keys) == ((), ("many",))
    older.start(by_key)
    assert older.partitioned() == "key"
    for program in (by_key, counts("many")):
        assert (older.plan(program).whole_keys, older.plan(program).left_whole_keys) == ((), ())
        older.start(program)
        assert older.partitioned() == "key"


def test_key_and_window_can_be_said(older: Life) -> None:
    said = counts("many", partition_by=lambda key: key)
    older.start(said)
    assert older.partitioned() == "window"
    assert older.plan(said).whole_keys == ()


def test_a_topic_that_is_added_later_goes_by_the_key(older: Life) -> None:
    older.start(counts("many"))
    assert older.partitioned() == "window"
    older.start(counts("many", "more"))
    assert (older.partitioned("many"), older.partitioned("more")) == ("window", "key")


def test_a_topic_that_is_left_out_for_a_while_keeps_it(older: Life) -> None:
    for program in (counts("many"), counts("more"), counts("many")):
        older.start(program)
    assert older.partitioned() == "window"


def test_a_reset_keeps_it(older: Life) -> None:
    """The topic still has the rows that were written before."""
    older.start(counts("many"))
    application = older.restarts.application(counts("many"))
    reset(application, older.log, plan_reset(application, older.log, to_earliest), lambda: None)
    older.partitioned()
    older.start(counts("many"))
    assert older.partitioned() == "window"


def test_a_repartition_topic_keeps_it_and_a_new_one_goes_by_the_key(life: Life) -> None:
    def program(*names: str, **options: Any) -> StreamsBuilder:
        builder = StreamsBuilder()
        stream = builder.stream("left").select_key(lambda key, value: Windowed(key, 0, 5000), with_key=True)
        for name in names:
            stream.repartition(name, partitions=MANY, key_serde="windowed:str:5s", **options).to(
                "out", key_serde="pickle"
            )
        return builder

    life.start(program("one", partition_by=lambda key: key))
    life.becomes_older()
    assert life.plan(program("one")).whole_keys == ("one-repartition",)
    life.start(program("one", "two"))
    found = {}
    for name in ("one", "two"):
        records = everything(life.log, f"app-{name}-repartition")
        found[name] = [(each.key or b"", each.partition) for each in records if each.timestamp]
    assert all(default_partitioner(key, MANY) == partition for key, partition in found["one"])
    assert all(default_partitioner(key[:-8], MANY) == partition for key, partition in found["two"])
    assert len(found["one"]) == len(found["two"]) == len(NAMES)


def joining(*more: str, **options: Any) -> StreamsBuilder:
    """Return a program that joins the table of a repartition topic of windowed keys with others."""
    builder = StreamsBuilder()
    stream = builder.stream("left").select_key(lambda key, value: Windowed(key, 0, 5000), with_key=True)

    def table(name: str, **options: Any) -> Any:
        return stream.repartition(name, partitions=MANY, key_serde="windowed:str:5s", **options).to_table(f"t-{name}")

    joined = table("one", **options)
    for name in more:
        joined = joined.join(table(name), lambda one, two: one + two)
    joined.to_stream().to("out", key_serde="pickle")
    return builder


@pytest.mark.parametrize("resets", [False, True], ids=["start", "reset"])
def test_a_new_topic_is_partitioned_like_those_that_it_is_joined_with(life: Life, resets: bool) -> None:
    life.start(joining(partition_by=lambda key: key))
    life.becomes_older()
    if resets:
        application = life.restarts.application(joining())
        reset(application, life.log, plan_reset(application, life.log, to_earliest), lambda: None)
    kept = tuple(f"{name}-repartition" for name in ("one", "three", "two"))
    assert life.plan(joining("two", "three")).whole_keys == kept
    life.restarts.start(joining("two", "three"), rows(10_000))
    assert life.plan(joining("two", "three")).whole_keys == kept
    out = [each.key for each in everything(life.log, "out") if each.value == b"vvv"]
    assert len(set(out)) == len(NAMES)
    by_key = joining("two", "three", partition_by=lambda key: key.key)
    assert "one-repartition" not in life.plan(by_key).whole_keys


def test_topics_that_a_function_chooses(life: Life) -> None:
    life.start(choosing(partition_by=lambda key: key))
    life.becomes_older()
    life.partitioned()
    assert life.plan(choosing()).whole_keys == ("",)
    life.start(choosing())
    assert life.partitioned() == "window"
    life.start(choosing(partition_by=lambda key: key.key))
    life.start(choosing())
    assert life.partitioned() == "key"


def test_readers_of_the_application_know_it(older: Life) -> None:
    """What only looks at the application has the sinks that the run has."""
    prepared = check_program(older.restarts.application(counts("many")), older.log)
    (sink,) = prepared.application.program.subtopologies[0].sinks
    assert sink.partition_by is not None
    assert sink == prepared.application.program.nodes[sink.name]


def test_plan_says_it_also_without_the_log(older: Life, capsys: pytest.CaptureFixture[str]) -> None:
    saved = json.loads(older.log.get_meta("app", "program") or b"")
    for program, expected in (
        (counts("many"), "Topic 'many': windowed keys stay partitioned by key and window"),
        (counts("many", partition_by=lambda key: key.key), "Topic 'many': windowed keys were partitioned by key and"),
    ):
        application = older.restarts.application(program)
        for log in (older.log, offline_log(application, saved, 4)):
            _print(made_plan(application, log)[0])
            assert expected in capsys.readouterr().out
