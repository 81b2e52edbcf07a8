"""What docs/conformance.md lists as different on purpose, and no recorded case has; and counts of drops."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    STREAM_TIME,
    OutputBatch,
    Processor,
    Record,
    StrSerde,
    Topology,
    fail_on_invalid_timestamp,
    key_value_store,
    skip,
    versioned_store,
)
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver

from .comparing import with_harmless_processes
from .language import settings_for
from .runner import BUILDERS


def later(record: Record, partition_time: int, wall_clock: int) -> int:
    return record.timestamp + 1000


def never(record: Record, partition_time: int, wall_clock: int) -> int:
    return -1


@pytest.mark.parametrize(
    ("own", "of_application", "expected"),
    [(later, None, 1005), (None, later, 1005), (fail_on_invalid_timestamp, later, 5), (never, None, None)],
)
def test_the_extractor_of_a_global_table_gives_its_rows_their_timestamps(
    own: Any, of_application: Any, expected: int | None
) -> None:
    builder = StreamsBuilder()
    builder.global_table("table", "rows", timestamp_extractor=own)
    builder.stream("in").to("out")
    settings = {} if of_application is None else {"timestamp_extractor": of_application}
    with TopologyTestDriver(builder, **settings) as driver:
        driver.pipe("table", "a", "x", 5)
        row = driver.store("rows").get("a")
        assert (None if row is None else row.timestamp) == expected


def test_a_left_join_with_grace_joins_a_record_without_a_key_at_once_with_nothing() -> None:
    builder = StreamsBuilder()
    table = builder.table("table", versioned_store("rows", history_retention="1h"))
    builder.stream("in").left_join(table, lambda one, other: f"{one}|{other}", grace="10ms").to("out")
    with TopologyTestDriver(builder, value_serde="str") as driver:
        driver.pipe("in", "a", "waits", 100)
        driver.pipe("in", None, "late", 50)
        driver.pipe("in", None, "newer", 200)
        assert [record.value for record in driver.read_all("out")] == ["late|None", "newer|None"]
        driver.pipe("in", "a", "newest", 300)
        assert [record.value for record in driver.read_all("out")] == ["waits|None"]


class Keeping(Processor):
    """Keeps records; of a record "scan", forwards the keys that begin with its key."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("rows")
        if record.value == "scan":
            with store.prefix_scan(record.key) as entries:
                for key, _ in entries:
                    self.context.forward(record.with_value(key.hex()))
        else:
            store.put(record.key, record.value)


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
def test_a_prefix_scan_finds_the_keys_that_begin_with_the_prefix_and_no_other(backend: str) -> None:
    store = key_value_store("rows", key_serde="bytes", value_serde="str", backend=backend)
    topology = Topology().add_source("source", "in", key_serde="bytes", value_serde="str")
    topology = topology.add_processor("keeping", Keeping, "source", stores=[store])
    topology = topology.add_sink("sink", "out", "keeping", key_serde="bytes", value_serde="str")
    with TopologyTestDriver(topology) as driver:
        for key in ("01ff", "01ff03", "02", "0200", "ff", "ff07", "ffff"):
            driver.pipe("in", bytes.fromhex(key), "x")
        found = {}
        for prefix in ("01ff", "ff", "ffff"):
            driver.pipe("in", bytes.fromhex(prefix), "scan")
            found[prefix] = [record.value for record in driver.read_all("out")]
    assert found == {"01ff": ["01ff", "01ff03"], "ff": ["ff", "ff07", "ffff"], "ffff": ["ffff"]}


class Again(Processor):
    """Schedules its punctuator again each time that it is called."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.handle = context.schedule("10ms", self.tick, STREAM_TIME)

    def process(self, record: Record) -> None:
        pass

    def tick(self, now: int) -> None:
        self.context.forward(Record("tick", now, now))
        self.handle.cancel()
        self.handle = self.context.schedule("10ms", self.tick, STREAM_TIME)


def test_a_punctuator_of_stream_time_that_schedules_itself_is_called_once_an_interval() -> None:
    topology = Topology().add_source("source", "in").add_processor("again", Again, "source")
    with TopologyTestDriver(topology.add_sink("sink", "out", "again", value_serde="int")) as driver:
        for timestamp in (100, 105, 110, 125):
            driver.pipe("in", "a", "x", timestamp)
        assert [record.value for record in driver.read_all("out")] == [100, 110, 125]


@pytest.mark.parametrize("verb", ["process", "process_values"])
def test_a_merged_repartition_topic_stays_behind_a_processor(verb: str) -> None:
    steps = [
        {"op": "stream", "topic": "in"},
        {"op": "select_key", "of": 0, "sel": "first_char"},
        {"op": verb, "of": 1},
        {"op": "aggregate", "of": 2, "group": "key", "agg": "count", "store": "one"},
        {"op": "aggregate", "of": 1, "group": "key", "agg": "count", "store": "other"},
    ]
    settings = settings_for(True)
    topics = BUILDERS["steps"]({"steps": steps}).build(settings).build().internal_topics
    assert set(topics) == {"one-repartition", "other-repartition"}
    # So does Kafka Streams, which counts in the wrong partitions where the processor has changed keys.
    harmless = with_harmless_processes({"steps": steps}).build(settings).build()
    assert set(harmless.internal_topics) == {"one-repartition"}


def undecodable(builder: StreamsBuilder) -> None:
    builder.stream("in", value_serde="int").to("out")


def without_time(builder: StreamsBuilder) -> None:
    builder.stream("in", timestamp_extractor=never).to("out")


def failing(builder: StreamsBuilder) -> None:
    builder.stream("in").map_values(lambda value: value / 0).to("out")


def to_no_partition(builder: StreamsBuilder) -> None:
    builder.stream("in").to("out", partitioner=lambda topic, record, count: ())


def without_group(builder: StreamsBuilder) -> None:
    builder.stream("in").group_by(lambda value: None, key_serde="str").count("counts")


def suppressed(builder: StreamsBuilder) -> None:
    builder.table("in").suppress("10ms").to_stream().to("out")


def in_global_table(builder: StreamsBuilder) -> None:
    builder.global_table("in")
    builder.stream("other").to("out")


@pytest.mark.parametrize(
    ("write", "key", "expected"),
    [
        (undecodable, "a", 2),
        (without_time, "a", 2),
        (failing, "a", 2),
        (to_no_partition, "a", 2),
        (in_global_table, None, 2),
        (without_group, "a", 0),
        (suppressed, "a", 0),
    ],
)
def test_drops_are_counted_as_in_kafka_streams(write: Any, key: str | None, expected: int) -> None:
    builder = StreamsBuilder()
    write(builder)
    handlers: dict[str, Any] = {"deserialization_handler": skip, "processing_handler": skip}
    with TopologyTestDriver(builder, value_serde=StrSerde(), **handlers) as driver:
        raw = None if key is None else key.encode()
        driver.pipe_raw(OutputBatch("in", [raw, raw], [b"xx", b"xx"], [100, 1]))
        assert driver.dropped_records() == expected
