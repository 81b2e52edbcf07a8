"""Programs to profile: every kind of node, with costs that are known."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from penstock import (
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    Topology,
    ValueTransformer,
    ValueTransformerContext,
    key_value_store,
)
from penstock.dsl import StreamsBuilder


def busy(microseconds: float) -> None:
    """Work for so long."""
    until = perf_counter() + microseconds / 1e6
    while perf_counter() < until:
        pass


class Slow(Processor):
    """Works 200 microseconds for each record."""

    def process(self, record: Record) -> None:
        busy(200)
        self.context.forward(record)


class Count(Processor):
    """Counts by key: a get and a put for each record."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value({"count": count}))


class Seen(Processor):
    """Looks at the counts, and scans them with every tenth record."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.counts = context.get_store("counts")
        self.records = 0

    def process(self, record: Record) -> None:
        self.counts.get(record.key)
        self.records += 1
        if self.records % 10 == 0:
            list(self.counts.range())


class Loud(ValueTransformer):
    """Values in capitals, with what a global store says."""

    def init(self, context: ValueTransformerContext) -> None:
        super().init(context)
        self.names = context.get_store("names")

    def transform(self, key: Any, value: Any) -> Any:
        return f"{self.names.get(key)} {value}".upper()


class Fill(Processor):
    """Fills the global store."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.names = context.get_store("names")

    def process(self, record: Record) -> None:
        self.names.put(record.key, record.value)


class Ticks(Processor):
    """Schedules by both clocks, and sets a timer for each record."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        context.schedule("10ms", self.by_stream, PunctuationType.STREAM_TIME)
        context.schedule("1h", self.by_wall_clock, PunctuationType.WALL_CLOCK_TIME)
        context.schedule("1s", self.by_wall_clock, PunctuationType.WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        self.context.timer(record.key, record.timestamp + 5, PunctuationType.STREAM_TIME)

    def by_stream(self, now: int) -> None:
        busy(10)

    def by_wall_clock(self, now: int) -> None:
        self.context.forward(Record("tick", f"at {now}", now))

    def on_timer(self, key: Any, at: int) -> None:
        busy(10)


def many_kinds() -> Topology:
    """A program with nodes of every kind, a repartition topic, a global store and a plugin's processor."""
    topology = Topology().add_global_store(
        key_value_store("names", key_serde="str", value_serde="str"), "namer", "names", "fill", Fill
    )
    topology.add_source("in", "words")
    topology.add_processor("once", "contrib.dedupe", "in", by=lambda record: f"{record.key}{record.timestamp}")
    topology.add_processor("slow", Slow, "once")
    topology.add_processor("loud", Loud, "slow")
    topology.add_processor("ticks", Ticks, "loud")
    topology.add_sink("ticked", "ticks", "ticks")
    topology.add_repartition("by-key", "loud")
    topology.add_processor(
        "count", Count, "by-key", stores=[key_value_store("counts", key_serde="str", value_serde="json")]
    )
    topology.add_processor("seen", Seen, "count", stores=["counts"])
    return topology.add_sink("out", "counted", "count", value_serde="json")


def shouted(value: str) -> str:
    """Return a value in capitals."""
    return value.upper()


def is_long(value: str) -> bool:
    """Return whether a value has more than three letters."""
    return len(value) > 3


def word_count() -> StreamsBuilder:
    """A program of the DSL with a repartition topic."""
    builder = StreamsBuilder()
    words = builder.stream("lines").flat_map_values(lambda line: line.split(" ")).filter(is_long).map_values(shouted)
    counts = words.group_by(lambda word: word, name="words").count("counts")
    counts.to_stream().map_values(str).to("totals", value_serde="str")
    return builder
