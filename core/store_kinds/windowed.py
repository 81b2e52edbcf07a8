"""Windowed: a key with the time window it belongs to, and how stores of windows are checked."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..clock import Duration, duration_ms
from ..errors import ConfigError, StoreError
from ..names import is_topic_name
from ..store import BAD_NAME


class Windowed(NamedTuple):
    """A key and a window: `start` and `end` in ms since the epoch.

    The end of a tumbling or hopping window is the first ms after it, that of a session the time of its last record.
    """

    key: Any
    start: int
    end: int


def checked_name(function: str, name: str) -> str:
    """Return a store's name. Raises StoreError, naming the function that declares the store, for a wrong one."""
    if not is_topic_name(name):
        raise StoreError(f"{function}: {BAD_NAME}, found {name!r}")
    return name


def positive_ms(duration: Duration, option: str, name: str) -> int:
    """Return a duration in ms. Raises ConfigError, naming option and store, for one below 1 ms."""
    ms = duration_ms(duration, f"{option} of store {name!r}")
    if ms < 1:
        raise ConfigError(f"{option} of store {name!r}: expected a duration of at least 1ms, found {duration!r}")
    return ms


def bucket_ms(retention_ms: int) -> int:
    """Return how long the buckets are in which a store with this retention keeps its windows.

    A bucket is freed as a whole once all of it has expired, so a store takes room for its retention and one bucket
    more. Each bucket that a fetch touches costs a search.
    """
    return max(1, retention_ms // 4)
