"""KnownSessions: the latest sessions of one key of a session store, as objects."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

Session = tuple[int, int, Any]
"""End, start and value."""


class KnownSessions:
    """The sessions of one key that end after `known_after`: `rows` has (end, start, value) in order.

    `stored` is what the store below has of them.
    """

    __slots__ = ("known_after", "rows", "stored")

    def __init__(self, known_after: int) -> None:
        self.rows: list[Session] = []
        self.stored: dict[tuple[int, int], Any] = {}
        self.known_after = known_after

    def add_earlier(self, rows: list[Session], known_after: int) -> None:
        """Add sessions that the store below has: those that end after `known_after`, up to the present one."""
        self.rows[:0] = rows
        self.stored.update(((end, start), value) for end, start, value in rows)
        self.known_after = known_after

    def drop_earlier(self, known_after: int) -> list[Session]:
        """Take sessions that end at `known_after` or earlier out of `rows`, and return them."""
        at = bisect_left(self.rows, (known_after + 1,))
        dropped = self.rows[:at]
        del self.rows[:at]
        self.known_after = known_after
        return dropped

    def put(self, end: int, start: int, value: Any) -> bool:
        """Set the value of a session, or remove it if that is None; return whether anything changed."""
        rows = self.rows
        at = bisect_left(rows, (end, start))
        exists = at < len(rows) and rows[at][:2] == (end, start)
        if value is None:
            if exists:
                del rows[at]
            return exists
        if exists:
            rows[at] = (end, start, value)
        else:
            rows.insert(at, (end, start, value))
        return True
