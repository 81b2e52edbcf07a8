"""OwnTime: the stream time of one operator, which is that of the records it got, and not the task's."""

from __future__ import annotations

from collections.abc import Callable
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


def forget_idle_time(context: ProcessorContext) -> None:
    """Drop what an IdleClock saved, in a program without one: if it comes back, it counts from then on."""
    values = context.saved_numbers
    for name in (_ARRIVED, _MOVED, _IN_FRONT):
        values.pop(name, None)


class IdleClock:
    """Moves the time of an operator on while no record arrives: after `idle_ms`, as fast as the wall clock goes.

    It looks four times in `idle_ms`. What it decides is saved with the task. Time in which the application was stopped
    counts, but only up to the time as of which everything in front of the task has been read, in its inputs and in
    those of the tasks whose topics it reads; and where these have read something, it counts from that time on.
    """

    def __init__(self, context: ProcessorContext, idle_ms: int, time: OwnTime, move: Callable[[int], Any]) -> None:
        self._values = context.saved_numbers
        self.idle_ms = idle_ms
        self._interval = max(1, idle_ms // 4)
        self._time = time
        self._move = move
        self._wall_clock = context.current_system_time_ms
        self._read_in_front = context.offsets_read_in_front
        self._values.setdefault(_ARRIVED, self._wall_clock())
        context.schedule_when_settled(f"{self._interval}ms", self._tick, "idle")

    def note_arrival(self) -> None:
        """Note that a record has arrived."""
        self._values[_ARRIVED] = self._wall_clock()

    def _tick(self, now: int) -> None:
        values, read = self._values, self._read_in_front()
        if read != values.get(_IN_FRONT, 0):
            values[_IN_FRONT], values[_ARRIVED] = read, max(now, values[_ARRIVED])
        if self._time.now >= 0 and now - values[_ARRIVED] >= self.idle_ms:
            passed = now - max(values[_ARRIVED], values.get(_MOVED, 0))
            values[_MOVED] = now
            if passed > 0:
                self._move(self._time.now + passed)
