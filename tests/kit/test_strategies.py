"""What streams of `penstock.testing.strategies` have in them: times, keys and rare records."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from statistics import median

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from penstock import Record, default_partitioner
from penstock.plugins.testing.strategies import records, streams

Streams = list[list[Record]]


def drawn(strategy: st.SearchStrategy[list[Record]], examples: int = 150) -> Streams:
    found: Streams = []

    @seed(1)
    @settings(max_examples=examples, database=None, deadline=None)
    @given(strategy)
    def draw(stream: list[Record]) -> None:
        found.append(stream)

    draw()
    return found


def share(found: Streams, has: Callable[[Record], bool]) -> float:
    every = [record for stream in found for record in stream]
    return sum(map(has, every)) / len(every)


@given(sent=streams(step="2s", late="3s", jump="9s", max_size=50))
def test_streams_are_as_late_as_asked(sent: list[Record]) -> None:
    stream_time = 0
    for record in sent:
        assert record.timestamp >= stream_time - 3_000
        stream_time = max(stream_time, record.timestamp)
    assert all(after.timestamp - before.timestamp <= 13_001 for before, after in pairwise(sent))


@given(sent=streams(tombstones=False, null_keys=False, headers=False))
def test_rare_records_can_be_switched_off(sent: list[Record]) -> None:
    assert all(record.key is not None and record.value is not None and not record.headers for record in sent)
    assert sent == sorted(sent, key=lambda record: record.timestamp)


@given(one=records())
def test_single_records_have_defaults(one: Record) -> None:
    assert one.key in {"a", "b", "d", "f", "f1"} and 0 <= one.timestamp <= 60_000


def test_streams_are_long_enough_and_their_keys_spread() -> None:
    found = drawn(streams())
    assert median(map(len, found)) >= 12
    # How far depends on the modules of this process, too: hypothesis draws numbers that are in their source.
    assert median(max((record.timestamp for record in each), default=0) for each in found) >= 5_000
    for count in (2, 3):
        spread = [{default_partitioner(each.key.encode(), count) for each in one if each.key} for one in found]
        assert sum(len(each) == count for each in spread) >= 0.6 * len(found)
    assert 0.05 <= share(found, lambda record: record.value is None) <= 0.25
    assert 0.02 <= share(found, lambda record: record.key is None) <= 0.15
    assert 0.05 <= share(found, lambda record: bool(record.headers)) <= 0.25


def test_edges_are_met_exactly() -> None:
    found = drawn(streams(around=["7s"], late="20s"))
    for by in (-1, 0, 1):
        assert share(found, lambda record, by=by: (record.timestamp - by) % 7_000 == 0) >= 0.01  # type: ignore[misc]
        apart = [
            after.timestamp - before.timestamp == 7_000 + by
            for one in found
            for number, after in enumerate(one)
            for before in one[:number]
        ]
        assert any(apart)
    found = drawn(streams())
    assert share(found, lambda record: record.timestamp % 10_000 == 0 and record.timestamp > 0) >= 0.01


def test_stream_time_is_exactly_where_a_window_is_over() -> None:
    """Windows of 10 s with a grace of 5 s: a late record shows there what a program makes of the last ms."""
    found = drawn(streams(around=["10s", "5s"], late="20s"), examples=200)
    over = [any(time % 10_000 == 5_000 for time in accumulate((each.timestamp for each in one), max)) for one in found]
    assert sum(over) >= len(found) // 4
