"""Values of Kafka Connect's and Debezium's types as Python's, by their schema; in JSON without one, by name of type."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import inf
from typing import Any
from uuid import UUID

from penstock import SerdeError

Schema = Mapping[str, Any]
"""A schema in the JSON of Kafka Connect's converter: `type`, and perhaps `name`, `parameters`, `fields`, `items`."""

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_NANOSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")
_INFINITE: Mapping[int, float] = {
    9223372036825200000: inf,  # microseconds, see the section on TIMESTAMP in Debezium's page of PostgreSQL
    -9223372036832400000: -inf,
    9223372036825200: inf,  # the same in milliseconds
    -9223372036832400: -inf,
}
_INFINITE_DAYS: Mapping[int, float] = {2146033979: inf, -2147472692: -inf}
"""Days from 1970-01-01 to +5877611-06-21 and to -5877611-06-22, which stand for an infinite date."""
_INFINITE_TEXTS: Mapping[str, float] = {
    "infinity": inf,
    "-infinity": -inf,
    "+292278994-08-16T23:00:00": inf,
    "-292275055-05-16T23:00:00": -inf,
}


def typed(name: str) -> Schema:
    """Return the schema that a name of a type means. Raises SerdeError for another name.

    >>> typed("decimal:2")["name"]
    'org.apache.kafka.connect.data.Decimal'
    """
    plain, _, scale = name.partition(":")
    if name in _NAMES:
        return {"name": _NAMES[name]}
    if plain == "decimal" and scale.isdecimal():
        return {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": scale}}
    if name in ("decimal", "bytes", "double"):
        return {"type": name}
    known = ", ".join([*_NAMES, "decimal:SCALE", "decimal", "bytes", "double"])
    raise SerdeError(f"serde 'contrib.debezium': no type {name!r}; there are {known}")


def convert(value: Any, schema: Schema | None) -> Any:
    """Return a value of parsed JSON, whose numbers with a fraction are Decimals, as Python's value of its type.

    Raises ValueError, with the path of a field.
    """
    if value is None:
        return None
    if schema is None:
        return _untyped(value)
    name, kind = schema.get("name"), schema.get("type")
    if (read := _READERS.get(name or "")) is not None:
        try:
            return read(value, schema)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{value!r} is no {name}: {error}") from error
    if kind == "struct" and isinstance(value, Mapping):
        return fields(value, {each["field"]: each for each in schema["fields"]})
    if kind == "array" and isinstance(value, list):
        return [convert(each, schema.get("items")) for each in value]
    if kind == "map" and isinstance(value, Mapping):
        return {key: convert(each, schema.get("values")) for key, each in value.items()}
    if kind == "bytes":
        return b64decode(value, validate=True)
    if kind in ("float", "double", "float32", "float64"):
        return float(value)  # NaN and infinity are text
    if kind == "decimal":
        return Decimal(value if isinstance(value, (str, int, Decimal)) else str(value))
    return _untyped(value)


def fields(row: Mapping[str, Any], schemas: Mapping[str, Schema]) -> dict[str, Any]:
    """Return the columns of a row. Raises ValueError with the name of a column."""
    converted = {}
    for name, value in row.items():
        try:
            converted[name] = convert(value, schemas.get(name))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
    return converted


def _untyped(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {name: _untyped(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_untyped(each) for each in value]
    return value


def _decimal(value: Any, schema: Schema) -> Decimal:
    if not isinstance(value, str):
        return Decimal(value)  # the converter's setting decimal.format=NUMERIC
    unscaled = int.from_bytes(b64decode(value, validate=True), "big", signed=True)
    return _scaled(unscaled, int(schema["parameters"]["scale"]))


def _variable_decimal(value: Any, schema: Schema) -> Decimal:
    return _scaled(int.from_bytes(b64decode(value["value"], validate=True), "big", signed=True), int(value["scale"]))


def _scaled(unscaled: int, scale: int) -> Decimal:
    # Not by an operation, which would round to the digits of the context.
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _date(value: Any, schema: Schema) -> Any:
    return _INFINITE_DAYS[value] if value in _INFINITE_DAYS else date(1970, 1, 1) + timedelta(days=_int(value))


def _timestamp(microseconds: Callable[[int], int]) -> Callable[[Any, Schema], Any]:
    def read(value: Any, schema: Schema) -> Any:
        return _INFINITE[value] if value in _INFINITE else _EPOCH + microseconds(_int(value)) * _MICROSECOND

    return read


def _time(microseconds: Callable[[int], int]) -> Callable[[Any, Schema], time]:
    def read(value: Any, schema: Schema) -> time:
        since = microseconds(_int(value)) * _MICROSECOND
        if not timedelta(0) <= since < timedelta(days=1):
            raise ValueError(
                "Python's times are from 00:00 to before 24:00: have the database write it as another type"
            )
        return (_EPOCH + since).time()

    return read


def _milli(value: int) -> int:
    return value * 1000


def _micro(value: int) -> int:
    return value


def _nano(value: int) -> int:
    if value % 1000:
        raise ValueError("Python's times have no nanoseconds")
    return value // 1000


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected an integer, found {value!r}")
    return value


def _zoned_timestamp(value: Any, schema: Schema) -> Any:
    infinite = _INFINITE_TEXTS.get(value.removesuffix("Z"))
    if infinite is not None:
        return infinite
    if _NANOSECONDS.search(value):  # Python would cut them off
        raise ValueError("Python's times have no nanoseconds")
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("expected a time with a zone")
    return moment.astimezone(UTC)


def _text(value: Any, schema: Schema) -> Any:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value


def _bits(value: Any, schema: Schema) -> bytes:
    return b64decode(value, validate=True)


_READERS: Mapping[str, Callable[[Any, Schema], Any]] = {
    "org.apache.kafka.connect.data.Decimal": _decimal,
    "org.apache.kafka.connect.data.Date": _date,
    "org.apache.kafka.connect.data.Time": _time(_milli),
    "org.apache.kafka.connect.data.Timestamp": _timestamp(_milli),
    "io.debezium.data.VariableScaleDecimal": _variable_decimal,
    "io.debezium.data.Bits": _bits,
    "io.debezium.data.Uuid": lambda value, schema: UUID(value),
    "io.debezium.data.Json": _text,
    "io.debezium.time.Date": _date,
    "io.debezium.time.Time": _time(_milli),
    "io.debezium.time.MicroTime": _time(_micro),
    "io.debezium.time.NanoTime": _time(_nano),
    "io.debezium.time.Timestamp": _timestamp(_milli),
    "io.debezium.time.MicroTimestamp": _timestamp(_micro),
    "io.debezium.time.NanoTimestamp": _timestamp(_nano),
    "io.debezium.time.MicroDuration": lambda value, schema: _int(value) * _MICROSECOND,
    "io.debezium.time.ZonedTimestamp": _zoned_timestamp,
}
_NAMES: Mapping[str, str] = {
    "date": "io.debezium.time.Date",
    "time_ms": "io.debezium.time.Time",
    "time_us": "io.debezium.time.MicroTime",
    "timestamp_ms": "io.debezium.time.Timestamp",
    "timestamp_us": "io.debezium.time.MicroTimestamp",
    "zoned_timestamp": "io.debezium.time.ZonedTimestamp",
    "duration_us": "io.debezium.time.MicroDuration",
    "uuid": "io.debezium.data.Uuid",
    "variable_decimal": "io.debezium.data.VariableScaleDecimal",
}
