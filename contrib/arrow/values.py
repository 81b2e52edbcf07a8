"""Values: what each type of a column takes. By itself pyarrow drops digits, nanoseconds, zones and fields silently."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from struct import Struct
from typing import Any

from penstock import ConfigError

from .library import load

Convert = Callable[[Any], Any]
"""Returns a value that pyarrow stores exactly. Raises ValueError with what was expected."""
_EPOCH, _NAIVE_EPOCH, _US = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1), timedelta(microseconds=1)
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
ERRORS = (ValueError, TypeError, OverflowError)
"""Errors of a value that does not fit, those of pyarrow included."""


def shown(value: Any) -> str:
    """Return a type and a short form of a value, for a message."""
    return f"{type(value).__name__} {reprlib.repr(value)}"


@dataclass(frozen=True)
class ColumnType:
    """The type of a column. Values whose Python types are among `exact`, and that `fits` accepts, need no `convert`."""

    arrow: Any
    convert: Convert
    exact: frozenset[type] = frozenset()
    fits: Callable[[Sequence[Any]], bool] | None = None

    def array(self, values: Sequence[Any]) -> Any:
        """Return the values as an array. Raises ValueError, TypeError or OverflowError for one that does not fit."""
        types = set(map(type, values)) - {type(None)}
        if not (types <= self.exact and (self.fits is None or self.fits(values))):
            values = [None if is_missing(value) else self.convert(value) for value in values]
        pa = load()
        made = pa.array(values, self.arrow)
        if self.arrow in (pa.float32(), pa.float16()):
            _check_no_overflow(made, values)
        return made


def is_missing(value: Any) -> bool:
    """Return whether a value is None, or pandas' NaT or NA, which stand for it."""
    return value is None or type(value).__name__ in ("NaTType", "NAType")


def _check_no_overflow(made: Any, values: Sequence[Any]) -> None:
    pa = load()
    if not pa.compute.is_inf(made).equals(pa.compute.is_inf(pa.array(values, pa.float64()))):
        raise ValueError(f"expected a number below the largest one of {made.type}")


def _is_bool(value: Any) -> bool:
    """Return whether a value is True or False, also numpy's."""
    return type(value).__name__ in ("bool", "bool_")


def _is_number(value: Any) -> bool:
    is_other = isinstance(value, (str, bytes)) or _is_bool(value) or type(value).__name__ in _NO_NUMBERS
    return not is_other and hasattr(value, "__float__")


_NO_NUMBERS = frozenset({"datetime64", "timedelta64", "complex64", "complex128"})
"""Numpy's types that have `__float__`, and are no real numbers."""


def _whole(value: Any) -> int:
    if _is_bool(value) or type(value).__name__ in _NO_NUMBERS or not hasattr(value, "__index__"):
        raise ValueError("expected a whole number")
    return operator.index(value)


def _float(value: Any) -> float:
    if not _is_number(value):
        raise ValueError("expected a number")
    found = float(value)
    if (isinstance(value, Decimal) or hasattr(value, "__index__")) and found == found and Decimal(found) != value:
        raise ValueError("expected a number that a float has exactly")
    return found


def _float_of(type_: Any) -> Convert:
    """Return the function of a float column. pyarrow makes infinity of a number above the largest one of the type."""
    pa = load()
    pack = {pa.float16(): Struct(">e").pack, pa.float32(): Struct(">f").pack}.get(type_)
    if pack is None:
        return _float

    def convert(value: Any) -> float:
        found = _float(value)
        try:
            pack(found)
        except OverflowError:
            raise ValueError(f"expected a number below the largest one of {type_}") from None
        return found

    return convert


def _decimal(value: Any) -> Decimal:
    if isinstance(value, Decimal):
        found = value
    elif not _is_number(value):
        raise ValueError("expected a number")
    elif hasattr(value, "__index__"):
        found = Decimal(operator.index(value))
    else:
        found = Decimal(repr(float(value)))  # the digits that Python shows
    if not found.is_finite():
        raise ValueError("expected a number")
    return found


def _bool(value: Any) -> bool:
    if not _is_bool(value):
        raise ValueError("expected True or False")
    return bool(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a str")
    return str(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ValueError("expected bytes")
    return bytes(value)


def _date(value: Any) -> date:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise ValueError("expected a date")
    return value


def _in_units(nanoseconds: int, unit: str) -> int:
    count, rest = divmod(nanoseconds, _NANOSECONDS[unit])
    if rest:
        raise ValueError(f"expected a value without a part of a unit, which is 1 {unit} here: round it")
    return count


def _timestamp(unit: str, *, aware: bool) -> Convert:
    zone = "with a time zone" if aware else "without a time zone, as the column has none"

    def convert(value: Any) -> int:
        if not isinstance(value, datetime) or (value.utcoffset() is not None) != aware:
            raise ValueError(f"expected a datetime {zone}")
        nanoseconds = getattr(value, "nanosecond", 0)  # of pandas
        plain = value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value
        since = plain - (_EPOCH if aware else _NAIVE_EPOCH)
        return _in_units(since // _US * 1_000 + nanoseconds, unit)

    return convert


def _duration(unit: str) -> Convert:
    def convert(value: Any) -> int:
        if not isinstance(value, timedelta):
            raise ValueError("expected a timedelta")
        plain = timedelta(value.days, value.seconds, value.microseconds)
        return _in_units(plain // _US * 1_000 + getattr(value, "nanoseconds", 0), unit)

    return convert


def _time(unit: str) -> Convert:
    def convert(value: Any) -> time:
        if not isinstance(value, time) or value.tzinfo is not None:
            raise ValueError("expected a time without a time zone")
        _in_units(value.microsecond * 1_000, unit)
        return value

    return convert


def _fits_timestamp(*, aware: bool) -> Callable[[Sequence[Any]], bool]:
    if aware:
        return lambda values: all(value is None or value.tzinfo is not None for value in values)
    return lambda values: all(value is None or value.tzinfo is None for value in values)


def _list(item: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            raise ValueError("expected a list")
        return [item(each) for each in value]

    return convert


def _struct(fields: Mapping[str, Convert]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"expected a mapping of {', '.join(fields)}")
        if unknown := [name for name in value if name not in fields]:
            raise ValueError(f"expected a mapping of {', '.join(fields)}, without {', '.join(map(str, unknown))}")
        return {name: field(value.get(name)) for name, field in fields.items()}

    return convert


def _map(key: Convert, item: Convert) -> Convert:
    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise ValueError("expected a mapping")
        return [(key(name), item(each)) for name, each in value.items()]

    return convert


def _optional(column: ColumnType, nullable: bool) -> Convert:
    def convert(value: Any) -> Any:
        if not is_missing(value):
            return column.convert(value)
        if not nullable:
            raise ValueError("expected no null inside")
        return None

    return convert


def column_type(name: str, type_: Any) -> ColumnType:
    """Return the type of a column. Raises ConfigError for one that is not supported."""
    pa = load()
    types = pa.types
    if types.is_integer(type_):
        return ColumnType(type_, _whole, frozenset({int}))
    if types.is_floating(type_):
        return ColumnType(type_, _float_of(type_), frozenset({float}))
    if types.is_boolean(type_):
        return ColumnType(type_, _bool, frozenset({bool}))
    if types.is_string(type_) or types.is_large_string(type_):
        return ColumnType(type_, _text, frozenset({str}))
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return ColumnType(type_, _bytes, frozenset({bytes}))
    if types.is_decimal128(type_) or types.is_decimal256(type_):
        return ColumnType(type_, _decimal, frozenset({Decimal, int}))
    if types.is_date32(type_):
        return ColumnType(type_, _date, frozenset({date}))
    is_fine = getattr(type_, "unit", "") in ("us", "ns")  # it has what a datetime has
    if types.is_timestamp(type_):
        aware = type_.tz is not None
        exact = frozenset({datetime} if is_fine else ())
        return ColumnType(type_, _timestamp(type_.unit, aware=aware), exact, _fits_timestamp(aware=aware))
    if types.is_time(type_):
        return ColumnType(type_, _time(type_.unit))
    if types.is_duration(type_):
        return ColumnType(type_, _duration(type_.unit), frozenset({timedelta} if is_fine else ()))
    return ColumnType(type_, _nested(name, type_))


def _nested(name: str, type_: Any) -> Convert:
    types = load().types

    def part(label: str, field: Any) -> Convert:
        return _optional(column_type(f"{name}.{label}", field.type), field.nullable)

    if types.is_list(type_) or types.is_large_list(type_):
        return _list(part("item", type_.value_field))
    if types.is_struct(type_):
        return _struct({field.name: part(field.name, field) for field in type_})
    if types.is_map(type_):
        return _map(part("key", type_.key_field), part("value", type_.item_field))
    raise ConfigError(
        f"column {name!r}: type {type_} is not supported; there are numbers, decimals, bool, string, binary, "
        "date32, timestamp, time, duration, list, struct and map"
    )
