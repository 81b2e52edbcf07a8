"""Checks that the functions which declare stores share."""

from __future__ import annotations

from ...clock import Duration, duration_ms
from ...errors import ConfigError, StoreError
from ...support.names import BAD_NAME, is_topic_name


def checked_name(function: str, name: str) -> str:
    """Return a store's name. Raises StoreError, naming the function that declares the store, for a wrong one."""
    if not is_topic_name(name):
        raise StoreError(f"{function}: {BAD_NAME}, found {name!r}")
    return name


def positive_ms(duration: Duration, option: str, name: str, hint: str = "") -> int:
    """Return a duration in ms. Raises ConfigError, naming option and store, for one below 1 ms; `hint` is its end."""
    ms = duration_ms(duration, f"{option} of store {name!r}")
    if ms < 1:
        raise ConfigError(f"{option} of store {name!r}: expected a duration of at least 1ms, found {duration!r}{hint}")
    return ms
