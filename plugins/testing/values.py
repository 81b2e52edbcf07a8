"""Hypothesis strategies of values: every type that the serdes take, with the values that serdes get wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from penstock import ConfigError
from penstock.support.packages import needed

with needed("penstock.testing.strategies", "testing"):
    from hypothesis import strategies as st

Strategy = st.SearchStrategy[Any]


def values(serde: str = "msgpack") -> Strategy:
    """Return a strategy of the values that the serde of this name holds: they come back equal and of their type.

    `serde`: "msgpack", "json", "pickle", "str", "bytes", "uuid", "bool", or a serde of numbers. Among them are text and
    bytes of length 0, tuples, sets, dicts with keys of any type, Decimals that are equal and have other digits, aware
    datetimes of one instant, nan, infinity, -0.0, and integers beyond 64 bits, each as far as the serde holds it.
    Raises ConfigError for another name.
    """
    return _of(_VALUES, serde)()


def keys(serde: str = "msgpack") -> Strategy:
    """Return a strategy of values that may be keys: hashable ones that are equal to themselves. Raises as `values`.

    Among texts and bytes are those that a program takes for others where it joins them with a separator.
    """
    return _of(_KEYS, serde)()


class Place(NamedTuple):
    """A key with fields, for `of`."""

    country: str
    number: int = 0


class Status(Enum):
    """A field of an Order."""

    OPEN = "open"
    PAID = "paid"


@dataclass(frozen=True)
class Line:
    """A part of an Order."""

    sku: str
    price: Decimal = Decimal("0.00")
    weight: float = 0.0


@dataclass(frozen=True)
class Order:
    """A value with fields and others inside of it, for `of`."""

    id: UUID
    lines: list[Line] = field(default_factory=list)
    by_name: dict[str, Line] = field(default_factory=dict)
    at: datetime | None = None
    where: Place | None = None
    status: Status = Status.OPEN
    data: bytes = b""
    refund_of: Order | None = None


def places() -> Strategy:
    """Return a strategy of Places."""
    return st.builds(Place, _WORDS, st.integers(-(2**53), 2**53))


def orders() -> Strategy:
    """Return a strategy of Orders."""
    lines = st.builds(Line, _WORDS, st.sampled_from([Decimal("1.5"), Decimal("1.50")]), _FINITE)
    parts: dict[str, Strategy] = {
        "id": st.uuids(),
        "lines": st.lists(lines, max_size=2),
        "by_name": st.dictionaries(_WORDS, lines, max_size=2),
        "at": st.none() | st.sampled_from([_INSTANT, _INSTANT.astimezone(_TWO_HOURS)]),
        "where": st.none() | places(),
        "status": st.sampled_from(Status),
        "data": st.binary(max_size=4),
    }
    inner = st.builds(Order, **parts)
    return st.builds(Order, **parts, refund_of=st.none() | inner)


# ---------------------------------------------------------------- what they are made of

_INSTANT = datetime(2024, 2, 29, 12, 30, 15, 7, tzinfo=UTC)
_TWO_HOURS = timezone(timedelta(hours=2))
_BERLIN = ZoneInfo("Europe/Berlin")
_WORDS = st.sampled_from(["", "a", "ä", "\U0001f600", "5", "null", '"', "!bytes", '{"!bytes": "eA=="}']) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=5
)
_SEPARATORS = (":", "/", "|", ",", "-", "_", ".", " ", "\0", "~")


@st.composite
def _meeting(draw: st.DrawFn) -> str:
    """Return a strategy of texts that become one where a program joins two: "a:" and "b" with a colon, "a" and ":b"."""
    part = st.sampled_from(["a", "b", draw(st.sampled_from(_SEPARATORS))])
    return "".join(draw(st.lists(part, max_size=3)))


_ANY_TEXT = _WORDS | st.sampled_from(["\ud800", "\ud83d\ude00"])
_SMALL_INTS = st.sampled_from([0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
_INTS = _SMALL_INTS | st.sampled_from([2**64, 2**70, -(2**70), 2**5000])
_FINITE = st.sampled_from([0.0, -0.0, 1.0, 0.1, 1e308, 5e-324]) | st.floats(allow_nan=False, allow_infinity=False)
_INFINITE = _FINITE | st.sampled_from([float("inf"), float("-inf")])
_FLOATS = _INFINITE | st.just(float("nan"))
_BYTES = st.sampled_from([b"", b"\x00", b"\xff\xfe", b"text", b'{"!bytes": "eA=="}']) | st.binary(max_size=6)
_DECIMALS = st.sampled_from(list(map(Decimal, ("1.5", "1.50", "0", "-0", "0E+3", "1E+400", "Infinity"))))
_TIMES = st.sampled_from(
    [
        _INSTANT,
        _INSTANT.astimezone(_TWO_HOURS),
        _INSTANT.astimezone(_BERLIN),
        _INSTANT.astimezone(timezone(timedelta(hours=2), "summer")),
        _INSTANT.astimezone(timezone(timedelta(seconds=1, microseconds=1))),
        _INSTANT.astimezone(timezone(timedelta(microseconds=-1))),
        _INSTANT.replace(tzinfo=None),
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=_BERLIN),
        datetime(2024, 10, 27, 2, 30, fold=1),
        datetime(1, 1, 1),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ]
)
_SPANS = st.sampled_from([timedelta(0), timedelta(days=-1, microseconds=1), timedelta.max]) | st.timedeltas()


_SIMPLE = st.booleans() | _INTS | _ANY_TEXT | _BYTES | _DECIMALS | _TIMES | st.dates() | _SPANS | st.uuids()
_SIMPLE_KEYS = _SIMPLE | _INFINITE
_SIMPLE_VALUES = _SIMPLE | _FLOATS | st.none() | st.sampled_from([Decimal("NaN"), Decimal("sNaN"), {"!tuple": [1]}])
_PICKLED = _SIMPLE_VALUES | st.sampled_from([bytearray(b""), bytearray(b"\xff"), time(12, 30, 1, 5)])


# Composite, because hypothesis shows what others are made of, at great length.
@st.composite
def _simple_key(draw: st.DrawFn) -> Any:
    return draw(_SIMPLE_KEYS)


@st.composite
def _simple_value(draw: st.DrawFn) -> Any:
    return draw(_SIMPLE_VALUES)


@st.composite
def _pickled_value(draw: st.DrawFn) -> Any:
    return draw(_PICKLED)


def _msgpack_keys() -> Strategy:
    return st.recursive(
        _simple_key(),
        lambda inner: st.tuples(inner) | st.tuples(inner, inner) | st.frozensets(inner, max_size=2),
        max_leaves=4,
    )


def _msgpack_values(simple: Callable[[], Strategy] = _simple_value) -> Strategy:
    return st.recursive(
        simple(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.sets(_msgpack_keys(), max_size=3)
            | st.dictionaries(_WORDS, inner, max_size=3)
            | st.dictionaries(_msgpack_keys(), inner, max_size=2)
        ),
        max_leaves=6,
    ).filter(_is_not_none)


def _json_values() -> Strategy:
    return st.recursive(
        st.none() | st.booleans() | _SMALL_INTS | _FINITE | _WORDS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
        max_leaves=6,
    ).filter(_is_not_none)


def _is_not_none(value: Any) -> bool:
    return value is not None


_SINGLE = st.sampled_from([0.0, -0.0, 0.5, float("inf")]) | st.floats(width=32, allow_nan=False)
_KEYS: Mapping[str, Callable[[], Strategy]] = {
    "msgpack": _msgpack_keys,
    "json": lambda: st.booleans() | _SMALL_INTS | _FINITE | _WORDS,
    "str": lambda: _WORDS | _meeting(),
    "bytes": lambda: _BYTES | _meeting().map(str.encode),
    "int": lambda: _SMALL_INTS,
    "int32": lambda: st.sampled_from([0, 2**31 - 1, -(2**31)]) | st.integers(-(2**31), 2**31 - 1),
    "int16": lambda: st.integers(-(2**15), 2**15 - 1),
    "float": lambda: _INFINITE,
    "float32": lambda: _SINGLE,
    "bool": st.booleans,
    "uuid": st.uuids,
}
_VALUES: Mapping[str, Callable[[], Strategy]] = {
    **_KEYS,
    "msgpack": _msgpack_values,
    "json": _json_values,
    "pickle": partial(_msgpack_values, _pickled_value),
    "float": lambda: _FLOATS,
    "float32": lambda: _SINGLE | st.just(float("nan")),
}


def _of(known: Mapping[str, Callable[[], Strategy]], serde: str) -> Callable[[], Strategy]:
    if serde not in known:
        raise ConfigError(f"serde {serde!r}: values are known of {', '.join(known)}")
    return known[serde]
