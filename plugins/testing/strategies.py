"""Hypothesis strategies of records, of streams with the orders of time that make programs fail, and of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from penstock import ConfigError, Duration, Record, duration_ms
from penstock.support.packages import needed

with needed("penstock.testing.strategies", "testing"):
    from hypothesis import strategies as st

_FIVE_KEYS = st.sampled_from(["a", "b", "d", "f", "f1"])
"""By the default partitioner at least two are in each of 2 partitions, and in each of 3 is at least one. The last two
are in the same, and become the same text where a program joins a key to a number."""
_ODD_KEYS = ("", "A", "f:1", "f 1", "é")
"""Keys that some programs take for others: for none, for one in small letters, for a key with a part behind it."""
_ODD_VALUES = (-1, 2**53 + 1)
"""Values that few programs expect; the second one is no float."""
_HEADERS = st.sampled_from(
    [(("h", b"1"),), (("h", b"1"), ("h", b"")), (("h", None),), (("trace", b"\x00\xff"), ("h", b"2"))]
)
_ROUND_MS = (1_000, 10_000, 60_000)
"""Lengths of time that programs often have: so many ms."""
_BESIDE = (0, 0, -1, 1)
"""How many ms a record is after an edge of `around`."""
_OF_MANY = 16
"""One record of so many is of each rare kind, and one continues in each rare way."""


def records(
    keys: st.SearchStrategy[Any] = _FIVE_KEYS,
    values: st.SearchStrategy[Any] | None = None,
    timestamps: st.SearchStrategy[int] | None = None,
) -> st.SearchStrategy[Record]:
    """Return a strategy of single records; by default keys are of five, values small numbers, times of a minute."""
    return st.builds(
        Record,
        keys,
        st.integers(0, 9) if values is None else values,
        st.integers(0, 60_000) if timestamps is None else timestamps,
    )


@st.composite
def streams(
    draw: st.DrawFn,
    keys: st.SearchStrategy[Any] = _FIVE_KEYS,
    values: st.SearchStrategy[Any] | None = None,
    *,
    step: Duration = "1s",
    jump: Duration = "1m",
    late: Duration = "0s",
    around: Sequence[Duration] = (),
    tombstones: bool = True,
    null_keys: bool = True,
    headers: bool = True,
    min_size: int = 0,
    max_size: int = 30,
) -> list[Record]:
    """Return a strategy of the records of one topic, in the order of their offsets.

    Stream time moves on by 0 ms, so that records have equal timestamps, up to `step` from one record to the next; now
    and then by up to `jump`, so that windows end and grace passes, or to 1 ms before, at or after a whole second, ten
    seconds or minute. With `late`, records come out of order: up to so far behind stream time. Choose it larger than a
    grace period or a retention, so that some are too late for it, too. `around`: lengths of time of the program, such
    as a window's size, a gap, a grace: some records are 1 ms before, at or after a multiple of one, or another length
    after that, and so far ahead of or behind an earlier record. Some values are None (tombstones), some keys are None,
    and some records have headers, also without a value, unless that is switched off. Where the caller chooses no
    `keys`, some are empty, in capitals, or have a blank or a colon; without `values` some are negative, or too large
    for a float. Examples shrink to few records in order.
    """
    has_odd_keys, has_odd_values = keys is _FIVE_KEYS, values is None
    given = st.integers(0, 9) if values is None else values
    step_ms, late_ms, jump_ms = (
        duration_ms(length, f"streams: {name}") for length, name in ((step, "step"), (late, "late"), (jump, "jump"))
    )
    lengths = [duration_ms(each, "streams: around") for each in around]
    lateness = st.integers(0, late_ms) | st.just(0) if late_ms else st.just(0)
    moves = st.tuples(keys, given, st.integers(0, step_ms), lateness, st.integers(0, _OF_MANY**2 - 1))
    # Without this, lists are short.
    least = draw(st.integers(min_size, max(min_size, max_size * 3 // 4)))
    found: list[Record] = []
    stream_time = 0
    for key, value, onward, behind, kinds in draw(st.lists(moves, min_size=least, max_size=max_size)):
        kind, how = divmod(kinds, _OF_MANY)
        timestamp = stream_time + onward
        if how in (1, 2):
            timestamp = stream_time
        elif how in (3, 10) and jump_ms:
            timestamp = stream_time + draw(st.integers(0, jump_ms))
        elif how in (4, 5):
            size = draw(st.sampled_from([each for each in _ROUND_MS if each <= max(jump_ms, 1_000)]))
            timestamp = _edge(stream_time, size) + draw(st.integers(-1, 1))
        elif lengths and how in (6, 7, 8, 9, 11):
            size, by, behind = draw(st.sampled_from(lengths)), draw(st.sampled_from(_BESIDE)), 0
            if how in (6, 7, 11) or not found:
                timestamp = _edge(stream_time, size) + draw(st.sampled_from([0, *lengths])) + by
            else:
                since = draw(st.sampled_from(found)).timestamp
                timestamp = since + (size if how == 8 else -size) + by
        if tombstones and kind in (1, 2):
            value = None
        if null_keys and kind == 3:
            key = None
        if has_odd_keys and kind == 6:
            key = draw(st.sampled_from(_ODD_KEYS))
        if has_odd_values and kind == 7 and value is not None:
            value = draw(st.sampled_from(_ODD_VALUES))
        of_record = draw(_HEADERS) if headers and kind in (4, 5) else ()
        timestamp = max(0, timestamp - behind, stream_time - late_ms)
        stream_time = max(stream_time, timestamp)
        found.append(Record(key, value, timestamp, of_record))
    return found


def _edge(stream_time: int, size: int) -> int:
    """Return the next multiple of `size` from stream time on."""
    return -(-stream_time // size) * size


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
