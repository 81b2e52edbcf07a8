"""Timestamps of internal topics: each record keeps the one that its task wrote, whatever the application extracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Application, Processor, Topology, TopologyError
from penstock.plugins.dsl import StreamsBuilder, tumbling
from penstock.plugins.testing import TopologyTestDriver
from penstock.record import Record


def at(record: Record, partition_time: int, wall_clock: int) -> int:
    """Return the time in the value; it fails for every value but those of the topic outside."""
    found: int = record.value["at"]
    return found


def grouped() -> StreamsBuilder:
    builder = StreamsBuilder()
    parts = builder.stream("in").map_values(lambda value: value["part"])
    counts = parts.group_by(lambda part: part, key_serde="str", name="by-part")
    counts.windowed_by(tumbling("10ms", grace="1ms")).count("n").to_stream(
        lambda key, n: f"{key.key}@{key.start}", with_key=True
    ).to("out", key_serde="str", value_serde="int")
    return builder


def repartitioned() -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: 1).repartition("again", value_serde="int").to("out")
    return builder


def regrouped() -> StreamsBuilder:
    builder = StreamsBuilder()
    rows = builder.table("in", "rows")
    parts = rows.group_by(lambda value: value["part"], lambda value: 1, value_serde="int", name="by-part")
    parts.count("n").to_stream().to("out", value_serde="int")
    return builder


def joined_by_foreign_key() -> StreamsBuilder:
    builder = StreamsBuilder()
    left, right = builder.table("in", "left"), builder.table("other", "right")
    both = left.left_join(right, lambda one, other: 1, foreign_key=lambda value: value["part"], name="both")
    both.to_stream().to("out", value_serde="int")
    return builder


class Pass(Processor):
    """Forwards a number in place of each value."""

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(1))


def of_processors() -> Topology:
    topology = Topology().add_source("in", "in").add_processor("one", Pass, "in")
    topology.add_repartition("again", "one", value_serde="int").add_processor("two", Pass, "again")
    return topology.add_sink("out", "out", "two", value_serde="int")


def declared_apart() -> Topology:
    """The source of the internal topic is added before the topic is declared."""
    topology = Topology().add_source("again", "moved", value_serde="int").add_source("in", "in")
    topology.add_processor("one", Pass, "in").add_sink("to", "moved", "one", value_serde="int")
    return topology.add_internal_topic("moved").add_sink("out", "out", "again", value_serde="int")


@pytest.mark.parametrize(
    "make", [grouped, repartitioned, regrouped, joined_by_foreign_key, of_processors, declared_apart]
)
def test_the_extractor_of_the_application_does_not_get_records_of_internal_topics(make: Callable[[], Any]) -> None:
    application = Application("app", make(), value_serde="json", timestamp_extractor=at)
    with TopologyTestDriver(application) as driver:
        driver.pipe("in", "a", {"at": 42, "part": "x"}, timestamp=7)
        assert [(record.value, record.timestamp) for record in driver.read_all("out")] == [(1, 42)]


def test_a_source_with_an_extractor_of_its_own_uses_it_for_an_internal_topic() -> None:
    topology = Topology().add_source("in", "in").add_internal_topic("moved").add_sink("to", "moved", "in")
    topology.add_source("again", "moved", timestamp_extractor=lambda record, partition_time, now: 5)
    topology.add_sink("out", "out", "again")
    application = Application("app", topology, timestamp_extractor=lambda record, partition_time, now: now)
    with TopologyTestDriver(application, initial_wall_clock_ms=9) as driver:
        driver.pipe("in", "a", "x", timestamp=7)
        assert [record.timestamp for record in driver.read_all("out")] == [5]


def test_a_source_of_internal_and_other_topics_has_to_choose_an_extractor() -> None:
    topology = Topology().add_source("in", "in").add_internal_topic("moved").add_sink("to", "moved", "in")
    topology.add_source("both", "moved", "other").add_sink("out", "out", "both")
    with pytest.raises(TopologyError, match=r"source 'both' reads the internal topic 'moved' and 'other'.*of its own"):
        topology.build()
