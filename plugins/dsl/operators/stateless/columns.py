"""Columns: how keys and values of records are shown in tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def columns_of(value: Any) -> Mapping[str, Any]:
    """Return the columns of a value: the fields of a dict, a dataclass or a named tuple; else one named "value".

    >>> columns_of({"page": "/", "ms": 5}), columns_of(3)
    ({'page': '/', 'ms': 5}, {'value': 3})
    """
    if isinstance(value, Mapping):
        return {str(name): each for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields: Mapping[str, Any] = value._asdict()
        return fields
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return {"value": value}


def time_text(timestamp_ms: int) -> str:
    """Return a timestamp as text in UTC; one that no date has, as the number.

    >>> time_text(1_500)
    '1970-01-01 00:00:01.500'
    """
    try:
        at = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return f"{at:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03}"
