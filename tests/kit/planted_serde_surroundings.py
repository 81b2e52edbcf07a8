"""Right serdes, and copies with one wrong line each, which only other surroundings or the ends of ranges show."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from penstock.errors import SerdeError
from penstock.serde import Serde

EXACT = Context(prec=60)


class Counts(Serde[int]):
    """Right: ints of any size, as their length in four bytes and two's complement. `pad`: bytes before them."""

    def __init__(self, pad: int = 0) -> None:
        self.pad = pad

    def serialize(self, value: int) -> bytes:
        if type(value) is not int:
            raise SerdeError(f"expected an int, found {value!r}")
        size = self._size(value)
        return size.to_bytes(4, "big") + bytes(self.pad) + value.to_bytes(size, "big", signed=True)

    def _size(self, value: int) -> int:
        return value.bit_length() // 8 + 1

    def deserialize(self, data: bytes) -> int:
        size, body = int.from_bytes(data[:4], "big"), data[4 + self.pad :]
        if len(data) < 5 + self.pad or size != len(body):
            raise SerdeError(f"expected a length and as many bytes, found {data[:40]!r}")
        return int.from_bytes(body, "big", signed=True)


class Letters(Serde[str]):
    """Right: text behind its length in four bytes."""

    def serialize(self, value: str) -> bytes:
        if type(value) is not str:
            raise SerdeError(f"expected a str, found {value!r}")
        try:
            body = self._encoded(value)
        except UnicodeEncodeError as error:
            raise SerdeError(f"expected text, found {value!r}") from error
        return len(body).to_bytes(4, "big") + body

    def _encoded(self, value: str) -> bytes:
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        size, body = int.from_bytes(data[:4], "big"), data[4:]
        if len(data) < 4 or size != len(body):
            raise SerdeError(f"expected a length and as many bytes, found {data[:40]!r}")
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise SerdeError(f"expected UTF-8, found {data[:40]!r}") from error


class Moments(Serde[datetime]):
    """Right: times in UTC as microseconds since the epoch."""

    def serialize(self, value: datetime) -> bytes:
        if type(value) is not datetime or value.tzinfo is not UTC:
            raise SerdeError(f"expected a datetime in UTC, found {value!r}")
        return b"%d" % self._micros(value)

    def _micros(self, value: datetime) -> int:
        past = value - datetime(1970, 1, 1, tzinfo=UTC)
        return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds

    def deserialize(self, data: bytes) -> datetime:
        try:
            seconds, micros = divmod(int(data), 1_000_000)
            return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
        except (ValueError, OverflowError, OSError) as error:
            raise SerdeError(f"expected microseconds, found {data[:40]!r}") from error


class Prices(Serde[Decimal]):
    """Right: decimals with a fixed number of places, as the number of the smallest unit."""

    def __init__(self, places: int = 2) -> None:
        self.places = places

    def serialize(self, value: Decimal) -> bytes:
        if type(value) is not Decimal or not value.is_finite() or value.as_tuple().exponent != -self.places:
            raise SerdeError(f"expected a decimal with {self.places} places, found {value!r}")
        try:
            return str(self._units(value)).encode()
        except InvalidOperation as error:
            raise SerdeError(f"too large: {value!r}") from error

    def _units(self, value: Decimal) -> str:
        sign, digits, _ = value.as_tuple()
        return "-" * sign + "".join(map(str, digits))

    def deserialize(self, data: bytes) -> Decimal:
        try:
            text = data.decode()
            sign, digits = text.startswith("-"), text.removeprefix("-")
            return Decimal((int(sign), tuple(map(int, digits)), -self.places))
        except ValueError as error:
            raise SerdeError(f"expected a number of units, found {data[:40]!r}") from error


class Trees(Serde[Any]):
    """Right: dicts, lists, text and ints as JSON with sorted keys."""

    def serialize(self, value: Any) -> bytes:
        self._check(value)
        return self._dumped(value).encode()

    def _dumped(self, value: Any) -> str:
        return json.dumps(value, sort_keys=True)

    def _check(self, value: Any) -> None:
        if type(value) not in (dict, list, str, int):
            raise SerdeError(f"expected dicts, lists, text and ints, found {type(value)}")
        if type(value) is dict and any(type(key) is not str for key in value):
            raise SerdeError(f"expected keys of text, found {[*value]}")
        for each in value.values() if type(value) is dict else value if type(value) is list else ():
            self._check(each)

    def deserialize(self, data: bytes) -> Any:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise SerdeError(f"expected JSON, found {data[:40]!r}") from error
        self._check(found)
        return found


@dataclass
class Line:
    item: str
    tags: list[str] = field(default_factory=list)


class Lines(Serde[Line]):
    """Right: objects that can be changed, as JSON."""

    def serialize(self, value: Line) -> bytes:
        if type(value) is not Line or type(value.item) is not str or any(type(each) is not str for each in value.tags):
            raise SerdeError(f"expected a Line, found {value!r}")
        return json.dumps([value.item, value.tags]).encode()

    def deserialize(self, data: bytes) -> Line:
        try:
            item, tags = json.loads(data)
            line = Line(item, tags)
            self.serialize(line)
        except (ValueError, TypeError) as error:
            raise SerdeError(f"expected a Line, found {data[:40]!r}") from error
        return line


class Subjects(Serde[str]):
    """Right: text behind the subject of its topic, as a registry has one for keys and one for values."""

    def __init__(self, subject: str = "") -> None:
        self.subject = subject

    def bind(self, topic: str, *, is_key: bool) -> Serde[str]:
        return type(self)(f"{topic}-{'key' if is_key else 'value'}")

    def serialize(self, value: str) -> bytes:
        if type(value) is not str or "|" in value:
            raise SerdeError(f"expected a str without '|', found {value!r}")
        try:
            return f"{self.subject}|{value}".encode()
        except UnicodeEncodeError as error:
            raise SerdeError(f"expected text, found {value!r}") from error

    def deserialize(self, data: bytes) -> str:
        try:
            subject, value = data.decode().split("|")
        except ValueError as error:
            raise SerdeError(f"expected a subject and text, found {data[:40]!r}") from error
        if subject != self.subject:
            raise SerdeError(f"expected the subject {self.subject!r}, found {data[:40]!r}")
        return value


# ---------------------------------------------------------------- ends of ranges


class CutsLargeInts(Counts):
    def serialize(self, value: int) -> bytes:
        return super().serialize(value if type(value) is not int else (value + (1 << 159)) % (1 << 160) - (1 << 159))


class LengthInOneByte(Counts):
    def _size(self, value: int) -> int:
        return min(super()._size(value), 255)

    def serialize(self, value: int) -> bytes:
        try:
            return super().serialize(value)
        except OverflowError:
            return super().serialize(value % (1 << 2000))


class LatinLetters(Letters):
    def _encoded(self, value: str) -> bytes:
        return value.encode("latin-1", "replace").decode("latin-1").encode()


class CutsLongText(Letters):
    def _encoded(self, value: str) -> bytes:
        return super()._encoded(value[:65_535])


class StripsZeros(Letters):
    def deserialize(self, data: bytes) -> str:
        return super().deserialize(data).rstrip("\0")


class CutsDeepTrees(Trees):
    def _dumped(self, value: Any) -> str:
        return super()._dumped(_cut(value, 20))


def _cut(value: Any, depth: int) -> Any:
    if type(value) is list:
        return [_cut(each, depth - 1) for each in value] if depth else []
    return {key: _cut(each, depth - 1) for key, each in value.items()} if type(value) is dict and depth else value


class ReadsWhatIsBehind(Letters):
    """Bytes behind the end are ignored."""

    def deserialize(self, data: bytes) -> str:
        return super().deserialize(data[: 4 + int.from_bytes(data[:4], "big")])


class YearsOfFourDigits(Moments):
    def _micros(self, value: datetime) -> int:
        return min(super()._micros(value), 253_370_764_800_000_000 - 1)


class TextFormOfFloats(Counts):
    def to_json(self, value: int) -> Any:
        return float(value) if abs(value) < 1 << 600 else value

    def from_json(self, data: Any) -> int:
        return int(data)


class ImmutableButRefused(Counts):
    immutable_types = frozenset({int})

    def serialize(self, value: int) -> bytes:
        if type(value) is int and value.bit_length() > 200:
            raise SerdeError("too large")
        return super().serialize(value)


class FastForShortText(Letters):
    def serializer(self) -> Callable[[str], bytes]:
        return lambda value: len(value).to_bytes(4, "big") + self._encoded(value)[:60_000]


class ColumnsOf32768(Letters):
    def deserialize_column(self, column: Any) -> Any:
        return [*super().deserialize_column(column[:32_768]), *[None] * (len(column) - 32_768)]


# ---------------------------------------------------------------- surroundings


class LocalTimes(Moments):
    def _micros(self, value: datetime) -> int:
        return super()._micros(value.replace(tzinfo=None).astimezone().astimezone(UTC))

    def deserialize(self, data: bytes) -> datetime:
        found = super().deserialize(data).astimezone().replace(tzinfo=None)
        return found.replace(tzinfo=UTC)


class RoundsAsTheContextSays(Prices):
    def _units(self, value: Decimal) -> str:
        return super()._units(+value)


class TextFormInLocalTime(Moments):
    def to_json(self, value: datetime) -> Any:
        return value.astimezone().isoformat()

    def from_json(self, data: Any) -> datetime:
        return datetime.fromisoformat(data).astimezone(UTC)


class UnsortedTrees(Trees):
    def _dumped(self, value: Any) -> str:
        return json.dumps(value)


class BuffersOfItsThread(Counts):
    """What a thread made, another does not have."""

    def __init__(self) -> None:
        super().__init__()
        self._local = threading.local()
        self._local.pad = b""

    def __reduce__(self) -> Any:
        return BuffersOfItsThread, ()

    def serialize(self, value: int) -> bytes:
        pad: bytes = self._local.pad
        return super().serialize(value) + pad

    def written_form(self) -> str:
        return "BuffersOfItsThread"


class ReadsItsSchemaFromHere(Counts):
    """A path that belongs to the directory in which the process began."""

    def serialize(self, value: int) -> bytes:
        return super().serialize(value)[: None if os.getcwd() == HERE else -1]


HERE = os.getcwd()


class RemembersForEver(Letters):
    def __init__(self) -> None:
        self._remembered: dict[bytes, str] = {}

    def deserialize(self, data: bytes) -> str:
        return self._remembered.setdefault(data, super().deserialize(data))

    def written_form(self) -> str:
        return "RemembersForEver"


class OpensAtEachCall(Counts):
    def serialize(self, value: int) -> bytes:
        OPENED.append(os.open(os.devnull, os.O_RDONLY))
        return super().serialize(value)


OPENED: list[int] = []


class SharesItsLines(Lines):
    def __init__(self) -> None:
        self._read = functools.lru_cache(100)(super().deserialize)

    def __reduce__(self) -> Any:
        return SharesItsLines, ()

    def deserialize(self, data: bytes) -> Line:
        return self._read(data)

    def written_form(self) -> str:
        return "SharesItsLines"


# ---------------------------------------------------------------- settings, topics and forms


class FormWithoutItsSetting(Prices):
    def written_form(self) -> str:
        return "FormWithoutItsSetting"


class ReadsFormsOfOtherSettings(Counts):
    def unreadable(self, form: str) -> str:
        return "" if form.partition("(")[0] == self.written_form().partition("(")[0] else form


class ReadsFormsThatBeginAlike(Trees):
    def unreadable(self, form: str) -> str:
        return "" if form.startswith(self.written_form()) else f"{form} and now has another"


class OneSubjectOfATopic(Subjects):
    def bind(self, topic: str, *, is_key: bool) -> Serde[str]:
        key = id(self), topic
        if key not in BOUND:
            BOUND[key] = self, super().bind(topic, is_key=is_key)
        return BOUND[key][1]


BOUND: dict[tuple[int, str], tuple[Any, Serde[str]]] = {}


class LosesItsTopicOnTheWay(Subjects):
    def __reduce__(self) -> Any:
        return type(self), ()


class ConfiguresItself(Counts):
    def configure(self, config: Mapping[str, Any]) -> Serde[int]:
        self.pad = 1
        return self
