"""The settings of `SerdeContract`, values near a value, and the part about the ends of ranges."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from itertools import chain, islice
from random import Random
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Serde, SerdeError

from .expectations import declared, shown

_MOST_NEAR = 60
"""So many neighbours are made of one value."""
_LONG = 66_000
"""More than two bytes count."""
INTS = [sign * ((1 << bits) + more) for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64, 130, 1000, 2100) for sign in (1, -1)
         for more in (-1, 0, 1)]  # fmt: skip
TEXTS = ["", "\0", "a\0", " a ", "\n", "\r\n", "\t", "1", "null", "true", "a,b", "a;b", "a|b", "a:b", '"', "'", "\\",
          "%s", "{}", "\x7f", "\xe9", "e\u0301", "\xdf", "\u0130", "\u0436\u03b1", "\u65e5\u672c", "\U0001f600",
          "\u202e", "\u2028", "\ufeff", "\ud800", "x" * _LONG, "\U0001f600" * 20_000]  # fmt: skip
BYTES = [b"", b"\0", b"\xff", b"a\0", b"\r\n", bytes(range(256)), b"x" * _LONG]
_ELSEWHERE = timezone(timedelta(hours=5, minutes=30))


def neighbourhood(value: Any) -> list[Any]:
    """Return a value and similar ones, some at the ends of their types' ranges, always the same ones."""
    near = [*islice(twins(value), 20), *islice(_strangers(value), 200)]
    beyond = [each for each in islice(ends(value), 200) if not (isinstance(each, str | bytes) and len(each) > 1_000)]
    chosen = [*near[:20], *Random(1).sample(near[20:], min(len(near[20:]), _MOST_NEAR - 20))]
    return [value, *chosen, *Random(2).sample(beyond, min(len(beyond), _MOST_NEAR))]


def twins(value: Any) -> Iterator[Any]:
    """Yield values that are equal to this one and differ from it, as 1, 1.0 and True do."""
    kind = type(value)
    if kind is bool:
        yield from (int(value), float(value))
    elif kind is int:
        if value in (0, 1):
            yield bool(value)
        if abs(value) < 1 << 53:
            yield from (float(value), Decimal(value))
    elif kind is float:
        if value == 0:
            yield -value
        if value.is_integer():
            yield int(value)
    elif kind is Decimal and value.is_finite():
        sign, digits, exponent = value.as_tuple()
        yield Decimal((sign, (*digits, 0), int(exponent) - 1))
        if digits[-1] == 0 and len(digits) > 1:
            yield Decimal((sign, digits[:-1], int(exponent) + 1))
        if not value:
            yield Decimal((1 - sign, digits, exponent))
        if value == value.to_integral_value() and abs(value) < 1 << 53:
            yield int(value)
    elif kind is datetime:
        yield value.replace(fold=1 - value.fold)
        if value.tzinfo is not None:
            with suppress(OverflowError):
                yield value.astimezone(_ELSEWHERE)
    elif kind in (list, tuple):
        for at, each in enumerate(value):
            yield from (kind([*value[:at], twin, *value[at + 1 :]]) for twin in twins(each))
    elif kind is dict:
        for key, each in value.items():
            yield from ({**value, key: twin} for twin in twins(each))
    elif _has_fields(value):
        yield from _with_other_fields(value, twins)


def ends(value: Any, has_long: bool = False) -> Iterator[Any]:
    """Yield variants of a value with one part each at an end of its type's range.

    `has_long`: also a list of more elements than two bytes count.
    """
    kind = type(value)
    if kind is int:
        yield from INTS
    elif kind is str:
        yield from TEXTS
    elif kind is bytes:
        yield from BYTES
    elif kind is Decimal and value.is_finite():
        exponent = int(value.as_tuple().exponent)
        yield from (Decimal((sign, (9,) * digits, exponent)) for digits in (1, 18, 29, 40) for sign in (0, 1))
    elif kind is datetime:
        yield from (each.replace(tzinfo=value.tzinfo) for each in (datetime.min, datetime.max, datetime(1969, 12, 31)))
    elif kind is date:
        yield from (date.min, date.max, date(1969, 12, 31))
    elif kind is timedelta:
        yield from (timedelta.min, timedelta.max)
    elif kind in (list, tuple):
        yield kind()
        if value:
            yield kind(value[:1] * (_LONG if has_long else 300))
        if any(type(each) is kind for each in value):
            yield from (_nested(value, depth, lambda inner: kind([inner])) for depth in (30, 120))
        yield from (kind([*value[:at], end, *value[at + 1 :]]) for at, each in enumerate(value) for end in ends(each))
    elif kind is dict:
        yield {}
        if any(type(each) is kind for each in value.values()):
            yield from (_nested(value, depth, lambda inner: {next(iter(value)): inner}) for depth in (30, 120))
        yield from ({**value, key: end} for key, each in value.items() for end in ends(each))
        yield from ({end: value[key]} for key in islice(value, 1) for end in ends(key))
    elif kind in (set, frozenset):
        yield kind()
        yield from (kind([end]) for each in islice(value, 1) for end in ends(each))
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.init:
                yield from (replace(value, **{field.name: end}) for end in ends(getattr(value, field.name)))


def shape(value: Any) -> str:
    """Return the types in a value, as text."""
    parts = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return f"{type(value).__name__}({','.join(sorted({shape(part) for part in parts}))})"


def _nested(value: Any, depth: int, around: Any) -> Any:
    for _ in range(depth):
        value = around(value)
    return value


def _strangers(value: Any) -> Iterator[Any]:
    """Yield values of other types that the serde may confuse with its own, and may refuse."""
    kind = type(value)
    if kind in _DERIVED:
        yield _DERIVED[kind](value)
    if kind is str:
        yield from (value[1:], value.upper(), value.title(), f" {value}", f"{value} ", f"{value}\n")
        yield from (unicodedata.normalize(form, value) for form in ("NFD", "NFKC"))
        yield value.encode(errors="replace")
    elif kind is bytes:
        yield from (value[1:], value + b"\0", value.decode("latin-1"), bytearray(value))
    elif kind is int:
        yield from (-value, value + (1 << 64), value + 0.5, str(value), Decimal(value).scaleb(30) + 1)
        yield from (10**30 + value, b"%d" % value)
    elif kind is float:
        yield from (float("nan"), float("inf"), -value, str(value))
    elif kind is Decimal:
        yield from map(Decimal, ("NaN", "sNaN", "Infinity", "-0"))
        yield from (str(value), value.copy_negate(), 10**30 + 1, 1234567, 0.1)
    elif kind is datetime:
        naive = value.replace(tzinfo=None)
        yield from (naive if value.tzinfo else value.replace(tzinfo=UTC), value.date(), value.time(), naive.isoformat())
        yield from (value.isoformat(), value.isoformat(" "), value.date().isoformat())
    elif kind is date:
        moment = datetime(value.year, value.month, value.day, 23)
        yield from (moment, moment.replace(tzinfo=UTC), value.isoformat(), value.toordinal())
    elif kind is timedelta:
        yield from (value.total_seconds(), -value)
    elif kind in (list, tuple):
        other = tuple if kind is list else list
        yield from (other(value), kind([*value, *value[:1]]), kind(value[:-1]), kind([*value, None]), kind(value[::-1]))
        for at, each in enumerate(value):
            yield from (kind([*value[:at], near, *value[at + 1 :]]) for near in _strangers(each))
    elif kind is dict:
        yield from (list(value.items()), dict(islice(value.items(), max(0, len(value) - 1))), {**value, "more": None})
        for near in [(1, *_strangers(key)) for key in islice(value, 1)]:
            yield from ({key: 1} for key in near if _is_hashable(key))
        for key, each in value.items():
            yield from ({**value, key: near} for near in _strangers(each))
    elif kind in (set, frozenset):
        yield from (frozenset(value) if kind is set else set(value), list(value), kind([*value, None]))
    elif _has_fields(value):
        yield from _with_other_fields(value, _strangers)


def _derived(kind: Any) -> Any:
    name, show = f"Derived{kind.__name__.title()}", kind.__repr__
    return type(name, (kind,), {"__repr__": lambda value: f"{name}({show(value)})"})


_DERIVED: dict[type, Any] = {kind: _derived(kind) for kind in (str, bytes, int, float, Decimal, list, tuple, dict)}


def _is_hashable(value: Any) -> bool:
    try:
        return isinstance(hash(value), int)
    except TypeError:
        return False


def _has_fields(value: Any) -> bool:
    kind = type(value)
    return is_dataclass(kind) or hasattr(kind, "_fields") or hasattr(kind, "__struct_fields__")


def _with_other_fields(value: Any, others: Any) -> Iterator[Any]:
    kind = type(value)
    names = getattr(kind, "_fields", ()) or getattr(kind, "__struct_fields__", ())
    given = {name: getattr(value, name) for name in names or [field.name for field in fields(value) if field.init]}
    for name, each in given.items():
        for other in others(each):
            with suppress(Exception):  # its class takes no such value
                yield kind(**{**given, name: other})


ANY_TEXT = st.text(st.characters(), max_size=40)
"""Text with every code point, lone surrogates included."""


class SerdeTests:
    """The settings of `SerdeContract`."""

    serde: Callable[[], Serde[Any]] = declared("the serde's class, or a staticmethod that makes it")
    """Makes the serde: its class, or a `staticmethod`."""
    values: ClassVar[st.SearchStrategy[Any]] = declared("a hypothesis strategy of values that it holds")
    """Values that it holds and gives back as they were. A serde for keys, of which equal ones are one, may give back an
    equal Decimal or time with the same bytes: 1.5 for 1.50, or the instant in UTC."""
    refused: ClassVar[Sequence[Any]] = (object(),)
    """Values that it must refuse with a SerdeError."""
    foreign: ClassVar[st.SearchStrategy[bytes]] = st.binary(max_size=64)
    """Bytes that others wrote: each is read as something, or refused with a SerdeError."""
    in_one_process: ClassVar[bool] = False
    """Whether other processes cannot read it (True where a registry is a mock in this process)."""
    for_keys: ClassVar[bool] = True
    """Whether equal values have equal bytes in every process, as keys of stores need (False: the serde says so)."""
    keeps_order: ClassVar[bool] = False
    """Whether equal dicts whose entries have another order may have other bytes (True: the serde says so)."""
    changes_ends: ClassVar[bool] = False
    """Whether larger values of the same types may come back changed, and not be refused (True: the serde says so)."""
    ignores_the_rest: ClassVar[bool] = False
    """Whether bytes behind the end of a value are not looked at (True: the serde says so)."""
    other_settings: ClassVar[Sequence[Callable[[], Serde[Any]]]] = ()
    """Makes serdes of this class with other settings, which write or read other bytes."""

    @staticmethod
    def same(one: Any, other: Any) -> bool:
        """Return whether two values are the same to the serde's users; by default equal and of one type all through."""
        return same_value(one, other)

    def _is_back(self, serde: Serde[Any], read: Any, value: Any) -> bool:
        """Return whether a value may be read back as `read`."""
        if self.same(read, value):
            return True
        if not self.for_keys or type(self).same is not SerdeTests.same or not same_value(read, value, exactly=False):
            return False
        return serde.serialize(read) == serde.serialize(value)

    def _are_alike(self, one: Any, other: Any) -> bool:
        """Return whether two readings of the same bytes are the same, each a value or the type of an error."""
        if isinstance(one, type) or isinstance(other, type):
            return one is other
        return self.same(one, other)

    def made(self) -> Serde[Any]:
        """Return a new serde."""
        return type(self).serde()

    # Each class that inherits these tests is an executor of its own, and that is the point of them.
    # Not at random: what the suite finds, it finds always.
    _each = settings(
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow], deadline=None, derandomize=True
    )
    _few = settings(_each, max_examples=25)

    def _samples(self, count: int) -> list[Any]:
        """Return some values, always the same."""
        found: list[Any] = []

        @settings(self._each, max_examples=count, phases=[Phase.generate])
        @given(self.values)
        def collect(value: Any) -> None:
            found.append(value)

        collect()
        return found

    def _neighbourhoods(self) -> list[list[Any]]:
        """Return some values of other types each, always the same, with those near them; a serde may refuse those."""
        by_shape = {shape(value): value for value in self._samples(60)}
        return [neighbourhood(value) for value in sorted(by_shape.values(), key=lambda value: len(shape(value)))[-4:]]


def _struct_fields(value: Any) -> Sequence[str]:
    return getattr(type(value), "__struct_fields__", ())


def same_value(one: Any, other: Any, *, exactly: bool = True) -> bool:
    """Return whether two values are equal and of one type, all through, with nan the same as nan and -0.0 not as 0.0.

    Exactly: Decimals have the same digits, and times the same zone.

    >>> same_value((1, [2]), (1, [2])), same_value((1,), [1]), same_value({1: 0.0}, {True: -0.0})
    (True, False, False)
    """
    if type(one) is not type(other):
        return False
    same = same_value if exactly else _equal_value
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        # In any order: a serde may sort the keys.
        if all(type(key) is str for key in (*one, *other)):
            return one.keys() == other.keys() and all(same(each, other[key]) for key, each in one.items())
        return same(set(map(_Pair, one.items())), set(map(_Pair, other.items())))
    if isinstance(one, set | frozenset):
        left = list(other)
        for each in one:
            found = next((index for index, candidate in enumerate(left) if same(each, candidate)), None)
            if found is None:
                return False
            del left[found]
        return not left
    if isinstance(one, Decimal) and (exactly or one.is_nan() or other.is_nan()):
        return str(one) == str(other)
    if isinstance(one, datetime) and exactly:
        # With a zone, what `fold` says is in the offset.
        return (one.isoformat(), one.tzinfo, one.tzname()) == (other.isoformat(), other.tzinfo, other.tzname()) and (
            one.tzinfo is not None or one.fold == other.fold
        )
    if isinstance(one, _Pair):
        return same(one.pair, other.pair)
    if one == other:
        return True
    # One may have a nan.
    names = [field.name for field in fields(one) if field.compare] if is_dataclass(one) else _struct_fields(one)
    return bool(names) and all(same(getattr(one, name), getattr(other, name)) for name in names)


_equal_value = partial(same_value, exactly=False)


class _Pair:
    """An entry of a dict, as a member of a set."""

    def __init__(self, pair: tuple[Any, Any]) -> None:
        self.pair = pair


def what_can_be_changed(value: Any) -> str:
    """Return the mutable part of a value; "" without one.

    Attributes with a leading underscore are the value's own.

    >>> what_can_be_changed((1, ["a"])), what_can_be_changed((1, "a"))
    ("['a']", '')
    """
    if isinstance(value, list | dict | set | bytearray):
        return repr(value)
    if isinstance(value, type | Enum):
        return ""
    if isinstance(value, tuple | frozenset):
        return next(filter(None, map(what_can_be_changed, value)), "")
    slots = (each.__dict__.get("__slots__", ()) for each in type(value).__mro__)
    named = chain(getattr(value, "__dict__", ()), *((slot,) if isinstance(slot, str) else slot for slot in slots))
    for name in dict.fromkeys([*named, *_struct_fields(value)]):
        part = getattr(value, name, None)
        if name.startswith("_"):
            continue
        with suppress(Exception):  # it cannot be changed
            setattr(value, name, part)
            return f"{name} of {value!r}"
        if found := what_can_be_changed(part):
            return found
    return ""


def spoil(value: Any) -> None:
    """Change the mutable parts of a value."""
    if isinstance(value, list):
        for each in value:
            spoil(each)
        value.append("spoiled")
    elif isinstance(value, tuple):
        for each in value:
            spoil(each)
    elif isinstance(value, dict):
        for each in value.values():
            spoil(each)
        value["spoiled"] = True
    elif isinstance(value, set):
        value.add("spoiled")
    elif isinstance(value, bytearray):
        value += b"spoiled"
    elif hasattr(value, "__dict__") and not isinstance(value, Enum | type):
        for name, each in list(vars(value).items()):
            spoil(each)
            with suppress(Exception):  # it cannot be changed
                setattr(value, name, "spoiled")


_MOST = 100
"""So many larger values are made of one."""
BUILT_IN: Mapping[type, st.SearchStrategy[Any]] = {
    str: ANY_TEXT | st.sampled_from(TEXTS),
    int: st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from(INTS),
    float: st.floats(),
    bool: st.booleans(),
    bytes: st.binary(max_size=100) | st.sampled_from(BYTES),
}
"""Values of types that a serde may name as immutable."""


class EndsTests(SerdeTests):
    """Values at the ends of the ranges of the serde's types, larger than the usual ones."""

    def test_the_ends_of_ranges_come_back_or_are_refused(self) -> None:
        """Values at the ends of ranges are read back unchanged or refused, by each way to write and read."""
        if self.changes_ends:
            return
        serde = self.made()
        fast = serde.serializer()
        kinds: set[type] = set()
        by_shape = {shape(value): value for value in self._samples(60)}
        for sample in sorted(by_shape.values(), key=lambda value: len(shape(value)))[-6:]:
            has_long, kinds = type(sample) not in kinds, {*kinds, type(sample)}
            values = list(islice(ends(sample, has_long), 1000))
            if len(values) > _MOST:
                # The first ones are of the value as a whole.
                values = [*values[:4], *Random(1).sample(values[4:], _MOST - 4)]
            for value in values:
                try:
                    written = serde.serialize(value)
                except Exception:
                    continue
                if wrong := self._wrong_with(serde, fast, value, written):
                    raise AssertionError(
                        f"{shown(value)}, a value of the types of {shown(sample)}, is not refused, and {wrong}"
                    )

    def _wrong_with(self, serde: Serde[Any], fast: Callable[[Any], bytes], value: Any, written: bytes) -> str:
        """Return the difference of any way to write and read the value; "" if there is none."""
        try:
            read = serde.deserialize(written)
            if not self._is_back(serde, read, value):
                return f"came back as {shown(read)}: refuse it (or say so, and set changes_ends = True)"
            column = serde.deserialize_column([written, None, written])
            if len(column) != 3 or not self._is_back(serde, column[2], value):
                return f"deserialize_column returned {shown(column)}"
        except Exception as error:
            return f"cannot be read again: {type(error).__name__}: {shown(error)}"
        with suppress(Exception):
            if (again := fast(value)) != written:
                return f"serializer() wrote {shown(again)}, and serialize {shown(written)}"
        try:
            form = json.dumps(serde.to_json(value), allow_nan=False)
        except Exception:
            return ""
        try:
            read = serde.from_json(json.loads(form))
        except Exception as error:
            return f"its text form {shown(form)} cannot be read: {type(error).__name__}: {shown(error)}"
        return "" if self._is_back(serde, read, value) else f"its text form {shown(form)} is read as {shown(read)}"

    def test_bytes_behind_the_end_are_not_ignored(self) -> None:
        """Bytes after the end are refused, or a part of the value: they are damage, or another serde's."""
        serde = self.made()
        # No single zero: JSON takes that for UTF-16.
        for value in [] if self.ignores_the_rest else self._samples(8):
            written = serde.serialize(value)
            for more in (b"\0\xff", b"\xff", b"\0" * 8, b"\xff\0\xff"):
                try:
                    read = serde.deserialize(written + more)
                except Exception:
                    continue
                assert not self._is_back(serde, read, value), (
                    f"{shown(written)} with {more!r} behind it is read as {shown(read)}, as if nothing were there: "
                    "raise SerdeError (or say so, and set ignores_the_rest = True)"
                )

    def test_a_column_of_one_value(self) -> None:
        """A column may have one value, as in a fetch of 40,000 records of one key."""
        serde = self.made()
        for value in self._samples(1):
            read = serde.deserialize_column([serde.serialize(value)] * 40_000)
            assert len(read) == 40_000, f"deserialize_column returned {len(read)} values for 40,000"
            for row in (0, 4_095, 4_096, 32_767, 32_768, 39_999):
                assert self._is_back(serde, read[row], value), (
                    f"of 40,000 equal rows, number {row} is read as {read[row]!r}"
                )


def reads(serde: Serde[Any], written: bytes) -> Any:
    """Return the value that a serde reads; the class SerdeError if it refuses."""
    try:
        return serde.deserialize(written)
    except Exception:
        return SerdeError
