"""The programs that are measured: a stateful count by key that emits every update, and a JSON filter + map."""

from __future__ import annotations

from penstock import (
    Processor,
    ProcessorContext,
    Record,
    Topology,
    Windowed,
    key_value_store,
    session_store,
    window_store,
)
from penstock.store.kinds.window import WindowStoreSpec

WINDOW_MS = 60_000
"""The size of the tumbling windows that are counted."""
RETENTION_MS = 600_000
"""How long window and session stores keep what they have."""
GAP_MS = 60_000
"""Records of a key with no more time between them are one session."""


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


class EchoingCount(Count):
    """Emits each new count with what the record said."""

    def process(self, record: Record) -> None:
        """Count one record."""
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(f"{count} {record.value}"))


class WindowedCount(Processor):
    """Counts records by key and tumbling window, and emits each new count."""

    def init(self, context: ProcessorContext) -> None:
        """Look up the store."""
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        """Count one record."""
        start = record.timestamp - record.timestamp % WINDOW_MS
        count = (self.counts.fetch(record.key, start) or 0) + 1
        self.counts.put(record.key, count, start)
        self.context.forward(record.with_value(str(count)))


class SessionCount(Processor):
    """Counts records by key and session, and emits each new count."""

    def init(self, context: ProcessorContext) -> None:
        """Look up the store."""
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        """Count one record: the sessions within the gap, and it, become one."""
        counts, key, start = self.counts, record.key, record.timestamp
        end, count = start, 1
        for session, counted in counts.find_sessions(key, start - GAP_MS, start + GAP_MS):
            start, end, count = min(start, session.start), max(end, session.end), count + counted
            counts.remove(session)
        counts.put(Windowed(key, start, end), count)
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


def windowed_counts() -> WindowStoreSpec:
    """Return the store of a windowed count."""
    return window_store("counts", retention=f"{RETENTION_MS}ms", window_size=f"{WINDOW_MS}ms", key_serde="str")


def windowed_count_topology() -> Topology:
    """Return source -> windowed count -> sink."""
    return (
        Topology()
        .add_source("in", "bench-in")
        .add_processor("count", WindowedCount, "in", stores=[windowed_counts()])
        .add_sink("out", "bench-out", "count")
    )


def session_count_topology() -> Topology:
    """Return source -> session count -> sink."""
    counts = session_store("counts", retention=f"{RETENTION_MS}ms", key_serde="str")
    return (
        Topology()
        .add_source("in", "bench-in")
        .add_processor("count", SessionCount, "in", stores=[counts])
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
