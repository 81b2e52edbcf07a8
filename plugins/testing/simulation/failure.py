"""What ends a simulated host, and what ends a simulation."""

from __future__ import annotations

from collections.abc import Sequence


class HostDied(BaseException):
    """Raised in a simulated host at the place where it dies; no code but the simulator's may catch it for good."""


class SimulatedOutage(Exception):
    """The cause of a LogError that the simulator has made up."""


class SimulatedDiskError(OSError):
    """An error of the disk that the simulator has made up."""


class SimulationFailure(AssertionError):
    """A history after which something is not as it would be without faults. `story` has a line for each event."""

    def __init__(self, what: str, story: Sequence[str]) -> None:
        self.what = what
        self.story = tuple(story)
        lines = "\n".join(f"  {line}" for line in story)
        super().__init__(f"{what}\nThe history, with the simulated time in seconds:\n{lines}")
