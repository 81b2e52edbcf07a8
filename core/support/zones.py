"""Time zones by their names."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


def zone_named(tz: Any) -> tzinfo:
    """Return the time zone of this name, or `tz` if it is one. Raises ValueError."""
    if isinstance(tz, tzinfo):
        return tz
    if not isinstance(tz, str):
        raise ValueError(f"tz: expected the name of a time zone, or a tzinfo, found {tz!r}")
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"tz: no time zone {tz!r} is known here: expected a name such as 'Europe/Berlin'. If that one is not known "
            "either, this machine has no time zones: pip install tzdata"
        ) from error
