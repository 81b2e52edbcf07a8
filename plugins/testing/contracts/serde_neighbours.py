"""Values near a value: equal ones that differ, from the ends of its ranges, of types that look alike."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import islice
from random import Random
from typing import Any

_MOST = 60
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
    """Return a value and those near it, with some of its types from the ends of their ranges, always the same ones."""
    near = [*islice(twins(value), 20), *islice(_strangers(value), 200)]
    beyond = [each for each in islice(ends(value), 200) if not (isinstance(each, str | bytes) and len(each) > 1_000)]
    chosen = [*near[:20], *Random(1).sample(near[20:], min(len(near[20:]), _MOST - 20))]
    return [value, *chosen, *Random(2).sample(beyond, min(len(beyond), _MOST))]


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
    """Yield values of the types that this one has, with one part of it at an end of its range each.

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
    return f"{type(value).__name__}({','.join(sorted({shape(each) for each in parts}))})"


def _nested(value: Any, depth: int, around: Any) -> Any:
    for _ in range(depth):
        value = around(value)
    return value


def _strangers(value: Any) -> Iterator[Any]:
    """Yield values that a serde of this one may take for one of its own, and may refuse."""
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
    given = {name: getattr(value, name) for name in names or [each.name for each in fields(value) if each.init]}
    for name, each in given.items():
        for other in others(each):
            with suppress(Exception):  # its class takes no such value
                yield kind(**{**given, name: other})
