"""Hypothesis strategies of records, and of streams with the orders of time that make stream programs fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock import Duration, Record, duration_ms
from penstock.support.packages import needed

with needed("penstock.testing.strategies", "testing"):
    from hypothesis import strategies as st

_KEYS = st.sampled_from(["a", "b", "d", "f", "f1"])
"""By the default partitioner at least two are in each of 2 partitions, and in each of 3 is at least one. The last two
are in the same, and become the same text where a program joins a key to a number."""
_ODD_KEYS = ("", "A", "f:1", "f 1", "é")
"""Keys that some programs take for others: for none, for one in small letters, for a key with a part behind it."""
_ODD_VALUES = (-1, 2**53 + 1)
"""The second one is no float."""
_HEADERS = st.sampled_from(
    [(("h", b"1"),), (("h", b"1"), ("h", b"")), (("h", None),), (("trace", b"\x00\xff"), ("h", b"2"))]
)
_ROUND_MS = (1_000, 10_000, 60_000)
"""Lengths of time that programs often have: so many ms."""
_BESIDE = (0, 0, -1, 1)
"""How many ms a record is after an edge of `around`."""
_OF_MANY = 16
"""One record of so many is of each rare kind, and one goes on in each rare way."""


def records(
    keys: st.SearchStrategy[Any] = _KEYS,
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
    keys: st.SearchStrategy[Any] = _KEYS,
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
    has_odd_keys, has_odd_values = keys is _KEYS, values is None
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
