"""KnownSessions: the latest sessions of one key of a session store, as objects."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

SessionRow = tuple[int, int, Any]
"""End, start and value of a session."""

MOST_OF_A_KEY = 16
"""Of a key with more sessions, the latest half of so many are kept as objects."""


class KnownSessions:
    """The sessions of one key that end after `known_after`, in order: earlier ones, and the latest one set apart.

    Most calls are about the latest session. It is in `end`, `start` and `value`, so these calls do not make and free
    objects that the garbage collector has in its list, which is slow. `end` is -1 if no session is set apart. No other
    session ends after `alone_after`.
    """

    __slots__ = ("_earlier", "_stored", "alone_after", "end", "is_changed", "known_after", "start", "value")

    def __init__(self, known_after: int) -> None:
        self.end = self.start = -1
        self.value: Any = None
        self.known_after = self.alone_after = known_after
        self.is_changed = False
        """Whether sessions were put or removed since `take_changes`."""
        self._earlier: list[SessionRow] = []
        self._stored: list[SessionRow] = []

    def get(self, start: int, end: int) -> Any:
        """Return the value of a session, or None."""
        rows = self._joined()
        at, exists = _place(rows, start, end)
        value = rows[at][2] if exists else None
        self._set_apart()
        return value

    def overlapping(self, earliest_end: int, latest_start: int) -> list[SessionRow]:
        """Return the sessions with end >= earliest_end and start <= latest_start."""
        rows = self._joined()
        found = [row for row in rows[bisect_left(rows, (earliest_end,)) :] if row[1] <= latest_start]
        self._set_apart()
        return found

    def put(self, start: int, end: int, value: Any) -> None:
        """Set the value of a session, or remove it if that is None."""
        rows = self._joined()
        at, exists = _place(rows, start, end)
        rows[at : at + exists] = () if value is None else ((end, start, value),)
        self._set_apart()

    def add_earlier(self, rows: list[SessionRow], known_after: int) -> None:
        """Add the sessions of the store below that end after `known_after`, up to the present one."""
        self._joined()[:0] = rows
        self._stored[:0] = rows
        self.known_after = known_after
        self._set_apart()

    def take_changes(self, kept_after: int) -> tuple[list[SessionRow], list[SessionRow]]:
        """Return the rows to remove from the store below, and the rows to add: then it has these sessions.

        A session with another value is in both. Sessions that end at `kept_after` or earlier are forgotten first:
        they are freed as all that has expired.
        """
        rows, stored = self._joined(), self._stored
        if rows and rows[0][0] <= kept_after:
            self._drop_earlier(kept_after)
        first, both = 0, min(len(stored), len(rows))
        while first < both and _are_same(stored[first], rows[first]):
            first += 1
        gone, added = stored[first:], rows[first:]
        stored[first:] = added
        while gone and added and _are_same(gone[-1], added[-1]):
            gone.pop()
            added.pop()
        if len(rows) > MOST_OF_A_KEY:
            self._drop_earlier(rows[-1 - MOST_OF_A_KEY // 2][0])
        self._set_apart()
        self.is_changed = False
        return gone, added

    def _joined(self) -> list[SessionRow]:
        """Return all known sessions; none is set apart any more."""
        if self.end >= 0:
            self._earlier.append((self.end, self.start, self.value))
            self.end = -1
        return self._earlier

    def _set_apart(self) -> None:
        """Set the latest session apart, if there is one."""
        rows = self._earlier
        if rows:
            self.end, self.start, self.value = rows.pop()
        self.alone_after = rows[-1][0] if rows else self.known_after

    def _drop_earlier(self, known_after: int) -> None:
        for rows in (self._earlier, self._stored):
            del rows[: bisect_left(rows, (known_after + 1,))]
        self.known_after = known_after


def _place(rows: list[SessionRow], start: int, end: int) -> tuple[int, bool]:
    """Return where a session is or would be, and whether it is there."""
    at = bisect_left(rows, (end, start))
    return at, at < len(rows) and rows[at][:2] == (end, start)


def _are_same(one: SessionRow, other: SessionRow) -> bool:
    return one is other or (one[0] == other[0] and one[1] == other[1] and one[2] is other[2])
