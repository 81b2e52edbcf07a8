"""Hypothesis strategies of records, and of streams with the orders of time that make stream programs fail."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock import Duration, Record, duration_ms

_KEYS = st.sampled_from(["a", "b", "c"])


def records(
    keys: st.SearchStrategy[Any] = _KEYS,
    values: st.SearchStrategy[Any] | None = None,
    timestamps: st.SearchStrategy[int] | None = None,
) -> st.SearchStrategy[Record]:
    """Return a strategy of single records; by default keys are of three, values small numbers, times of a minute."""
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
    late: Duration = "0s",
    tombstones: bool = False,
    min_size: int = 0,
    max_size: int = 30,
) -> list[Record]:
    """Return a strategy of the records of one topic, in the order of their offsets.

    Stream time moves on by 0 ms, so that records have equal timestamps, up to `step` from one record to the next. With
    `late`, records come out of order: up to so far behind stream time. Choose it larger than a grace period or a
    retention, so that some are too late for it, too. With `tombstones`, some values are None. Examples shrink to few
    records in order.
    """
    given = st.integers(0, 9) if values is None else values
    if tombstones:
        given = given | st.none()
    step_ms, late_ms = duration_ms(step, "streams: step"), duration_ms(late, "streams: late")
    moves = st.tuples(keys, given, st.integers(0, step_ms) | st.just(0), st.integers(0, late_ms) | st.just(0))
    found: list[Record] = []
    stream_time = 0
    for key, value, onward, behind in draw(st.lists(moves, min_size=min_size, max_size=max_size)):
        stream_time += onward
        found.append(Record(key, value, max(0, stream_time - behind)))
    return found
