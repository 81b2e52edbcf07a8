"""OpenWindows: which windows have not been closed yet, by their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any

from penstock import ProcessorContext

from ..own_time import WindowTime

NEVER = 2**63 - 1
_NEXT, _SENT = "next_end", "closed_to"

Ends = Iterable[tuple[int, Any]]
"""The end of a window, and what tells it apart from others with this end."""


class OpenWindows:
    """The windows to be emitted when they close. `next_end` is the earliest end of one: before it nothing is due.

    It is known in memory alone. When the task was opened, it is read from the store by `scan`, which gets the time up
    to which windows were sent before; but only when one may be due. If the program before sent updates (`on_close`
    is new), those that are open then are emitted when they close. If it is this one that does, `has_unsent` says
    whether windows are open of which nothing was sent.
    """

    def __init__(
        self, context: ProcessorContext, time: WindowTime, scan: Callable[[int], Ends], *, on_close: bool
    ) -> None:
        self._values = context.saved_numbers
        self._scan = scan
        self._ends: list[int] = []
        self._by_end: dict[int, list[Any]] = {}
        self._is_complete = False
        if on_close and _NEXT not in self._values and time.now >= 0:
            # Updates were sent of all that has closed so far.
            self._values[_SENT], self._values[_NEXT] = time.closed, -1
        self.next_end = self._values.get(_NEXT, NEVER)
        self.has_unsent = not on_close and self.next_end != NEVER
        if not on_close and not self.has_unsent:
            self._values.pop(_NEXT, None)

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
        self._values[_SENT] = until
        self.next_end = self._values[_NEXT] = self._ends[0] if self._ends else NEVER
        return due

    def take_unsent(self) -> list[tuple[int, Any]]:
        """Return all windows that are open, by their ends; from now on none is remembered."""
        self._read()
        del self._values[_NEXT]
        self.has_unsent = False
        return [(end, window) for end in sorted(self._by_end) for window in self._by_end[end]]

    def _read(self) -> None:
        self._ends.clear()
        self._by_end.clear()
        sent_to = self._values.get(_SENT, -1)
        for end, window in self._scan(sent_to):
            if end > sent_to:
                self.add(end, window)
        self._is_complete = True
