"""Schedules by cron expressions: `context.schedule(cron("0 9 * * mon-fri", tz="Europe/Berlin"), ...)`."""

from __future__ import annotations

from datetime import datetime, tzinfo

from penstock import ConfigError
from penstock.support.packages import needed
from penstock.support.zones import zone_named


class Cron:
    """The times of a cron expression with five fields, as `schedule` takes them in place of an interval.

    The fields are minute, hour, day, month and weekday, as in Debian's cron, with L and # besides (see
    https://pypi.org/project/cronsim/). A time of day that the zone has twice, as clocks are put back, counts once. One
    that it leaves out counts as soon as clocks have been put forward.

    Raises ConfigError with what is wrong, and MissingPackageError without cronsim.
    """

    def __init__(self, expression: str, tz: str | tzinfo = "UTC") -> None:
        with needed("contrib.cron", "cron"):
            from cronsim import CronSim, CronSimError
        if not isinstance(expression, str) or len(expression.split()) != 5:
            raise ConfigError(f"cron: expected five fields, minute hour day month weekday, found {expression!r}")
        self._expression, self._times = expression, CronSim
        try:
            self._zone = zone_named(tz)
            CronSim(expression, datetime(2024, 1, 1, tzinfo=self._zone))
        except (ValueError, CronSimError) as error:
            raise ConfigError(f"cron {expression!r}: {error}") from error

    def __repr__(self) -> str:
        return f"cron({self._expression!r}, tz={str(self._zone)!r})"

    def next_after(self, time: int) -> int | None:
        """Return the first time after `time`, in ms since the epoch; None where Python's calendar has ended."""
        try:
            for moment in self._times(self._expression, datetime.fromtimestamp(time / 1000, self._zone)):
                # In an hour that comes again, the library also returns times of the first one.
                if (found := int(moment.timestamp()) * 1000) > time:
                    return found
        except (OverflowError, ValueError, OSError):
            pass
        return None


def cron(expression: str, tz: str | tzinfo = "UTC") -> Cron:
    """Return the times of a cron expression in a time zone: see `Cron`.

    >>> times = cron("0 9 * * mon-fri", tz="Europe/Berlin")
    >>> times.next_after(0)  # 1970-01-01 01:00 there, a Thursday
    28800000
    """
    return Cron(expression, tz)
