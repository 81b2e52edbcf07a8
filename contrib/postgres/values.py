"""Values: what each column type of PostgreSQL takes, so that COPY and INSERT store the same.

By themselves they do not: text COPY and INSERT store another float in a numeric column, and other instants of aware
times in columns without a zone. And psycopg writes `pandas.NaT` as the year 48113.
"""

from __future__ import annotations

import json
import operator
import reprlib
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from penstock import SinkRefusedError

from .library import load

Convert = Callable[[Any], Any]
"""Returns the value as psycopg should write it. Raises ValueError with what was expected."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def shown(value: Any) -> str:
    """Return a short form of a value, for a message."""
    return reprlib.repr(value)


def _whole(value: Any) -> int:
    if _is_bool(value) or type(value).__name__ in _NO_NUMBERS:
        raise ValueError("a whole number")
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError("a whole number") from None


def _is_number(value: Any) -> bool:
    is_other = isinstance(value, (str, bytes)) or _is_bool(value) or type(value).__name__ in _NO_NUMBERS
    return not is_other and hasattr(value, "__float__")


_NO_NUMBERS = frozenset({"datetime64", "timedelta64", "complex64", "complex128"})
"""Numpy's types that have `__float__`, and are no real numbers."""


def _is_bool(value: Any) -> bool:
    """Return whether a value is True or False, also numpy's."""
    return type(value).__name__ in ("bool", "bool_")


def _float(value: Any) -> float:
    if not _is_number(value):
        raise ValueError("a number")
    found = float(value)
    if isinstance(value, int) and int(found) != value:
        raise ValueError("a number that a float has exactly")
    return found


def _decimal(value: Any) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if not _is_number(value):
        raise ValueError("a number")
    if isinstance(value, int) or hasattr(value, "__index__"):
        return Decimal(operator.index(value))
    return Decimal(repr(float(value)))  # the digits that Python shows; INSERT of a float rounds to fifteen


def _bool(value: Any) -> bool:
    if _is_bool(value):
        return bool(value)
    raise ValueError("True or False")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a str")
    if "\0" in value:
        raise ValueError("a str without the character 0, which PostgreSQL's texts cannot have")
    return str(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ValueError("bytes")
    return bytes(value)


def _uuid(value: Any) -> UUID:
    if isinstance(value, UUID):
        return value
    if not isinstance(value, str):
        raise ValueError("a UUID")
    return UUID(value)


def _date(value: Any) -> date:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise ValueError("a date")
    return value


def _plain_datetime(value: Any) -> datetime:
    """Return a datetime, also of pandas' Timestamp, which may have nanoseconds."""
    if not isinstance(value, datetime):
        raise ValueError("a datetime")
    if getattr(value, "nanosecond", 0):
        raise ValueError("a datetime with microseconds, as PostgreSQL has them, and it has nanoseconds: round it")
    to_python = getattr(value, "to_pydatetime", None)
    found: datetime = value if to_python is None else to_python()
    return found


def _aware(value: Any) -> datetime:
    found = _plain_datetime(value)
    if found.utcoffset() is None:
        raise ValueError("a datetime with a time zone")
    return found


def _naive(value: Any) -> datetime:
    found = _plain_datetime(value)
    if found.tzinfo is not None:
        raise ValueError("a datetime without a time zone, as the column has none")
    return found


def _time(value: Any) -> time:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise ValueError("a time without a time zone")
    return value


def _interval(value: Any) -> timedelta:
    if not isinstance(value, timedelta) or (hasattr(value, "nanoseconds") and value.nanoseconds):
        raise ValueError("a timedelta with microseconds")
    to_python = getattr(value, "to_pytimedelta", None)
    found: timedelta = value if to_python is None else to_python()
    return found


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a value of JSON ({error})") from None


def _as_it_is(value: Any) -> Any:
    return value


_CONVERTS: Mapping[str, Convert] = {
    **dict.fromkeys(("smallint", "integer", "bigint"), _whole),
    **dict.fromkeys(("real", "double precision"), _float),
    "numeric": _decimal,
    "boolean": _bool,
    **dict.fromkeys(("text", "character varying", "character", "citext", "name"), _text),
    "bytea": _bytes,
    "uuid": _uuid,
    "date": _date,
    "timestamp with time zone": _aware,
    "timestamp without time zone": _naive,
    "time without time zone": _time,
    "interval": _interval,
    **dict.fromkeys(("json", "jsonb"), _json),
}


def is_known(type_name: str) -> bool:
    """Return whether values of this type are converted here, so that COPY stores what INSERT does."""
    return type_name in _CONVERTS


def converter(column: str, type_name: str) -> Convert:
    """Return the function of a column's values; it raises SinkRefusedError naming the column."""
    convert = _CONVERTS.get(type_name, _as_it_is)
    is_json = convert is _json
    refused = load().DataError

    def run(value: Any) -> Any:
        if value is None or (not is_json and _is_missing(value)):
            return None
        try:
            return convert(value)
        except (ValueError, OverflowError, refused) as error:
            raise SinkRefusedError(
                f"column {column!r} ({type_name}): expected {error}, found {type(value).__name__} {shown(value)}"
            ) from error

    return run


def _is_missing(value: Any) -> bool:
    """Return whether a value is pandas' NaT or NA, which stand for none."""
    return type(value).__name__ in ("NaTType", "NAType")


def from_ms(timestamp: int) -> datetime:
    """Return the time of a record's timestamp (ms). Raises SinkRefusedError for one after the year 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError as error:
        raise SinkRefusedError(f"its timestamp {timestamp} ms is after the year 9999") from error
