"""The part of `SerdeContract` about the ends of ranges: large numbers, long text, deep nesting, and more bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from random import Random
from typing import Any

from hypothesis import strategies as st

from penstock import Serde, SerdeError

from .expectations import shown
from .serde_tests import ANY_TEXT, SerdeTests

_MOST = 100
"""So many larger values are made of one."""
_LONG = 66_000
"""More than two bytes count."""
_INTS = [sign * ((1 << bits) + more) for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64, 130, 1000, 2100) for sign in (1, -1)
         for more in (-1, 0, 1)]  # fmt: skip
_TEXTS = ["", "\0", "a\0", " a ", "\n", "\r\n", "\t", "1", "null", "true", "a,b", "a;b", "a|b", "a:b", '"', "'", "\\",
          "%s", "{}", "\x7f", "\xe9", "e\u0301", "\xdf", "\u0130", "\u0436\u03b1", "\u65e5\u672c", "\U0001f600",
          "\u202e", "\u2028", "\ufeff", "\ud800", "x" * _LONG, "\U0001f600" * 20_000]  # fmt: skip
_BYTES = [b"", b"\0", b"\xff", b"a\0", b"\r\n", bytes(range(256)), b"x" * _LONG]

BUILT_IN: Mapping[type, st.SearchStrategy[Any]] = {
    str: ANY_TEXT | st.sampled_from(_TEXTS),
    int: st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from(_INTS),
    float: st.floats(),
    bool: st.booleans(),
    bytes: st.binary(max_size=100) | st.sampled_from(_BYTES),
}
"""Values of types that a serde may name as immutable."""


class EndsTests(SerdeTests):
    """Values of the types that a serde has, larger than those that its author thought of."""

    def test_the_ends_of_ranges_come_back_or_are_refused(self) -> None:
        """By each way to write and read; a value that is changed in silence is a wrong result some day."""
        if self.changes_ends:
            return
        serde = self.made()
        fast = serde.serializer()
        kinds: set[type] = set()
        by_shape = {_shape(value): value for value in self._samples(60)}
        for sample in sorted(by_shape.values(), key=lambda value: len(_shape(value)))[-6:]:
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
        """Return what differs from the value in any way to write and read it; "" if nothing does."""
        try:
            read = serde.deserialize(written)
            if not self.same(read, value):
                return f"came back as {shown(read)}: refuse it (or say so, and set changes_ends = True)"
            column = serde.deserialize_column([written, None, written])
            if len(column) != 3 or not self.same(column[2], value):
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
        return "" if self.same(read, value) else f"its text form {shown(form)} is read as {shown(read)}"

    def test_bytes_behind_the_end_are_not_ignored(self) -> None:
        """They are damage, or another serde's: refused, or a part of the value."""
        serde = self.made()
        # No single zero: JSON takes that for UTF-16.
        for value in [] if self.ignores_the_rest else self._samples(8):
            written = serde.serialize(value)
            for more in (b"\0\xff", b"\xff", b"\0" * 8, b"\xff\0\xff"):
                try:
                    read = serde.deserialize(written + more)
                except Exception:
                    continue
                assert not self.same(read, value), (
                    f"{shown(written)} with {more!r} behind it is read as {shown(read)}, as if nothing were there: "
                    "raise SerdeError (or say so, and set ignores_the_rest = True)"
                )

    def test_a_column_of_one_value(self) -> None:
        """40,000 records of one key come in one fetch."""
        serde = self.made()
        for value in self._samples(1):
            written = serde.serialize(value)
            read = serde.deserialize_column([written] * 40_000)
            assert len(read) == 40_000, f"deserialize_column returned {len(read)} values for 40,000"
            for row in (0, 4_095, 4_096, 32_767, 32_768, 39_999):
                assert self.same(read[row], value), f"of 40,000 equal rows, number {row} is read as {read[row]!r}"


def ends(value: Any, has_long: bool = False) -> Iterator[Any]:
    """Yield values of the types that this one has, with one part of it at an end of its range each.

    `has_long`: also a list of more elements than two bytes count.
    """
    kind = type(value)
    if kind is int:
        yield from _INTS
    elif kind is str:
        yield from _TEXTS
    elif kind is bytes:
        yield from _BYTES
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


def _shape(value: Any) -> str:
    """Return the types in a value, as text."""
    parts = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return f"{type(value).__name__}({','.join(sorted({_shape(each) for each in parts}))})"


def _nested(value: Any, depth: int, around: Any) -> Any:
    for _ in range(depth):
        value = around(value)
    return value


def reads(serde: Serde[Any], written: bytes) -> Any:
    """Return what a serde reads; SerdeError, the class, where it refuses."""
    try:
        return serde.deserialize(written)
    except Exception:
        return SerdeError
