"""Which partition a sink's record goes to: windowed keys by the key alone, `partition_by`, and a partitioner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import (
    DeadLetter,
    OutputBatch,
    ProductionError,
    Record,
    Serde,
    SinkNode,
    Topology,
    TopologyError,
    Windowed,
    default_partitioner,
    skip,
)
from penstock.plugins.dsl import (
    SessionWindowedSerde,
    StreamsBuilder,
    TimeWindowedSerde,
    hopping,
    sessions,
    sliding,
    tumbling,
    unlimited,
)
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing import TopologyTestDriver
from penstock.plugins.testing.contracts.log_tests import everything
from penstock.program.partitioning import partitions_of_key
from penstock.serde import StrSerde
from penstock.serdes import AvroSerde, of

from .tasks import Pass, batch, open_task

OF_JAVA = [("a", 524), ("b", 796), ("foobar", 166), ("a-little-bit-long-string", 112), ("", 681), ("ä€", 933)]
"""Keys and what Kafka Streams 4.3.1's WindowedStreamPartitioner says of them, in any window, for 1,000 partitions."""
WINDOWS: dict[str, Any] = {
    "tumbling": tumbling("5s", grace="1s"),
    "hopping": hopping("6s", every="2s", grace="1s"),
    "sliding": sliding("3s", grace="1s"),
    "sessions": sessions(gap="2s", grace="1s"),
    "unlimited": unlimited(),
}


@dataclass(frozen=True)
class Customer:
    country: str
    number: int


class Padded(Serde[str]):
    """Of another package, which the engine wraps."""

    def serialize(self, value: str) -> bytes:
        return f"{value:>8}".encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode().strip()


class OwnWindowed(TimeWindowedSerde):
    """A windowed serde of another package."""


INNER: dict[str, tuple[Any, Sequence[Any]]] = {
    "str": ("str", [key for key, _ in OF_JAVA]),
    "int": ("int", [0, 7, -1]),
    "bytes": ("bytes", [b"", b"\xff" * 9]),
    "json": ("json", ["a", {"b": 1}, [2]]),
    "msgpack": ("msgpack", ["a", {"b": 1}, 2]),
    "a dataclass": (of(Customer), [Customer("de", 1), Customer("fr", 2)]),
    "avro": (AvroSerde('"string"', registry="mock://partitioning"), ["a", "b"]),
    "of another package": (Padded(), ["a", "b"]),
}


def sunk(*sinks: dict[str, Any], keys: Sequence[Any], **settings: Any) -> list[OutputBatch]:
    """Return what sinks of the topic `out` make of records with these keys, each of which goes to every sink."""

    class Send(Pass):
        def process(self, record: Record) -> None:
            for key in keys:
                self.context.forward(Record(key, "v", 0))

    topology = Topology().add_source("in", "in").add_processor("p", Send, "in")
    for number, options in enumerate(sinks):
        topology.add_sink(f"out{number}", "out", "p", **options)
    task = open_task(topology, partition_count=lambda topic: 4, **settings)
    task.feed(batch("in", ("k", "x", 0)))
    task.process(10)
    return task.take_outputs()


def placed(batch: OutputBatch, partitions: int) -> dict[bytes | None, list[int]]:
    """Return the partitions of each key in a log."""
    log = MemoryLog()
    log.create_topic(batch.topic, partitions)
    log.append(batch)
    found: dict[bytes | None, list[int]] = {}
    for each in everything(log, batch.topic):
        found.setdefault(each.key, []).append(each.partition)
    return found


def keys_in(driver: TopologyTestDriver, topic: str) -> dict[bytes | None, int]:
    """Return the partition of each key of a topic."""
    return {each.key: each.partition for each in everything(driver.log, topic)}


@pytest.mark.parametrize("serde", [TimeWindowedSerde("str", 1000), SessionWindowedSerde("str"), "windowed:str:1s"])
@pytest.mark.parametrize(("key", "expected"), OF_JAVA)
def test_windowed_keys_go_where_kafka_streams_sends_them(key: str, expected: int, serde: Any) -> None:
    (made,) = sunk({"key_serde": serde}, keys=[Windowed(key, 5000, 6000), Windowed(key, 7, 1007)])
    assert len(set(made.keys)) == 2
    assert list(placed(made, 1000).values()) == [[expected]] * 2
    assert default_partitioner(key.encode(), 1000) == expected


@pytest.mark.parametrize("windowed", [TimeWindowedSerde, SessionWindowedSerde, OwnWindowed])
@pytest.mark.parametrize("kind", INNER)
def test_windowed_keys_go_where_their_key_goes_whatever_writes_it(kind: str, windowed: Any) -> None:
    inner, keys = INNER[kind]
    (plain,) = sunk({"key_serde": inner}, keys=keys)
    (made,) = sunk({"key_serde": windowed(inner)}, keys=[Windowed(key, 5, 7) for key in keys])
    of_key, of_window = placed(plain, 50), placed(made, 50)
    assert [of_window[each] for each in made.keys] == [of_key[each] for each in plain.keys]


def test_null_keys_have_no_part() -> None:
    (made,) = sunk({"key_serde": "windowed:str:1s"}, keys=[None, Windowed("a", 1, 2)])
    assert (made.keys[0], made.hashed) == (None, [None, b"a"])


@pytest.mark.parametrize("windows", WINDOWS)
def test_results_are_copartitioned_with_their_input(windows: str) -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by_key()
    grouped.windowed_by(WINDOWS[windows]).count().to_stream().to("out", value_serde="int")
    names = [f"k{number}" for number in range(30)]
    with TopologyTestDriver(builder, partitions=7) as driver:
        for number, name in enumerate(names * 2):
            driver.pipe("in", name, "v", timestamp=200 * number)
        of_name, results = keys_in(driver, "in"), keys_in(driver, "out")
    size = 16 if windows == "sessions" else 8
    assert {(key[:-size], partition) for key, partition in results.items() if key} == set(of_name.items())


@pytest.mark.parametrize("through", ["topic", "repartition"])
def test_a_windowed_table_meets_a_topic_with_its_keys(through: str) -> None:
    """Both sides of the join are where the key is, whatever the window; a test pipes them so, too."""
    builder = StreamsBuilder()
    builder.stream("in").group_by_key().windowed_by(WINDOWS["tumbling"]).count().to_stream().to("counts")
    counts = builder.table("counts", key_serde="windowed:str:5s", value_serde="int")
    other = builder.stream("other", key_serde="windowed:str:5s" if through == "topic" else "json")
    if through == "repartition":
        other = other.select_key(lambda key, value: Windowed(*key), with_key=True).repartition(
            "again", key_serde="windowed:str:5s"
        )
    other.join(counts, lambda one, count: f"{one}{count}").to("out", key_serde="pickle")
    names = [f"k{number}" for number in range(12)]
    with TopologyTestDriver(builder, partitions=7, value_serde="json") as driver:
        for name in names:
            driver.pipe("in", name, "v", timestamp=1)
            key = Windowed(name, 0, 5000)
            driver.pipe("other", key if through == "topic" else list(key), "x", timestamp=2)
        assert [each.value for each in driver.read_all("out")] == ["x1"] * 12


def test_a_join_by_foreign_key_finds_rows_of_a_windowed_table() -> None:
    """Its subscriptions go to the partition of the right row, which is that of the key without its window."""
    builder = StreamsBuilder()
    right = builder.stream("in").group_by_key().windowed_by(WINDOWS["tumbling"]).count()
    left = builder.table("left")
    left.join(
        right, lambda one, count: f"{one}:{count}", foreign_key=lambda name: Windowed(name, 0, 5000)
    ).to_stream().to("out")
    names = [f"k{number}" for number in range(12)]
    with TopologyTestDriver(builder, partitions=7) as driver:
        for name in names:
            driver.pipe("in", name, "v", timestamp=1)
            driver.pipe("left", f"of {name}", name, timestamp=2)
        assert sorted(each.value for each in driver.read_all("out")) == sorted(f"{name}:1" for name in names)


# ---------------------------------------------------------------- partition_by


def test_partition_by_returns_the_part_of_a_key_that_is_hashed() -> None:
    keys = ["de:1", "de:2", "fr:1", None]
    (made,) = sunk({"key_serde": "str", "partition_by": lambda key: key.partition(":")[0]}, keys=keys)
    assert made.hashed == [b"de", b"de", b"fr", None]


@pytest.mark.parametrize(
    ("serde", "by", "expected"),
    [
        ("json", lambda key: key["a"], [b"1"]),
        ("json", lambda key: b"raw", [b"raw"]),
        ("json", lambda key: None, [None]),
        ("json", lambda key: key, [b'{"a":1}']),
    ],
    ids=["a part", "bytes", "any", "all"],
)
def test_what_partition_by_may_return(serde: str, by: Any, expected: list[bytes | None]) -> None:
    (made,) = sunk({"key_serde": serde, "partition_by": by}, keys=[{"a": 1}])
    assert made.hashed == expected


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (lambda key: key.key, b"de:1"),
        (lambda key: key.key[:2], b"de"),
        (lambda key: key, b"de:1" + bytes(7) + b"\x05"),
        (lambda key: key._replace(start=6), b"de:1" + bytes(7) + b"\x06"),
    ],
    ids=["the key", "a part of it", "key and window", "another window"],
)
def test_partition_by_of_windowed_keys(by: Any, expected: bytes) -> None:
    (made,) = sunk({"key_serde": "windowed:str:1s", "partition_by": by}, keys=[Windowed("de:1", 5, 1005)])
    assert made.hashed == [expected]


def test_a_part_that_is_no_key_meets_the_production_handler() -> None:
    def fail_at_b(key: str) -> Any:
        return 1.5 if key == "b" else key

    with pytest.raises(ProductionError, match="'out0' while producing to topic 'out'.*expected str, found float"):
        sunk({"key_serde": "str", "partition_by": fail_at_b}, keys=["a", "b"])
    (made,) = sunk({"key_serde": "str", "partition_by": fail_at_b}, keys=["a", "b", "c"], production_handler=skip)
    assert made.hashed == made.keys == [b"a", b"c"]


def test_sinks_of_one_topic_have_partitioners_of_their_own() -> None:
    first, last = {"key_serde": "str"}, {"key_serde": "str", "partitioner": lambda topic, record, count: 3}
    part = {"key_serde": "str", "partition_by": lambda key: key[0]}
    (made,) = sunk(first, part, last, keys=["ax", "bx"], production_handler=DeadLetter("out"))
    assert made.keys == [b"ax"] * 3 + [b"bx"] * 3
    assert made.hashed == [b"ax", b"a", b"ax", b"bx", b"b", b"bx"]
    assert made.partitions == [None, None, (3,)] * 2


@pytest.mark.parametrize(("chosen", "expected"), [(2, [(2,)]), (None, [None])])
def test_a_partitioner_of_windowed_keys_is_the_only_one(chosen: Any, expected: Any) -> None:
    """Its None is the hash of the whole serialized key, as in Kafka Streams."""
    sink = {"key_serde": "windowed:str:1s", "partitioner": lambda topic, record, count: chosen}
    (made,) = sunk(sink, keys=[Windowed("a", 0, 1000)])
    assert (made.partitions, made.hashed) == (expected, None)


def test_a_dead_letter_beside_windowed_keys_goes_by_its_whole_key() -> None:
    sink = {"key_serde": "windowed:str:1s", "value_serde": "str"}
    keys = [Windowed("a", 0, 1000), "no window", Windowed("b", 0, 1000)]
    (made,) = sunk(sink, keys=keys, production_handler=DeadLetter("out"))
    assert (made.keys[1], made.hashed) == (b"k", [b"a", b"k", b"b"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"partitioner": lambda topic, record, count: 0, "partition_by": lambda key: key},
            "sink 'out': partitioner and partition_by both choose the partition: leave one of them out",
        ),
        ({"partition_by": lambda topic, record, count: 0}, "sink 'out': partition_by is called with [(]key[)]"),
        ({"partition_by": "key"}, "sink 'out': partition_by is a function, found 'key'"),
    ],
)
def test_a_wrong_partition_by_is_refused(options: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Topology().add_source("in", "in").add_sink("out", "out", "in", **options)


def test_the_dsl_hands_partition_by_on() -> None:
    builder = StreamsBuilder()
    again = builder.stream("in").repartition("again", partition_by=lambda key: key[0])
    again.to("out", partition_by=lambda key: key[1])
    with TopologyTestDriver(builder, partitions=5) as driver:
        for key in ("ab", "ac", "bb"):
            driver.pipe("in", key, "v", timestamp=1)
        again_topic = f"{driver.application.id}-again-repartition"
        for topic, place in ((again_topic, 0), ("out", 1)):
            expected = {key: default_partitioner(key[place : place + 1], 5) for key in (b"ab", b"ac", b"bb")}
            assert keys_in(driver, topic) == expected


@pytest.mark.parametrize(
    "asks",
    [lambda record: record.value, lambda record: record.timestamp, lambda record: record.headers, lambda record: record[1],
     lambda record: record[-1], lambda record: record[:2], lambda record: tuple(record)[1]],
)  # fmt: skip
def test_a_partitioner_that_asks_for_more_than_the_key_does_not_answer_for_a_key(asks: Any) -> None:
    """It was asked with the value None and the timestamp 0: readers then looked for the key in another task."""
    sink = SinkNode("out", "out", (), partitioner=lambda topic, record, count: hash(asks(record)) % count)
    with pytest.raises(ValueError, match="the partition depends on more of the record than its key"):
        partitions_of_key(sink, StrSerde(), "out", "k", 3)


def test_a_partitioner_by_key_answers_for_a_key() -> None:
    def by_key(topic: str, record: Record, count: int) -> int:
        assert record.key == record[0] == record.with_value(None).key and isinstance(record, Record)
        return len(record.key) % count

    assert tuple(partitions_of_key(SinkNode("out", "out", (), partitioner=by_key), StrSerde(), "out", "kkkk", 3)) == (
        1,
    )
