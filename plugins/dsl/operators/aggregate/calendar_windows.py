"""Windows of the calendar: days, weeks, months, quarters and years of a time zone, as long as they are there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from penstock import Duration, TopologyError
from penstock.support.zones import zone_named

from .windows import TimeWindows, Window, grace_of

_DAY_MS = 24 * 3600 * 1000
_LONGEST_DAYS = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_CYCLE_MS = 146_097 * _DAY_MS
"""400 years: the calendar repeats itself, and so do the rules of time zones for the years to come."""
_LAST_CYCLE = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp()) * 1000
"""Python's calendar ends with the year 9999: a later time is looked up so many cycles before it."""
_KNOWN = 10_000
"""How many windows a task remembers."""


@dataclass(frozen=True)
class CalendarWindows(TimeWindows):
    """Windows from one beginning of a day, week, month, quarter or year to the next, in a time zone."""

    unit: str
    zone: tzinfo
    week_begins: str
    grace_ms: int

    @property
    def form(self) -> str:
        kind = f"weeks from {self.week_begins}" if self.unit == "week" else f"{self.unit}s"
        return f"calendar {kind} in {self.zone}"

    @property
    def size_ms(self) -> int:
        """The longest window, and a day more: a zone may put its clocks back by up to one."""
        return (_LONGEST_DAYS[self.unit] + 1) * _DAY_MS

    def windows_for(self, timestamp: int) -> Sequence[Window]:
        """Return the one window that a record belongs to."""
        return (self._window(timestamp),)

    def compile(self) -> Callable[[int], Sequence[Window]]:
        starts: list[int] = []
        windows: list[tuple[Window]] = []

        def windows_for(timestamp: int) -> Sequence[Window]:
            place = bisect_right(starts, timestamp)
            if place and timestamp < windows[place - 1][0][1]:
                return windows[place - 1]
            if len(starts) == _KNOWN:
                starts.clear()
                windows.clear()
                place = 0
            window = self._window(timestamp)
            starts.insert(place, window[0])
            windows.insert(place, (window,))
            return windows[place]

        return windows_for

    def _window(self, timestamp: int) -> Window:
        cycles = max(0, (timestamp - _LAST_CYCLE) // _CYCLE_MS + 1)
        time = timestamp - cycles * _CYCLE_MS
        local = datetime.fromtimestamp(time // 1000, self.zone).date()
        first = self._first_day(local)
        start = self._begin_ms(first)
        while start > time:  # clocks jump from before midnight to behind it
            first = self._first_day(first - timedelta(days=1))
            start = self._begin_ms(first)
        # Where clocks are put back over midnight, the day before comes again, and belongs to the new one. A day that
        # the zone leaves out begins with the next one, and has no window.
        while (end := self._begin_ms(following := self._next(first))) <= time:
            first, start = following, end
        return max(start + cycles * _CYCLE_MS, 0), end + cycles * _CYCLE_MS

    def _first_day(self, day: date) -> date:
        """Return the first day of the window that a day is in."""
        if self.unit == "day":
            return day
        if self.unit == "week":
            return day - timedelta(days=(day.weekday() - _WEEKDAYS.index(self.week_begins)) % 7)
        months = _MONTHS[self.unit]
        return date(day.year, (day.month - 1) // months * months + 1, 1)

    def _next(self, first: date) -> date:
        """Return the first day of the next window."""
        return self._first_day(first + timedelta(days=_LONGEST_DAYS[self.unit]))

    def _begin_ms(self, day: date) -> int:
        """Return the first time (ms) of a day in the zone."""
        # Where clocks jump over midnight, this is the jump.
        return int(datetime(day.year, day.month, day.day, tzinfo=self.zone).timestamp()) * 1000


def calendar_windows(
    unit: str, *, tz: str | tzinfo, grace: Duration | None = None, week_begins: str = "monday"
) -> CalendarWindows:
    """Return windows that are a "day", "week", "month", "quarter" or "year" of the calendar in a time zone.

    `tz`: a name such as "Europe/Berlin" or "UTC", a ZoneInfo, or a timezone of the standard library. Windows are as
    long as the calendar says: a day on which clocks are put forward has 23 hours. A window begins with the first time
    of its first day. The first one begins at 0, if the zone's would begin before. A week begins on the day
    `week_begins`. `grace`: see `tumbling`.

    Windows follow from the zone's rules that the machine has (its package of time zones, or tzdata from PyPI): all
    machines of an application need the same ones.

    Raises TopologyError for an unknown unit, zone or day.

    >>> day = calendar_windows("day", tz="Europe/Berlin", grace="1h")
    >>> [(start, end)] = day.windows_for(1_774_742_400_000)  # 2026-03-29, when clocks are put forward
    >>> (end - start) / 3_600_000
    23.0
    """
    if unit not in _LONGEST_DAYS:
        raise TopologyError(f"calendar_windows: unit is one of {', '.join(map(repr, _LONGEST_DAYS))}, found {unit!r}")
    if week_begins not in _WEEKDAYS:
        raise TopologyError(
            f"calendar_windows: week_begins is one of {', '.join(map(repr, _WEEKDAYS))}, found {week_begins!r}"
        )
    grace_ms = grace_of('calendar_windows("day", tz="Europe/Berlin", ', grace)
    return CalendarWindows(unit, _zone(tz), week_begins if unit == "week" else "monday", grace_ms)


def _zone(tz: Any) -> tzinfo:
    try:
        zone = zone_named(tz)
    except ValueError as error:
        raise TopologyError(f"calendar_windows: {error}") from error
    if (isinstance(zone, ZoneInfo) and zone.key is not None) or isinstance(zone, timezone):
        return zone
    raise TopologyError(
        f"calendar_windows: tz is the name of a time zone, a ZoneInfo with a name, or a datetime.timezone, found {tz!r}"
    )
