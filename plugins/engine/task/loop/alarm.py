"""Alarm: ends a stretch of a task's work when its time is over."""

from __future__ import annotations

from collections.abc import Callable

from penstock import World
from penstock.world import Ticker

_LOOK_SECONDS = 0.02
_LOOKS_WITHOUT_WORK = 50
"""After so many looks without any work, it looks no more until there is some: an idle process costs nothing."""


class _Work:
    """One stretch: what ends it, when (on the stopwatch), and whether that was done."""

    __slots__ = ("end", "has_rung", "until")

    def __init__(self, end: Callable[[], None], until: float) -> None:
        self.end, self.until, self.has_rung = end, until, False


class Alarm:
    """Calls a function when a stretch of work takes too long. The working thread calls `begin` and `end`.

    A clock that is read after each record would cost as much as a small program. So a ticker looks at it now and then,
    and sets what the loop over records looks at anyway (`Progress.end_soon`).
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._work: _Work | None = None
        self._ticker: Ticker | None = None
        self._idle_looks, self._rests = 0, False

    def begin(self, end: Callable[[], None], until: float) -> None:
        """Let `end` be called once `until` has passed, some milliseconds later, unless `self.end` is called before."""
        self._work = _Work(end, until)
        if self._ticker is None:
            self._ticker = self._world.ticker("penstock-alarm", _LOOK_SECONDS, self.look)
        elif self._rests:
            self._look_again()

    def end(self) -> bool:
        """Note that the stretch is over; return whether the alarm has ended it."""
        work, self._work = self._work, None
        return work is not None and work.has_rung

    def close(self) -> None:
        """Look no more."""
        if self._ticker is not None:
            self._ticker.close()

    def look(self) -> None:
        """End the present stretch if its time is over. The ticker calls it, maybe in another thread."""
        work = self._work
        if work is None:
            self._idle_looks += 1
            if self._idle_looks >= _LOOKS_WITHOUT_WORK:
                self._rest()
            return
        self._idle_looks = 0
        if not work.has_rung and self._world.seconds() >= work.until:
            work.has_rung = True
            work.end()

    def _rest(self) -> None:
        ticker = self._ticker
        if ticker is not None:
            ticker.pause()
            # In this order: whoever begins work from here on lets it look again.
            self._rests = True
            if self._work is not None:  # it began just before
                self._look_again()

    def _look_again(self) -> None:
        self._idle_looks, self._rests = 0, False
        if self._ticker is not None:
            self._ticker.resume()
