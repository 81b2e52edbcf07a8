"""Timeline: the time, the random names and the story of one simulation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

_BEGINNING_MS = 1_700_000_000_000


class Timeline:
    """Time passes when a step says so. All hosts share it; each may have a clock that is ahead of it."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = count(1)
        self.story: list[str] = []
        """A line for each event, in order."""
        self.on_passing: Callable[[], None] = lambda: None
        """Called when time has passed."""

    def seconds(self) -> float:
        """Return the seconds since the beginning."""
        return self._seconds

    def now_ms(self) -> int:
        """Return the time in ms since the epoch."""
        return _BEGINNING_MS + round(self._seconds * 1000)

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self._seconds += seconds
        self.on_passing()

    def token(self, size: int) -> str:
        """Return a name of so many bytes, in hexadecimal digits, that was not given before."""
        return f"{next(self._tokens):0{2 * size}x}"

    def tell(self, event: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self._seconds:9.3f} {event}")
