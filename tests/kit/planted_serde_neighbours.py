"""Right serdes, and copies with one wrong line each, which only values near those of their suites show."""

from __future__ import annotations

import json
import os
import time
import unicodedata
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from struct import Struct
from struct import error as StructError
from typing import Any

from penstock.errors import SerdeError
from penstock.serde import Serde

EXACT = Context(prec=60)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Amounts(Serde[Decimal]):
    """Right: decimals without zeros at the end, so that equal ones are one key."""

    def serialize(self, value: Decimal) -> bytes:
        if type(value) is not Decimal or not value.is_finite() or len(value.as_tuple().digits) > 50:
            raise SerdeError(f"expected a decimal of 50 digits, found {value!r}")
        return str(value.normalize(EXACT) if value else Decimal(0)).encode()

    def deserialize(self, data: bytes) -> Decimal:
        try:
            value = Decimal(data.decode())
            if self.serialize(value) == data:
                return value
        except (ValueError, InvalidOperation):
            pass
        raise SerdeError(f"expected a decimal, found {data[:40]!r}")


class Digits(Serde[Decimal]):
    """Right: decimals with all their digits, whose bytes it remembers."""

    def __init__(self) -> None:
        self._written: dict[Any, bytes] = {}

    def __reduce__(self) -> Any:
        return type(self), ()

    def written_form(self) -> str:
        return "Digits"

    def serialize(self, value: Decimal) -> bytes:
        if type(value) is not Decimal or not value.is_finite():
            raise SerdeError(f"expected a decimal, found {value!r}")
        if len(self._written) > 500:
            self._written.clear()
        return self._written.setdefault(self._known_by(value), str(value).encode())

    def _known_by(self, value: Decimal) -> Any:
        return value.as_tuple()

    def deserialize(self, data: bytes) -> Decimal:
        try:
            value = Decimal(data.decode())
        except (ValueError, InvalidOperation) as error:
            raise SerdeError(f"expected a decimal, found {data[:40]!r}") from error
        if not value.is_finite() or str(value).encode() != data:
            raise SerdeError(f"expected a decimal, found {data[:40]!r}")
        return value


class Instants(Serde[datetime]):
    """Right: times with a zone, as microseconds; they come back in UTC."""

    _layout = Struct(">q")

    def serialize(self, value: datetime) -> bytes:
        if type(value) is not datetime or value.tzinfo is None:
            raise SerdeError(f"expected a datetime with a zone, found {value!r}")
        return self._packed(value)

    def _packed(self, value: datetime) -> bytes:
        try:
            value.astimezone(UTC)
        except OverflowError as error:
            raise SerdeError(f"expected a time that UTC has, found {value!r}") from error
        return self._layout.pack((value - EPOCH) // timedelta(microseconds=1))

    def deserialize(self, data: bytes) -> datetime:
        try:
            return EPOCH + timedelta(microseconds=self._layout.unpack(data)[0])
        except (StructError, OverflowError) as error:
            raise SerdeError(f"expected 8 bytes, found {data[:40]!r}") from error


class Days(Serde[date]):
    """Right: days of the years 1970 to 2069, with two digits for the year."""

    def serialize(self, value: date) -> bytes:
        if type(value) is not date or not 1970 <= value.year < 2070:
            raise SerdeError(f"expected a day of 1970 to 2069, found {value!r}")
        return f"{value:%y%m%d}".encode()

    def deserialize(self, data: bytes) -> date:
        try:
            text = data.decode("ascii")
            year, month, day = (int(text[at : at + 2]) for at in (0, 2, 4))
            value = date(self._year(year), month, day)
            if self.serialize(value) == data:
                return value
        except ValueError:
            pass
        raise SerdeError(f"expected a day, found {data[:40]!r}")

    def _year(self, year: int) -> int:
        return year + (1900 if year >= 70 else 2000)


class Composed(Serde[str]):
    """Right: text whose letters are composed."""

    def serialize(self, value: str) -> bytes:
        if type(value) is not str or not unicodedata.is_normalized("NFC", value):
            raise SerdeError(f"expected composed text, found {value!r}")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise SerdeError(f"expected text, found {value!r}") from error

    def deserialize(self, data: bytes) -> str:
        try:
            value = data.decode()
        except UnicodeDecodeError as error:
            raise SerdeError(f"expected UTF-8, found {data[:40]!r}") from error
        self.serialize(value)
        return value


class Paths(Serde[str]):
    """Right: absolute paths, as they are."""

    def serialize(self, value: str) -> bytes:
        if type(value) is not str or "\0" in value or not (path := self._absolute(value)).startswith("/"):
            raise SerdeError(f"expected an absolute path, found {value!r}")
        try:
            return path.encode()
        except UnicodeEncodeError as error:
            raise SerdeError(f"expected text, found {value!r}") from error

    def _absolute(self, value: str) -> str:
        return value

    def deserialize(self, data: bytes) -> str:
        try:
            value = data.decode()
        except UnicodeDecodeError as error:
            raise SerdeError(f"expected UTF-8, found {data[:40]!r}") from error
        if not value.startswith("/") or "\0" in value:
            raise SerdeError(f"expected an absolute path, found {value!r}")
        return value


class Levels(Serde[int]):
    """Right: numbers of 16 bits."""

    _layout = Struct(">H")

    def serialize(self, value: int) -> bytes:
        if type(value) is not int or not 0 <= value < 1 << 16:
            raise SerdeError(f"expected a number of 16 bits, found {value!r}")
        return self._layout.pack(value)

    def deserialize(self, data: bytes) -> int:
        if len(data) != 2:
            raise SerdeError(f"expected 2 bytes, found {data[:40]!r}")
        return int(self._layout.unpack(data)[0])


class Pairs(Serde[tuple[str, int]]):
    """Right: a text and a number as JSON."""

    def serialize(self, value: tuple[str, int]) -> bytes:
        if type(value) is not tuple or [*map(type, value)] != [str, int] or value[1].bit_length() > 60:
            raise SerdeError(f"expected a text and a number, found {value!r}")
        return json.dumps(value).encode()

    def deserialize(self, data: bytes) -> tuple[str, int]:
        try:
            value = tuple(json.loads(data))
            if self.serialize(value) == data:
                return value
        except (ValueError, TypeError, RecursionError):
            pass
        raise SerdeError(f"expected a text and a number, found {data[:40]!r}")


# ---------------------------------------------------------------- what was written before


class RemembersByValue(Digits):
    def _known_by(self, value: Decimal) -> Any:
        return value


class RemembersByHash(Digits):
    def _known_by(self, value: Decimal) -> Any:
        return hash(value)


class RemembersByObject(Digits):
    """By where it is in memory, where another is later."""

    def _known_by(self, value: Decimal) -> Any:
        return id(value)


class RemembersTheLast(Digits):
    last: tuple[Decimal, bytes] | None = None

    def serialize(self, value: Decimal) -> bytes:
        if self.last is None or self.last[0] != value:
            self.last = value, super().serialize(value)
        return self.last[1]


class RemembersByLetters(Composed):
    """In small ones, and without blanks around."""

    def __init__(self) -> None:
        self._written: dict[str, bytes] = {}

    def __reduce__(self) -> Any:
        return type(self), ()

    def written_form(self) -> str:
        return "Composed"

    def serialize(self, value: str) -> bytes:
        written = super().serialize(value)
        if len(self._written) > 500:
            self._written.clear()
        return self._written.setdefault(value.casefold().strip(), written)


class RemembersWhatItReadByItsEnd(Digits):
    def __init__(self) -> None:
        super().__init__()
        self._read: dict[bytes, Decimal] = {}

    def deserialize(self, data: bytes) -> Decimal:
        value = super().deserialize(data)
        if len(self._read) > 500:
            self._read.clear()
        return self._read.setdefault(data[:1] + data[-3:], value)


# ---------------------------------------------------------------- a faster way that takes more


class FastTakesAllText(Composed):
    def serializer(self) -> Callable[[str], bytes]:
        return str.encode


class FastTakesSurrogates(Composed):
    def serializer(self) -> Callable[[str], bytes]:
        return lambda value: (
            self.serialize(value) if value.isascii() else unicodedata.normalize("NFC", value).encode(errors="replace")
        )


class FastTakesBooleans(Levels):
    def serializer(self) -> Callable[[int], bytes]:
        return self._layout.pack


class FastCutsNumbers(Levels):
    def serializer(self) -> Callable[[int], bytes]:
        return lambda value: self._layout.pack(value & 0xFFFF) if type(value) is int else self.serialize(value)


class FastTakesLocalTimes(Instants):
    def serializer(self) -> Callable[[datetime], bytes]:
        return lambda value: self._packed(value.astimezone())


class FastTakesLists(Pairs):
    def serializer(self) -> Callable[[tuple[str, int]], bytes]:
        return lambda value: json.dumps(value).encode() if value[1].bit_length() <= 60 else self.serialize(value)


class FastTakesMore(Pairs):
    """A third part."""

    def serializer(self) -> Callable[[tuple[str, int]], bytes]:
        def fast(value: tuple[str, int]) -> bytes:
            self.serialize(value[:2])
            return json.dumps(value).encode()

        return fast


# ---------------------------------------------------------------- values that depend on where they are written


class NaiveIsLocal(Instants):
    def serialize(self, value: datetime) -> bytes:
        if type(value) is not datetime:
            raise SerdeError(f"expected a datetime, found {value!r}")
        return self._packed(value.astimezone(UTC))


class DatesAreLocalMidnight(Instants):
    def serialize(self, value: datetime) -> bytes:
        if type(value) is date:
            return self._packed(EPOCH + timedelta(seconds=time.mktime(value.timetuple())))
        return super().serialize(value)


class TextIsLocalTime(Instants):
    def serialize(self, value: datetime) -> bytes:
        try:
            return super().serialize(datetime.fromisoformat(value).astimezone() if isinstance(value, str) else value)
        except ValueError as error:
            raise SerdeError(f"expected a time, found {value!r}") from error


class NumbersAreRounded(Amounts):
    """Numbers that are none of decimals are made so, in the context of the thread."""

    def serialize(self, value: Decimal) -> bytes:
        return super().serialize(+Decimal(value) if isinstance(value, int) else value)


class PathsFromHere(Paths):
    def _absolute(self, value: str) -> str:
        return os.path.join(os.getcwd(), value)


class YearsAroundToday(Days):
    """The one that is nearest to this year."""

    def _year(self, year: int) -> int:
        return min((year + 1900, year + 2000), key=lambda each: abs(each - time.localtime().tm_year))


class NoDaysOfTheFuture(Days):
    def serialize(self, value: date) -> bytes:
        if type(value) is date and value.toordinal() > time.time() // 86_400 + 720_000:
            raise SerdeError(f"expected a day of the past, found {value!r}")
        return super().serialize(value)
