"""StoreCalls: how often a task asked one of its stores for single entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal


class StoreCalls:
    """Counts of one store.

    `gets`: get, fetch and find_sessions. `puts`: put, add, delete and remove. `reads`: number of gets that read the
    store backend, because no object in memory answered. `read_seconds`: about the time of these.
    """

    __slots__ = ("_taken", "_totals", "gets", "puts", "read_seconds", "reads")

    def __init__(self) -> None:
        self.gets = self.puts = self.reads = 0
        self.read_seconds = 0.0
        self._totals: dict[str, list[Callable[[], int]]] = {"gets": [], "puts": [], "reads": []}
        self._taken: list[float] = [0, 0, 0, 0.0]

    def add_total(self, name: Literal["gets", "puts", "reads"], total: Callable[[], int]) -> None:
        """Add a function that returns a further number of calls, which code counts in a local variable.

        That costs less than an attribute of this object.
        """
        self._totals[name].append(total)

    def take(self) -> list[float]:
        """Return gets, puts, reads and seconds of reads since the last call; nothing if there were no calls."""
        of = self._totals
        totals = [
            self.gets + sum(total() for total in of["gets"]),
            self.puts + sum(total() for total in of["puts"]),
            self.reads + sum(total() for total in of["reads"]),
            self.read_seconds,
        ]
        found = [total - before for total, before in zip(totals, self._taken, strict=True)]
        self._taken = totals
        return found if any(found) else []
