"""Windowed: a key with the time window it belongs to, and the buckets of time in which stores keep windows."""

from __future__ import annotations

from typing import Any, NamedTuple


class Windowed(NamedTuple):
    """A key and a window: `start` and `end` in ms since the epoch.

    The end of a tumbling or hopping window is the first ms after it, that of a session the time of its last record.
    """

    key: Any
    start: int
    end: int

    def __str__(self) -> str:
        """Return `[key@start/end]`, as Kafka Streams prints it."""
        return f"[{self.key}@{self.start}/{self.end}]"


Windowed.__module__ = "penstock"  # pickled values name it, so it does not follow the file


_UNLIMITED = 2**63 - 1
"""The retention of unlimited windows (ms)."""


def bucket_ms(retention_ms: int) -> int:
    """Return how long the buckets are in which a store with this retention keeps its windows.

    A bucket is freed as a whole once all of it has expired, so a store takes room for its retention and one bucket
    more. Each bucket that a fetch touches costs a search.
    """
    if retention_ms == _UNLIMITED:
        return 2**61  # saved so since text of a length of time was read as a float
    return max(1, retention_ms // 4)
