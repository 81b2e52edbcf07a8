"""Where a new application starts in a topic: at its first record, at its end, or so far back in time."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

from ..clock import Duration, duration_ms, unit_hint
from ..errors import ConfigError

EARLIEST, LATEST = "earliest", "latest"
_BY_DURATION = "by_duration:"
_ISO_8601 = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)


def offset_reset_text(given: Duration, what: str) -> str:
    """Return `given` as text: "earliest", "latest", or how far back in time, e.g. "1d".

    Semantics: KIP-1106. Raises ConfigError with `what` for anything else.

    >>> offset_reset_text(timedelta(hours=1), "offset_reset")
    '3600000ms'
    """
    if isinstance(given, timedelta) and given >= timedelta(0):
        given = f"{duration_ms(given)}ms"
    if isinstance(given, str):
        if given in (EARLIEST, LATEST):
            return given
        with suppress(ConfigError):
            duration_ms(given)
            return given
    raise ConfigError(
        f"{what}: expected 'earliest', 'latest', or how far back in time, such as '1d', found {given!r}"
        + unit_hint(given)
    )


def oldest_ms(text: str, now_ms: int) -> int:
    """Return the time (ms since the epoch) that a length of time, as `offset_reset_text` returns it, goes back to.

    >>> oldest_ms("1s", 5000), oldest_ms("1d", 5000)
    (4000, 0)
    """
    return max(0, now_ms - duration_ms(text))


def of_kafka(value: Any) -> Any:
    """Return the form that a value of Kafka's `auto.offset.reset` has here; other values stay. Raises ConfigError.

    >>> of_kafka("by_duration:PT24H"), of_kafka("by_duration:P1DT0.5S"), of_kafka("latest")
    ('86400000ms', '86400500ms', 'latest')
    """
    if not isinstance(value, str) or not value.lower().startswith(_BY_DURATION):
        return value
    match = _ISO_8601.fullmatch(value[len(_BY_DURATION) :])
    if match is None or not any(match.groups()):
        raise ConfigError(f"expected earliest, latest, or by_duration: with a length such as PT24H, found {value!r}")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return f"{round(1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days))))}ms"
