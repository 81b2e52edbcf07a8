"""Stretch: work that may take long, whose progress another thread watches, and which that thread may end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock import StaleStoreError


class Stretch:
    """Counts the steps of a piece of work, such as the restoring of a store; any thread may call all methods.

    `what` names it in the error that ends it.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._has_ended = False
        self.steps = 0
        """How many steps were made: as long as it grows, the work does not stand still."""
        self.between: Callable[[], None] = lambda: None
        """Called after a step, by the working thread: it may let others work."""
        self.is_waiting = False
        """Whether others have their turn now."""

    def begin(self) -> None:
        """Begin the work anew, after an `end`."""
        self._has_ended = False

    def moved(self, steps: int = 1) -> None:
        """Count steps; the working thread calls it. Raises StaleStoreError after `end`."""
        self.steps += steps
        if self._has_ended:
            raise StaleStoreError(f"{self._what} was closed while it was being opened")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that the work waits for others, for the block."""
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
