"""Punctuators: functions that the task calls for a processor as time passes."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

Punctuator = Callable[[int], None]
"""Called with the time (ms) at which it fires: stream time or wall-clock time."""


class PunctuationType(Enum):
    """Which time drives a punctuator."""

    STREAM_TIME = "stream"
    WALL_CLOCK_TIME = "wall"


STREAM_TIME = PunctuationType.STREAM_TIME
WALL_CLOCK_TIME = PunctuationType.WALL_CLOCK_TIME


class Cancellable(Protocol):
    """A schedule that can be ended."""

    def cancel(self) -> None:
        """Never fire again; idempotent."""
        ...
