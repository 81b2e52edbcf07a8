"""Clocks, lengths of time, and punctuators. No other file of core reads a clock: they get the time as an argument."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from fractions import Fraction
from typing import Protocol

from .errors import ConfigError


class Clock(Protocol):
    """A source of the present time."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...


class SystemClock(Clock):
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock(Clock):
    """A clock whose time changes only when a test moves it.

    >>> clock = ManualClock(5)
    >>> clock.advance("1s")
    >>> clock.now_ms()
    1005
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, duration: Duration) -> None:
        """Move the clock on, or set it back by a negative timedelta."""
        self._now_ms += duration_ms(duration, may_be_negative=True)


Duration = timedelta | str
"""A length of time: a timedelta, or text such as "250ms", "10s", "5m", "1h30m", "7d". Never a bare number."""

_MICROSECOND = timedelta(microseconds=1)
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def duration_ms(duration: Duration, what: str = "duration", *, may_be_negative: bool = False) -> int:
    """Return `duration` in milliseconds. Raises ConfigError, which begins with `what`, for other values.

    >>> duration_ms("1h30m"), duration_ms(timedelta(seconds=2))
    (5400000, 2000)
    """
    if isinstance(duration, timedelta):
        if duration < timedelta(0) and not may_be_negative:
            raise ConfigError(f"{what}: expected a length of time of 0 or more, found {duration!r}")
        return round(Fraction(duration // _MICROSECOND, 1000))
    if isinstance(duration, str):
        text = duration.replace(" ", "")
        parts = _PART.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            # A float has no more than 53 bits of a number such as Java's Long.MAX_VALUE.
            return round(sum(Fraction(number) * _UNITS[unit] for number, unit in parts))
    raise ConfigError(
        f'{what}: expected a timedelta or text like "250ms", "10s", "1h30m", found {duration!r}' + unit_hint(duration)
    )


def unit_hint(given: object) -> str:
    """Return a hint for a message about a bare number in place of a length of time; "" for other values."""
    number = str(given).strip() if type(given) in (int, float, str) else ""
    if re.fullmatch(r"\d+(\.\d+)?", number) is None:
        return ""
    return f' (a bare number does not say its unit: write "{number}s" or "{number}ms")'


# ---------------------------------------------------------------- which clock drives a punctuator

Punctuator = Callable[[int], None]
"""Called with the time (ms) at which it fires: stream time or wall-clock time."""


class Times(Protocol):
    """The times at which a schedule is due, where these are no multiples of an interval: those of a calendar."""

    def next_after(self, time: int) -> int | None:
        """Return the first time after `time`, in ms since the epoch; None if there is none.

        It depends on the argument alone: a schedule asks again after each firing, and as a task is opened.
        """
        ...


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
