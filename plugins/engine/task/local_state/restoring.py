"""Restoring: the progress of a restore of a task's stores; another thread watches it, and may end it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from penstock import RestoreEvent, RestoreListener, RestorePhase, StaleStoreError, Work

_log = logging.getLogger("penstock.state")


@dataclass(frozen=True)
class RestoreProgress:
    """A task whose state is restored: entries so far, entries a second, and seconds since the first one.

    `share`: read share of the history, from 0 to 1. `seconds_left`: until all is read, at this rate. None where that is
    unknown.
    """

    entries: int
    entries_per_second: float
    seconds: float
    share: float | None
    seconds_left: float | None


class Restoring:
    """Watches what one thread restores at a time. Any thread may call `progress`. `seconds` is a stopwatch."""

    def __init__(self, task_id: str, seconds: Callable[[], float], listener: RestoreListener | None) -> None:
        self._task_id = task_id
        self._seconds = seconds
        self._listener = listener
        self._now: tuple[RestoreEvent, Work, float] | None = None
        self.entries = 0
        """Entries restored so far."""

    @contextmanager
    def of(self, stores: Sequence[str], version: str, work: Work) -> Iterator[None]:
        """Watch the restoring of stores to a version, until the end of the block."""
        event = RestoreEvent(RestorePhase.START, self._task_id, tuple(stores), version)
        began, entries = self._seconds(), self.entries
        self._now = event, work, began

        def last(phase: RestorePhase, reason: str = "") -> None:
            self._now = None
            if self.entries > entries:
                self._tell(replace(self._event(event, work, phase, entries), reason=reason))

        try:
            yield
        except BaseException as error:
            last(RestorePhase.SUSPENDED, f"{type(error).__name__}: {error}")
            raise
        last(RestorePhase.END)

    def add(self, entries: int) -> None:
        """Count entries that were written, one portion."""
        before, self.entries = self.entries, self.entries + entries
        if self._now is None or not entries:
            return
        event, work, began = self._now
        if event.phase is RestorePhase.START:
            self._tell(replace(event, total=work.total))
            event = replace(event, phase=RestorePhase.BATCH, restored=before)
            self._now = event, work, began
        self._tell(self._event(event, work, RestorePhase.BATCH, event.restored))

    def _event(self, event: RestoreEvent, work: Work, phase: RestorePhase, before: int) -> RestoreEvent:
        return replace(event, phase=phase, restored=self.entries - before, done=work.done, total=work.total)

    def _tell(self, event: RestoreEvent) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:
            _log.exception("task %s: the listener of restores failed at %s", self._task_id, event)

    def progress(self) -> RestoreProgress | None:
        """Return the progress of the restore; None if none is running."""
        now = self._now
        if now is None:
            return None
        event, work, began = now
        seconds = max(self._seconds() - began, 0.001)
        entries = self.entries - event.restored if event.phase is RestorePhase.BATCH else 0
        share = min(1.0, work.done / work.total) if work.total else None
        left = seconds * (1 - share) / share if share else None
        return RestoreProgress(
            entries, round(entries / seconds, 1), round(seconds, 3), share and round(share, 4), left and round(left, 1)
        )


class Stretch:
    """Counts the steps of a piece of work named `what`, such as restoring a store. Any thread may call all methods."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._has_ended = False
        self.steps = 0
        """How many steps were made: as long as it grows, the work does not stand still."""
        self.between: Callable[[], None] = lambda: None
        """Called after a step, by the working thread: it may let others work."""
        self.is_waiting = False
        """Whether others have their turn now."""
        self._seen, self._seen_at = -1, 0.0

    def begin(self, now: float) -> None:
        """Begin the work again, after an `end`. `now`: as for `still`."""
        self._has_ended = False
        self._seen, self._seen_at = self.steps, now

    def still(self, now: float) -> float:
        """Return the seconds, by a stopwatch, since calls last saw a step; 0.0 while others have their turn."""
        if self._seen == self.steps and not self.is_waiting:
            return now - self._seen_at
        self._seen, self._seen_at = -1 if self.is_waiting else self.steps, now
        return 0.0

    def moved(self, steps: int = 1) -> None:
        """Count steps; the working thread calls it. Raises StaleStoreError after `end`."""
        self.steps += steps
        if self._has_ended:
            raise StaleStoreError(f"{self._what} was closed while it was being opened")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the work as waiting for others, for the block."""
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False

    def pause(self) -> None:
        """Count a step, and let others work; raises as `moved`."""
        with self.waiting():
            self.between()
        self.moved()

    def end(self) -> None:
        """Let the work end at its next step."""
        self._has_ended = True
