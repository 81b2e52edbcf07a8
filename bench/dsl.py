"""A program of the DSL beside the same one of hand-written processors: the Task alone, in one process."""

from __future__ import annotations

import statistics

from penstock import (
    Application,
    Processor,
    ProcessorContext,
    Record,
    Topology,
    ValueAndTimestamp,
    key_value_store,
)
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.engine.task.process_resources import tune_garbage_collector

from .core import run_once
from .result import Result

ROUNDS = 3
LETTERS = 40


def dsl_count() -> Result:
    """filter + map_values + count of the DSL, by turns with hand-written processors over a timestamped store."""
    tune_garbage_collector()
    pairs = []
    for number in range(ROUNDS):
        programs = [("dsl-count", dsl_topology()), ("hand-written", hand_written())]
        done = {name: run_once(name, topology) for name, topology in programs[:: 1 if number % 2 else -1]}
        pairs.append((done["dsl-count"], done["hand-written"]))
    best = min((ours for ours, _ in pairs), key=lambda each: each.cpu_s_per_million)
    best.peer = "hand-written processors"
    best.ratio = statistics.median(theirs.cpu_s_per_million / ours.cpu_s_per_million for ours, theirs in pairs)
    best.notes = {"ratio": f"of CPU time, median of {ROUNDS} rounds", "changelog": "none", "record cache": "off"}
    return best


def is_wanted(value: str) -> bool:
    """Return whether a record counts: nearly all do."""
    return value != "no"


def shortened(value: str) -> str:
    """Return the first letters of a value."""
    return value[:LETTERS]


def dsl_topology() -> Topology:
    """Return the program of the DSL."""
    builder = StreamsBuilder()
    stream = builder.stream("bench-in").filter(is_wanted).map_values(shortened)
    stream.group_by_key().count("counts").to_stream().to("bench-out", value_serde="int")
    return builder.build(Application("bench", builder, statestore_cache_max_bytes=0).settings)


def chain_topology() -> Topology:
    """Return a program of the DSL without state: a chain of five nodes that pass all records on, or nearly all."""
    builder = StreamsBuilder()
    stream = builder.stream("bench-in").filter(is_wanted).map_values(shortened).peek(lambda value: None)
    stream.map(lambda key, value: (key, value + "!"), with_key=True).filter_not(lambda value: not value).to("bench-out")
    return builder.build(Application("bench", builder).settings)


class Filter(Processor):
    """Keeps what is wanted."""

    def process(self, record: Record) -> None:
        """Look at one record."""
        if is_wanted(record.value):
            self.context.forward(record)


class Shorten(Processor):
    """Shortens the value."""

    def process(self, record: Record) -> None:
        """Change one record."""
        self.context.forward(record.with_value(shortened(record.value)))


class Count(Processor):
    """Counts records by key, with the highest timestamp of each."""

    def init(self, context: ProcessorContext) -> None:
        """Look up the store."""
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        """Count one record."""
        if record.key is None or record.value is None:
            return
        before = self.counts.get(record.key)
        count, timestamp = 1, record.timestamp
        if before is not None:
            count, timestamp = before.value + 1, max(timestamp, before.timestamp)
        self.counts.put(record.key, ValueAndTimestamp(count, timestamp))
        self.context.forward(Record(record.key, count, timestamp, record.headers))


def hand_written() -> Topology:
    """Return the same program of hand-written processors."""
    return (
        Topology()
        .add_source("in", "bench-in")
        .add_processor("filter", Filter, "in")
        .add_processor("shorten", Shorten, "filter")
        .add_processor(
            "count",
            Count,
            "shorten",
            stores=[key_value_store("counts", key_serde="str", timestamped=True, value_serde="int")],
        )
        .add_sink("out", "bench-out", "count", value_serde="int")
    )
