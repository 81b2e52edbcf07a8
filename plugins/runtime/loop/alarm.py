"""Alarm: ends a stretch of a task's work when its time is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter

_LOOK_SECONDS = 0.02
_LOOKS_WITHOUT_WORK = 50
"""After so many looks without any work, the thread waits until there is some: an idle process costs nothing."""


class _Work:
    """One stretch: what ends it, when (on the alarm's clock), and whether that was done."""

    __slots__ = ("end", "has_rung", "until")

    def __init__(self, end: Callable[[], None], until: float) -> None:
        self.end, self.until, self.has_rung = end, until, False


class Alarm:
    """Calls a function when a stretch of work takes too long. The working thread calls `begin` and `end`.

    A clock that is read after each record would cost as much as a small program. So a thread of its own looks at it now
    and then, and sets what the loop over records looks at anyway (`Progress.end_soon`).
    """

    def __init__(self, seconds: Callable[[], float] = perf_counter) -> None:
        self._seconds = seconds
        self._work: _Work | None = None
        self._has_work = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def begin(self, end: Callable[[], None], until: float) -> None:
        """Let `end` be called once `until` has passed, some milliseconds later, unless `self.end` is called before."""
        self._work = _Work(end, until)
        if not self._has_work.is_set():
            self._start()

    def end(self) -> bool:
        """Note that the stretch is over; return whether the alarm has ended it."""
        work, self._work = self._work, None
        return work is not None and work.has_rung

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self._has_work.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """End the present stretch if its time is over."""
        work = self._work
        if work is not None and not work.has_rung and self._seconds() >= work.until:
            work.has_rung = True
            work.end()

    def _start(self) -> None:
        self._has_work.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-alarm", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        never_set = threading.Event()
        while not self._is_closed:
            self._has_work.wait()
            looks = 0
            while looks < _LOOKS_WITHOUT_WORK and not self._is_closed:
                never_set.wait(_LOOK_SECONDS)
                looks = looks + 1 if self._work is None else 0
                self.look()
            if not self._is_closed:
                self._has_work.clear()
                if self._work is not None:  # it began just before
                    self._has_work.set()
