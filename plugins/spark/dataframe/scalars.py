"""The columns of types that have no others inside: numbers, text, bytes, times."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from enum import Enum
from functools import cache
from typing import Any, ClassVar
from uuid import UUID

from .typed_serdes import Column, Unfit

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_US, _LAST_US = (datetime.min - _EPOCH) // _MICROSECOND, (datetime.max - _EPOCH) // _MICROSECOND
_FIRST_DAY, _LAST_DAY = (date.min - _EPOCH.date()).days, (date.max - _EPOCH.date()).days


class ScalarColumn(Column):
    """A column of such a type. `arrow_type`: pyarrow's function that makes it, and its arguments."""

    arrow_type: ClassVar[tuple[str, ...]]

    def arrow(self) -> Any:
        import pyarrow

        function, *arguments = self.arrow_type
        return getattr(pyarrow, function)(*arguments)

    def read(self, array: Any) -> list[Any]:
        return _numbers(array)


# ---------------------------------------------------------------------- numbers


@dataclass(frozen=True)
class IntegerColumn(ScalarColumn):
    """Integers of so many bits: an int within their range."""

    name: str
    bits: int

    def arrow(self) -> Any:
        import pyarrow

        return getattr(pyarrow, f"int{self.bits}")()

    def plain(self, value: Any) -> Any:
        limit = 1 << self.bits - 1
        if type(value) is int and -limit <= value < limit:
            return value
        if isinstance(value, Enum):
            value = value.value
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.unfit("an int", value)
        if not -limit <= value < limit:
            raise self.unfit(f"an int from {-limit} to {limit - 1}", value, "choose a wider type in the schema")
        return int(value)


@dataclass(frozen=True)
class FloatColumn(ScalarColumn):
    """Floats, NaN and the infinities included. One of 32 bits is rounded to the nearest."""

    name: str
    bits: int

    def arrow(self) -> Any:
        import pyarrow

        return pyarrow.float64() if self.bits == 64 else pyarrow.float32()

    def text(self, array: Any) -> list[Any]:
        return [each if each is None or math.isfinite(each) else str(each) for each in self.read(array)]

    def plain(self, value: Any) -> Any:
        if not isinstance(value, (float, int)) or isinstance(value, bool):
            raise self.unfit("a float", value)
        limit = 1.8e308 if self.bits == 64 else 3.4028235677973366e38  # from here on it is rounded to infinity
        if (isinstance(value, int) and abs(value) >= 1 << 1023) or (math.isfinite(value) and abs(value) >= limit):
            raise self.unfit(f"a float of {self.bits} bits", value, "choose a wider type in the schema")
        return float(value)


@dataclass(frozen=True)
class BooleanColumn(ScalarColumn):
    """Booleans."""

    arrow_type = ("bool_",)
    name: str = "boolean"

    def plain(self, value: Any) -> Any:
        if not isinstance(value, bool):
            raise self.unfit("a bool", value)
        return value


@dataclass(frozen=True)
class DecimalColumn(ScalarColumn):
    """Decimals with a scale: read with it, written if no digit is lost."""

    name: str
    precision: int
    scale: int

    def arrow(self) -> Any:
        import pyarrow

        return pyarrow.decimal128(self.precision, self.scale)

    def read(self, array: Any) -> list[Any]:
        result: list[Any] = array.to_pylist()
        return result

    def text(self, array: Any) -> list[Any]:
        return [None if each is None else str(each) for each in self.read(array)]

    def plain(self, value: Any) -> Any:
        if not isinstance(value, (Decimal, int)) or isinstance(value, bool):
            raise self.unfit("a Decimal", value)
        number = Decimal(value)
        try:
            if number.is_finite():
                return _exact(self.precision).quantize(number, Decimal((0, (1,), -self.scale)))
        except (Inexact, InvalidOperation):
            pass
        digits = f"a number of {self.precision - self.scale} digits before the point and {self.scale} after it"
        raise self.unfit(digits, value, "round it, or choose a wider decimal in the schema")


@cache
def _exact(precision: int) -> Context:
    return Context(prec=precision, traps=[Inexact, InvalidOperation])


# ---------------------------------------------------------------------- text


@dataclass(frozen=True)
class TextColumn(ScalarColumn):
    """Text. A UUID, and an Enum of text, are written as theirs."""

    arrow_type = ("string",)
    name: str = "string"

    def read(self, array: Any) -> list[Any]:
        import pyarrow

        try:
            return _objects(array)
        except pyarrow.ArrowException as error:
            found = next(each for each in self.text(array) if each is not None and not _is_unicode(each))
            raise Unfit(
                f"expected text, found bytes that are not UTF-8: {found.encode('utf-8', 'surrogateescape')[:40]!r}",
                "cast the column to binary in Spark",
            ) from error

    def text(self, array: Any) -> list[Any]:
        raw = array.cast("large_binary").to_pylist()
        return [None if each is None else each.decode("utf-8", "surrogateescape") for each in raw]

    def plain(self, value: Any) -> Any:
        if isinstance(value, Enum):
            value = value.value
        elif isinstance(value, UUID):
            return str(value)
        if not isinstance(value, str):
            raise self.unfit("a str", value)
        if not _is_unicode(value):
            raise self.unfit("text that UTF-8 can hold", value)
        return str(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class BinaryColumn(ScalarColumn):
    """Bytes."""

    arrow_type = ("binary",)
    name: str = "binary"

    def read(self, array: Any) -> list[Any]:
        return _objects(array)

    def text(self, array: Any) -> list[Any]:
        return [None if each is None else base64.b64encode(each).decode() for each in self.read(array)]

    def plain(self, value: Any) -> Any:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise self.unfit("bytes", value)
        return bytes(value)


# ---------------------------------------------------------------------- times


@dataclass(frozen=True)
class TimestampColumn(ScalarColumn):
    """Points in time, to the microsecond: a datetime in UTC, or one without a zone (`timestamp_ntz`)."""

    name: str
    is_zoned: bool

    def arrow(self) -> Any:
        import pyarrow

        return pyarrow.timestamp("us", "UTC" if self.is_zoned else None)

    def read(self, array: Any) -> list[Any]:
        import pyarrow

        count = array.cast(pyarrow.int64())
        _check_range(count, _FIRST_US, _LAST_US, f"a {self.name} of the years 1 to 9999", "microseconds")
        found: list[Any] = count.cast(pyarrow.timestamp("us")).to_numpy(zero_copy_only=False).tolist()
        if self.is_zoned:
            return [None if each is None else each.replace(tzinfo=UTC) for each in found]
        return found

    def text(self, array: Any) -> list[Any]:
        import pyarrow

        # A number where Python has no year for it.
        zone = "Z" if self.is_zoned else ""
        return [
            f"{(_EPOCH + each * _MICROSECOND).isoformat()}{zone}"
            if each is not None and _FIRST_US <= each <= _LAST_US
            else each
            for each in _numbers(array.cast(pyarrow.int64()))
        ]

    def plain(self, value: Any) -> Any:
        if not isinstance(value, datetime) or value != value:  # pandas' NaT is a datetime
            raise self.unfit("a datetime", value)
        if getattr(value, "nanosecond", 0):  # so is its Timestamp
            raise self.unfit("a datetime to the microsecond", value, "round it")
        is_zoned = value.utcoffset() is not None
        if is_zoned == self.is_zoned:
            return value
        if is_zoned:
            raise self.unfit("a datetime without a zone", value, "remove it, or take the type timestamp in the schema")
        raise self.unfit(
            "a datetime with a zone", value, "add one (tzinfo=UTC), or take the type timestamp_ntz in the schema"
        )


@dataclass(frozen=True)
class DateColumn(ScalarColumn):
    """Days of the calendar."""

    arrow_type = ("date32",)
    name: str = "date"

    def read(self, array: Any) -> list[Any]:
        import pyarrow

        _check_range(array.cast(pyarrow.int32()), _FIRST_DAY, _LAST_DAY, "a date of the years 1 to 9999", "days")
        result: list[Any] = array.to_pylist()
        return result

    def text(self, array: Any) -> list[Any]:
        import pyarrow

        days = _numbers(array.cast(pyarrow.int32()))
        return [
            (_EPOCH + timedelta(each)).date().isoformat()
            if each is not None and _FIRST_DAY <= each <= _LAST_DAY
            else each
            for each in days
        ]

    def plain(self, value: Any) -> Any:
        if not isinstance(value, date) or isinstance(value, datetime):
            raise self.unfit("a date", value)
        return value


@dataclass(frozen=True)
class TimeColumn(ScalarColumn):
    """Times of day without a zone, with so many digits after the second."""

    arrow_type = ("time64", "ns")
    name: str
    digits: int

    def read(self, array: Any) -> list[Any]:
        import pyarrow

        result: list[Any] = array.cast(pyarrow.time64("us"), safe=False).to_pylist()
        return result

    def text(self, array: Any) -> list[Any]:
        return [None if each is None else each.isoformat() for each in self.read(array)]

    def plain(self, value: Any) -> Any:
        if not isinstance(value, time) or value.tzinfo is not None:
            raise self.unfit("a time without a zone", value)
        if value.microsecond % 10 ** (6 - self.digits):
            raise self.unfit(f"a time with {self.digits} digits after the second", value, "round it")
        return value


@dataclass(frozen=True)
class IntervalColumn(ScalarColumn):
    """Day-time intervals, which end with a unit of so many microseconds."""

    arrow_type = ("duration", "us")
    name: str
    unit_us: int

    def read(self, array: Any) -> list[Any]:
        return [None if each is None else timedelta(microseconds=each) for each in self.text(array)]

    def text(self, array: Any) -> list[Any]:
        import pyarrow

        return _numbers(array.cast(pyarrow.int64()))

    def plain(self, value: Any) -> Any:
        if not isinstance(value, timedelta) or value != value:
            raise self.unfit("a timedelta", value)
        if getattr(value, "nanoseconds", 0):
            raise self.unfit("a timedelta to the microsecond", value, "round it")
        count, rest = divmod(value // _MICROSECOND, self.unit_us)
        if rest or not -(1 << 63) <= count * self.unit_us < 1 << 63:
            raise self.unfit("a timedelta that it can hold", value, "round it, or take `interval day to second`")
        return value // _MICROSECOND


@dataclass(frozen=True)
class NullColumn(ScalarColumn):
    """Nothing but nulls."""

    arrow_type = ("null",)
    name: str = "void"

    def read(self, array: Any) -> list[Any]:
        return [None] * len(array)

    def plain(self, value: Any) -> Any:
        raise self.unfit("None", value)


def _objects(array: Any) -> list[Any]:
    """Do as `to_pylist` for text and bytes, ten times faster."""
    result: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return result


def _numbers(array: Any) -> list[Any]:
    result: list[Any] = array.to_pylist() if array.null_count else array.to_numpy(zero_copy_only=False).tolist()
    return result


def _check_range(count: Any, first: int, last: int, expected: str, unit: str) -> None:
    from pyarrow import compute

    least, most = compute.min_max(count).as_py().values()
    for found in (least, most):
        if found is not None and not first <= found <= last:
            raise Unfit(f"expected {expected}, found {found} {unit} since 1970", "filter or replace it in Spark")
