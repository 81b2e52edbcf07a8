"""Timeline: the time, the random names and the story of one simulation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from .failure import SimulationFailure

BEGINNING_MS = 1_700_000_000_000


class Timeline:
    """Time passes when a step says so. All hosts share it; each may have a clock that is ahead of it."""

    def __init__(self, beginning_ms: int = BEGINNING_MS) -> None:
        self._beginning_ms = beginning_ms
        self._seconds = 0.0
        self._tokens = count(1)
        self._is_event = False
        self.story: list[str] = []
        """A line for each thing that happened, in order. Events have a number: what each step did first, and faults."""
        self.events = 0
        """How many events there were."""
        self.on_passing: Callable[[], None] = lambda: None
        """Called when time has passed."""

    def seconds(self) -> float:
        """Return the seconds since the beginning."""
        return self._seconds

    def now_ms(self) -> int:
        """Return the time in ms since the epoch."""
        return self._beginning_ms + round(self._seconds * 1000)

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self._seconds += seconds
        self.on_passing()

    def token(self, size: int) -> str:
        """Return a name of so many bytes, in hexadecimal digits, that was not given before."""
        return f"{next(self._tokens):0{2 * size}x}"

    def begin_step(self) -> None:
        """Let what is told next be an event."""
        self._is_event = True

    def end_steps(self) -> None:
        """Let what is told next be none."""
        self._is_event = False

    def failure(self, what: str) -> SimulationFailure:
        """Return what to raise for a history up to now after which something is wrong."""
        return SimulationFailure(what, self.story, self.events)

    def tell(self, what: str, *, is_event: bool = False) -> None:
        """Add a line to the story."""
        is_event, self._is_event = is_event or self._is_event, False
        self.events += is_event
        number = str(self.events) if is_event else ""
        self.story.append(f"{self._seconds:9.3f} {number:>3} {what}")
