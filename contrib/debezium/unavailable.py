"""Whether a value is Debezium's placeholder for one that was not changed, in each type that a column may have."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from hashlib import md5
from typing import Any
from uuid import UUID

_EPOCH, _DAY = datetime(1970, 1, 1), date(1970, 1, 1)
_UNITS = (timedelta(milliseconds=1), timedelta(microseconds=1))


def is_unavailable(value: Any, placeholder: str) -> bool:
    """Return whether `value` stands for the one before it.

    Debezium writes the placeholder as text; its bytes in a column of bytes; a map or the JSON of one, from it to
    itself, in one of hstore; a list of one of these, or of a UUID made of it, in arrays; and a number for each of its
    bytes in arrays of numbers, dates and times. An array of booleans has no placeholder of its own.
    """
    if isinstance(value, list):
        return (len(value) == 1 and _is_one(value[0], placeholder)) or _has_its_bytes(value, placeholder)
    return _is_one(value, placeholder)


def _is_one(value: Any, placeholder: str) -> bool:
    if isinstance(value, (str, bytes, UUID)):
        return value in _forms(placeholder)
    return isinstance(value, Mapping) and dict(value) == {placeholder: placeholder}


@lru_cache(maxsize=64)
def _forms(placeholder: str) -> frozenset[Any]:
    """Return the placeholder as text, bytes and UUID; without their types, bytes and UUIDs are text in JSON."""
    data = placeholder.encode()
    identity = UUID(bytes=md5(data, usedforsecurity=False).digest(), version=3)
    as_json = json.dumps({placeholder: placeholder}, separators=(",", ":"), ensure_ascii=False)
    return frozenset({placeholder, data, b64encode(data).decode(), identity, str(identity), as_json})


def _has_its_bytes(values: list[Any], placeholder: str) -> bool:
    data = placeholder.encode()
    if not data or len(values) != len(data):
        return False
    signed = [each - 256 if each > 127 else each for each in data]  # bytes of Java
    return all(_is_number(value, number) for value, number in zip(values, signed, strict=True))


def _is_number(value: Any, number: int) -> bool:
    """Return whether a value is what a type makes of a small number."""
    read = _NUMBERS.get(type(value))
    return read is not None and read(value, number)


def _is_unscaled(value: Decimal, number: int) -> bool:
    sign, digits, _ = value.as_tuple()
    return value.is_finite() and int("".join(map(str, digits))) * (-1 if sign else 1) == number


def _is_text(value: Any, number: int) -> bool:
    # The unscaled number of a `numeric`, in JSON without a schema.
    return bool(value == b64encode(number.to_bytes(1, "big", signed=True)).decode())


_NUMBERS: Mapping[type, Callable[[Any, int], bool]] = {
    int: lambda value, number: bool(value == number),
    float: lambda value, number: bool(value == number),
    Decimal: _is_unscaled,
    str: _is_text,
    dict: lambda value, number: value.keys() == {"scale", "value"} and _is_text(value["value"], number),
    date: lambda value, number: value - _DAY == timedelta(days=number),
    datetime: lambda value, number: value.tzinfo is None and value - _EPOCH in [number * unit for unit in _UNITS],
    time: lambda value, number: datetime.combine(_DAY, value) - _EPOCH in [number * unit for unit in _UNITS],
    timedelta: lambda value, number: value == number * _UNITS[1],
}
