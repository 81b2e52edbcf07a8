"""The programs that are measured: a stateful count by key that emits every update, and a JSON filter + map."""

from __future__ import annotations

from penstock import Processor, ProcessorContext, Record, Topology, key_value_store


class Count(Processor):
    """Counts records by key and emits each new count."""

    def init(self, context: ProcessorContext) -> None:
        """Look up the store."""
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        """Count one record."""
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(str(count)))


class FilterMap(Processor):
    """Keeps nine records of ten, by their key, and shortens the value."""

    def process(self, record: Record) -> None:
        """Look at one record."""
        if record.key[-1] != "7":
            self.context.forward(record.with_value(record.value[:40]))


def count_topology() -> Topology:
    """Return source -> count -> sink."""
    return (
        Topology()
        .add_source("in", "bench-in")
        .add_processor("count", Count, "in", stores=[key_value_store("counts", key_serde="str")])
        .add_sink("out", "bench-out", "count")
    )


def filter_map_topology() -> Topology:
    """Return source -> filter + map -> sink."""
    return (
        Topology()
        .add_source("in", "bench-in")
        .add_processor("map", FilterMap, "in")
        .add_sink("out", "bench-out", "map")
    )
