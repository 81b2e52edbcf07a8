"""OwnTime: the stream time of one operator, which is that of the records it got, and not the task's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.context import ProcessorContext
from penstock.punctuation import PunctuationType

_OBSERVED, _ARRIVED, _MOVED, _TICKED = "observed", "arrived", "moved", "ticked"


def saved_values(context: ProcessorContext) -> dict[str, int]:
    """Return the numbers of this node that are saved with every commit."""
    values: dict[str, int] = context.engine_values  # type: ignore[attr-defined]
    return values


class OwnTime:
    """`now` is the highest timestamp (ms) that the operator has seen; -1 before the first record."""

    __slots__ = ("_values", "now")

    def __init__(self, context: ProcessorContext) -> None:
        self._values = saved_values(context)
        self.now = self._values.get(_OBSERVED, -1)

    def move(self, timestamp: int) -> None:
        """Set the time, which is later than before."""
        self.now = self._values[_OBSERVED] = timestamp


class IdleClock:
    """Moves the time of an operator on while no record arrives: after `idle_ms`, as fast as the wall clock goes.

    It looks four times in `idle_ms`. What it decides is saved with the task. A time in which the task was not open
    does not count, as far as a look was missed.
    """

    def __init__(self, context: ProcessorContext, idle_ms: int, time: OwnTime, move: Callable[[int], Any]) -> None:
        self._values = saved_values(context)
        self._idle_ms = idle_ms
        self._interval = max(1, idle_ms // 4)
        self._time = time
        self._move = move
        self._wall_clock = context.current_system_time_ms
        now, ticked = self._wall_clock(), self._values.get(_TICKED)
        if ticked is None or now > ticked + self._interval:
            self._values[_ARRIVED] = self._values[_TICKED] = now
        context.schedule(f"{self._interval}ms", self._tick, PunctuationType.WALL_CLOCK_TIME, name="idle")

    def note_arrival(self) -> None:
        """Note that a record has arrived."""
        self._values[_ARRIVED] = self._wall_clock()

    def _tick(self, now: int) -> None:
        values = self._values
        values[_TICKED] = now
        if self._time.now >= 0 and now - values[_ARRIVED] >= self._idle_ms:
            passed = now - max(values[_ARRIVED], values.get(_MOVED, 0))
            values[_MOVED] = now
            if passed > 0:
                self._move(self._time.now + passed)
