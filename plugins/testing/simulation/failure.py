"""What ends a simulated host, and what ends a simulation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from traceback import extract_tb

from penstock import PenstockError


class HostDied(BaseException):
    """Raised in a simulated host at the place where it dies; no code but the simulator's may catch it for good."""


class SimulatedOutage(Exception):
    """The cause of a LogError that the simulator has made up."""


class SimulatedDiskError(OSError):
    """An error of the disk that the simulator has made up."""


class SimulationFailure(AssertionError):
    """A history after which something is not as it would be without faults.

    `story` has a line for each thing that happened, and `events` of them are events: what a step did, or a fault.
    """

    def __init__(self, what: str, story: Sequence[str], events: int) -> None:
        self.what = what
        self.story = tuple(story)
        self.events = events
        lines = "\n".join(f"  {line}" for line in self.story)
        super().__init__(f"{what}\nThe history: the simulated time in seconds, and the number of each event:\n{lines}")

    def __reduce__(self) -> tuple[type[SimulationFailure], tuple[str, tuple[str, ...], int]]:
        return type(self), (self.what, self.story, self.events)


def described(error: BaseException) -> str:
    """Return an error with its kind; one that is not meant for users, also with the line of code that raised it."""
    text, frames = f"{type(error).__name__}: {error}", extract_tb(error.__traceback__)
    if isinstance(error, PenstockError) or not frames:
        return text
    last = frames[-1]
    return f"{text} ({os.path.basename(last.filename)}, line {last.lineno}, in {last.name}: {last.line})"
