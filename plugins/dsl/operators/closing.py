"""When windows close: the stream time of one operator, and the windows that are open."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from penstock import ProcessorContext

_OBSERVED, _ARRIVED, _MOVED, _IN_FRONT = "observed", "arrived", "moved", "in_front"
_WAIT, _CLOSED = "wait", "closed"


class OwnTime:
    """`now` is the highest timestamp (ms) that the operator has seen; -1 before the first record."""

    __slots__ = ("_values", "now")

    def __init__(self, context: ProcessorContext) -> None:
        self._values = context.saved_numbers
        self.now = self._values.get(_OBSERVED, -1)

    def move(self, timestamp: int) -> None:
        """Set the time, which is later than before."""
        self.now = self._values[_OBSERVED] = timestamp


class WindowTime(OwnTime):
    """`closed`: windows that end at this time (ms) or before have closed; -1 while none has.

    That is `wait_ms` before `now`. A window that has closed stays so when a later program waits longer: it may have
    been sent, and its row may be gone.
    """

    __slots__ = ("_wait_ms", "closed")

    def __init__(self, context: ProcessorContext, wait_ms: int) -> None:
        super().__init__(context)
        values = self._values
        waited_ms, values[_WAIT] = values.get(_WAIT, wait_ms), wait_ms
        if waited_ms != wait_ms and self.now >= 0:
            values[_CLOSED] = max(values.get(_CLOSED, -1), self.now - waited_ms)
        self._wait_ms = wait_ms
        self.closed = max(self.now - wait_ms, values.get(_CLOSED, -1))

    def move(self, timestamp: int) -> None:
        self.now = self._values[_OBSERVED] = timestamp
        closed = timestamp - self._wait_ms
        if closed > self.closed:
            self.closed = closed

    def close(self, until: int) -> None:
        """Close the windows that end at `until` (ms) or before: they have left a suppression further down."""
        if until > self.closed:
            self.closed = self._values[_CLOSED] = until


def forget_idle_time(context: ProcessorContext) -> None:
    """Drop what an IdleClock saved, in a program without one: if it comes back, it counts from then on."""
    values = context.saved_numbers
    for name in (_ARRIVED, _MOVED, _IN_FRONT):
        values.pop(name, None)


class IdleClock:
    """Moves the time of an operator on while no record arrives: after `idle_ms`, as fast as the wall clock goes.

    It looks four times in `idle_ms`, and saves what it decides with the task. A stop of the application counts only up
    to the time as of which everything in front of the task has been read; reading there counts as an arrival, and so
    does a record of a node in front that holds back results. `time` returns the operator's time (ms), `move` sets it.
    """

    def __init__(
        self, context: ProcessorContext, idle_ms: int, time: Callable[[], int], move: Callable[[int], Any]
    ) -> None:
        self._values = context.saved_numbers
        self.idle_ms = idle_ms
        self._interval = max(1, idle_ms // 4)
        self._time = time
        self._move = move
        self._wall_clock = context.current_system_time_ms
        self._read_in_front = context.offsets_read_in_front
        self._held_back_at = context.held_back_in_front_at
        self._values.setdefault(_ARRIVED, self._wall_clock())
        context.schedule_when_settled(f"{self._interval}ms", self._tick, "idle")

    def note_arrival(self) -> None:
        """Record the arrival of a record."""
        self._values[_ARRIVED] = self._wall_clock()

    def _tick(self, now: int) -> None:
        values, read = self._values, self._read_in_front()
        if read != values.get(_IN_FRONT, 0):
            values[_IN_FRONT], values[_ARRIVED] = read, max(now, values[_ARRIVED])
        if (held_back_at := self._held_back_at()) > values[_ARRIVED]:
            values[_ARRIVED] = held_back_at
        time = self._time()
        if time >= 0 and now - values[_ARRIVED] >= self.idle_ms:
            passed = now - max(values[_ARRIVED], values.get(_MOVED, 0))
            values[_MOVED] = now
            if passed > 0:
                self._move(time + passed)


NEVER = 2**63 - 1
_NEXT, _SENT, _OPEN_SENT = "next_end", "closed_to", "open_sent"
_FEW = 64

Note = tuple[int, Any, Any]
"""The end of a window (ms), what tells it apart from all others and orders those of one end, and the key it is of."""


class OpenWindows:
    """The windows to be emitted when they close: one note of each. Before `next_end` nothing is due.

    A session that grows keeps its note, whose end may be earlier then. The notes are in memory alone: `scan` reads them
    from the store, from the time up to which windows were sent, once one may be due. With `on_close` new, open windows
    are emitted when they close; with it gone, `has_unsent` says whether nothing was sent of open ones. `has_sent`: with
    it new, and `takes_back`, updates of open windows were sent, which the operator takes back first.
    """

    def __init__(
        self,
        context: ProcessorContext,
        time: WindowTime,
        scan: Callable[[int], Iterable[Note]],
        *,
        on_close: bool,
        takes_back: bool,
    ) -> None:
        values = self._values = context.saved_numbers
        self._scan = scan
        self._notes: dict[Any, tuple[int, Any]] = {}
        self._order: list[tuple[int, Any]] = []
        """A heap of the end and the name of each note, and of some that are gone."""
        self._is_complete = False
        if on_close and _NEXT not in values and time.now >= 0:
            # Updates were sent of all that has closed so far.
            values[_SENT], values[_NEXT] = time.closed, -1
            if takes_back:
                values[_OPEN_SENT] = 1
        elif not on_close and values.pop(_OPEN_SENT, 0):
            values.pop(_NEXT, None)  # no record came meanwhile: all are as they were sent
        self.has_sent = bool(values.get(_OPEN_SENT, 0))
        self.next_end = values.get(_NEXT, NEVER)
        self.has_unsent = not on_close and self.next_end != NEVER
        if not on_close and not self.has_unsent:
            values.pop(_NEXT, None)

    def add(self, end: int, which: Any, key: Any = None) -> None:
        """Add a window that was put into the store. One that has a note keeps it."""
        if which in self._notes:
            return
        self._notes[which] = end, key
        heappush(self._order, (end, which))
        if end < self.next_end:
            self.next_end = self._values[_NEXT] = end

    def merge(self, merged: Iterable[Any], end: int, which: Any, key: Any) -> None:
        """Add a window in place of others, with the earliest end that one was noted with; none if `which` is None."""
        notes = self._notes
        ends = [notes.pop(each)[0] for each in merged if each in notes]  # one of before the opening may have none
        if which is not None:
            self.add(min(ends, default=end), which, key)
        if len(self._order) > 2 * len(notes) + _FEW:
            self._order = [(noted, each) for each, (noted, _) in notes.items()]
            heapify(self._order)

    def take(self, until: int) -> list[Note]:
        """Remove and return the windows that were noted with an end of `until` or before, in order."""
        if not self._is_complete:
            self._read()
        due: list[Note] = []
        notes, order = self._notes, self._order
        while order:
            end, which = order[0]
            noted, key = notes.get(which, (None, None))
            if noted == end:
                if end > until:
                    break
                del notes[which]
                due.append((end, which, key))
            heappop(order)
        self._values[_SENT] = until
        self.next_end = self._values[_NEXT] = order[0][0] if order else NEVER
        return due

    def take_unsent(self) -> list[Note]:
        """Return all windows that are open, in order; from now on none is remembered."""
        self._read()
        del self._values[_NEXT]
        self.has_unsent = False
        return [(end, which, self._notes[which][1]) for end, which in sorted(self._order)]

    def sent(self) -> list[Note]:
        """Return all windows of which updates were sent while they were open, in order; they stay noted."""
        self._read()
        self.next_end = self._values[_NEXT] = self._order[0][0] if self._order else NEVER
        return [(end, which, self._notes[which][1]) for end, which in sorted(self._order)]

    def forget_sent(self) -> None:
        """Record that the updates of open windows were taken back."""
        self.has_sent, self._values[_OPEN_SENT] = False, 0

    def _read(self) -> None:
        self._notes.clear()
        self._order.clear()
        sent_to = self._values.get(_SENT, -1)
        for end, which, key in self._scan(sent_to):
            if end > sent_to:
                self.add(end, which, key)
        self._is_complete = True
