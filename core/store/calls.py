"""StoreCalls: how often a task asked one of its stores for single entries."""

from __future__ import annotations

from collections.abc import Callable

_TIMED = 16
"""One of so many reads of the store backend is timed, and stands for all: two looks at a clock take time as well."""


class StoreCalls:
    """Counts of one store since the last `take`.

    `gets`: get, fetch and find_sessions. `puts`: put, add, delete and remove. `reads`: how many of the gets had to read
    the store backend, because no object in memory answered. `read_seconds`: about the time of these.
    """

    __slots__ = ("gets", "puts", "read_seconds", "reads")

    def __init__(self) -> None:
        self.gets = self.puts = self.reads = 0
        self.read_seconds = 0.0

    def take(self) -> list[float]:
        """Return gets, puts, reads and seconds of reads, and begin again; nothing if there were no calls."""
        found = [self.gets, self.puts, self.reads, self.read_seconds]
        self.gets = self.puts = self.reads = 0
        self.read_seconds = 0.0
        return found if any(found) else []

    def counting(
        self, read: Callable[[str, bytes], bytes | None], seconds: Callable[[], float]
    ) -> Callable[[str, bytes], bytes | None]:
        """Return `read`, counted as a read of the store backend. `seconds`: a stopwatch."""

        def counted(store: str, key: bytes) -> bytes | None:
            self.reads += 1
            if self.reads % _TIMED:
                return read(store, key)
            began = seconds()
            try:
                return read(store, key)
            finally:
                self.read_seconds += _TIMED * (seconds() - began)

        return counted
