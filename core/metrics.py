"""Counts that the engine keeps for each node, for a metrics system to read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class NodeMetrics:
    """Counters of one node in one task since it was opened.

    `dropped` counts records by reason: "null_key", "late", "skipped" (by a handler), "deserialization", or a reason of
    the processor's own.
    `user` is for counters of a processor's own.
    """

    records_in: int = 0
    records_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    user: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count records that were dropped, which Kafka Streams adds to `dropped-records-total`."""
        self.dropped[reason] += count

    def add(self, other: NodeMetrics) -> None:
        """Add the counts of the same node in another task, or when this one was open before."""
        self.records_in += other.records_in
        self.records_out += other.records_out
        self.dropped.update(other.dropped)
        self.user.update(other.user)
