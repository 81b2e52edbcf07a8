"""OpenWindows: which windows have not been closed yet, by their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from penstock import ProcessorContext

from ..own_time import WindowTime

NEVER = 2**63 - 1
_NEXT, _SENT = "next_end", "closed_to"
_FEW = 64

Note = tuple[int, Any, Any]
"""The end of a window, what tells it apart from others with this end and orders them, and what else to know of it."""


class OpenWindows:
    """The windows to be emitted when they close: one note of each. Before `next_end` nothing is due.

    It is known in memory alone. When the task was opened, it is read from the store by `scan`, which gets the time up
    to which windows were sent before; but only when one may be due. If the program before sent updates (`on_close`
    is new), those that are open then are emitted when they close. If it is this one that does, `has_unsent` says
    whether windows are open of which nothing was sent.
    """

    def __init__(
        self, context: ProcessorContext, time: WindowTime, scan: Callable[[int], Iterable[Note]], *, on_close: bool
    ) -> None:
        self._values = context.saved_numbers
        self._scan = scan
        self._ends: list[int] = []
        self._by_end: dict[int, dict[Any, Any]] = {}
        self._is_complete = False
        if on_close and _NEXT not in self._values and time.now >= 0:
            # Updates were sent of all that has closed so far.
            self._values[_SENT], self._values[_NEXT] = time.closed, -1
        self.next_end = self._values.get(_NEXT, NEVER)
        self.has_unsent = not on_close and self.next_end != NEVER
        if not on_close and not self.has_unsent:
            self._values.pop(_NEXT, None)

    def add(self, end: int, which: Any, window: Any = None) -> None:
        """Add a window that is in the store from now on; to add it again changes nothing."""
        windows = self._by_end.get(end)
        if windows is not None:
            windows[which] = window
            return
        self._by_end[end] = {which: window}
        heappush(self._ends, end)
        if end < self.next_end:
            self.next_end = self._values[_NEXT] = end

    def remove(self, end: int, which: Any) -> None:
        """Remove a window that is no longer in the store."""
        windows = self._by_end.get(end)
        if windows is None or which not in windows:
            return  # it was made before the task was opened
        del windows[which]
        if not windows:
            del self._by_end[end]
            if len(self._ends) > 2 * len(self._by_end) + _FEW:
                self._ends[:] = self._by_end
                heapify(self._ends)

    def take(self, until: int) -> list[Note]:
        """Remove and return the windows that end at `until` or before, by their ends and by what tells them apart."""
        if not self._is_complete:
            self._read()
        due: list[Note] = []
        while self._ends and (self._ends[0] <= until or self._ends[0] not in self._by_end):
            end = heappop(self._ends)
            due.extend(_notes(end, self._by_end.pop(end, {})))
        self._values[_SENT] = until
        self.next_end = self._values[_NEXT] = self._ends[0] if self._ends else NEVER
        return due

    def take_unsent(self) -> list[Note]:
        """Return all windows that are open, in the order of `take`; from now on none is remembered."""
        self._read()
        del self._values[_NEXT]
        self.has_unsent = False
        return [note for end in sorted(self._by_end) for note in _notes(end, self._by_end[end])]

    def _read(self) -> None:
        self._ends.clear()
        self._by_end.clear()
        sent_to = self._values.get(_SENT, -1)
        for end, which, window in self._scan(sent_to):
            if end > sent_to:
                self.add(end, which, window)
        self._is_complete = True


def _notes(end: int, windows: dict[Any, Any]) -> list[Note]:
    return [(end, which, windows[which]) for which in sorted(windows)]
