"""OpenWindows: which windows have not been closed yet, by their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any

from penstock.context import ProcessorContext

from .own_time import saved_values

NEVER = 2**63 - 1
_NEXT, _CLOSED = "next_end", "closed_to"

Ends = Iterable[tuple[int, Any]]
"""The end of a window, and what tells it apart from others with this end."""


class OpenWindows:
    """The windows to be emitted when they close. `next_end` is the earliest end of one: before it nothing is due.

    It is known in memory alone. When the task was opened, it is read from the store by `scan`, which gets the time up
    to which windows were closed before; but only when one may be due.
    """

    def __init__(self, context: ProcessorContext, scan: Callable[[int], Ends]) -> None:
        self._values = saved_values(context)
        self._scan = scan
        self._ends: list[int] = []
        self._by_end: dict[int, list[Any]] = {}
        self._is_complete = False
        self.next_end = self._values.get(_NEXT, NEVER)

    def add(self, end: int, window: Any) -> None:
        """Add a window that was made."""
        windows = self._by_end.get(end)
        if windows is not None:
            windows.append(window)
            return
        self._by_end[end] = [window]
        heappush(self._ends, end)
        if end < self.next_end:
            self.next_end = self._values[_NEXT] = end

    def add_once(self, end: int, window: Any) -> None:
        """Add a window, if it is not there."""
        windows = self._by_end.get(end)
        if windows is None or window not in windows:
            self.add(end, window)

    def take(self, until: int) -> list[tuple[int, Any]]:
        """Remove and return the windows that end at `until` or before, by their ends."""
        if not self._is_complete:
            self._read()
        due: list[tuple[int, Any]] = []
        while self._ends and self._ends[0] <= until:
            end = heappop(self._ends)
            due.extend((end, window) for window in self._by_end.pop(end))
        self._values[_CLOSED] = until
        self.next_end = self._values[_NEXT] = self._ends[0] if self._ends else NEVER
        return due

    def _read(self) -> None:
        self._ends.clear()
        self._by_end.clear()
        closed_to = self._values.get(_CLOSED, -1)
        for end, window in self._scan(closed_to):
            if end > closed_to:
                self.add(end, window)
        self._is_complete = True
