"""KnownRows: the rows of one key of a window store, by time, as objects."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from . import plain

PRUNED_EVERY = 32
"""Rows of a key that are added between two looks for expired ones."""


class KnownRows:
    """All rows of one key that have not expired, by time; rows of one time are in the order they were put."""

    __slots__ = ("times", "values")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.values: list[Any] = []

    def add(self, time: int, value: Any, kept_after: int) -> None:
        """Add a row."""
        times = self.times
        if not times or time >= times[-1]:
            times.append(time)
            self.values.append(value)
        else:
            at = bisect_right(times, time)
            times.insert(at, time)
            self.values.insert(at, value)
        if not len(times) % PRUNED_EVERY:
            self.prune(kept_after)

    def prune(self, kept_after: int) -> None:
        """Drop rows that have expired."""
        expired = bisect_right(self.times, kept_after)
        del self.times[:expired], self.values[:expired]


class LatestRows(KnownRows):
    """The rows of one key from `known_from` on, each time once. `changed`: unwritten rows, by time.

    In `changed`, None is a row to delete.
    """

    __slots__ = ("changed", "known_from")

    def __init__(self, known_from: int) -> None:
        super().__init__()
        self.known_from = known_from
        self.changed: dict[int, Any] = {}

    def get(self, time: int) -> Any:
        """Return the value at a time, or None."""
        at = bisect_left(self.times, time)
        return self.values[at] if at < len(self.times) and self.times[at] == time else None

    def put(self, time: int, value: Any, kept_after: int) -> None:
        """Set the value at a time; None deletes it."""
        self.changed[time] = value
        at = bisect_left(self.times, time)
        exists = at < len(self.times) and self.times[at] == time
        if value is None:
            del self.times[at : at + exists], self.values[at : at + exists]
        elif exists:
            self.values[at] = value
        else:
            self.add(time, value, kept_after)

    def add_earlier(self, times: list[int], values: list[Any], known_from: int) -> None:
        """Add rows that the store below has: all of them from `known_from` up to the present one."""
        self.times[:0] = times
        self.values[:0] = values
        self.known_from = known_from


def drop_oldest(known: dict[Any, Any], kept_after: int) -> bool:
    """If `known` has too many rows and keys, drop expired rows, then the oldest keys.

    Return whether it dropped keys whose rows have not expired.
    """
    count = _count(known)
    if count <= plain.CACHED_ENTRIES:
        return False
    for key, rows in list(known.items()):
        rows.prune(kept_after)
        if not rows.times:
            del known[key]
    count = _count(known)
    drops = count > plain.CACHED_ENTRIES // 2
    while count > plain.CACHED_ENTRIES // 2:
        count -= 1 + len(known.pop(next(iter(known))).times)
    return drops


def _count(known: dict[Any, Any]) -> int:
    return len(known) + sum(len(rows.times) for rows in known.values())
