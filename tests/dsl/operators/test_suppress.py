"""Suppressed tables against a naive buffer: a list that is sorted at each update."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Application, ProcessingError
from penstock.plugins.dsl import StreamsBuilder, tumbling
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples

RECORDS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ba", "long" * 100]), st.none() | st.integers(0, 9), st.integers(0, 60)),
    max_size=25,
)
Rows = list[tuple[str, Any, int]]


def let_go(records: Rows, *, reopen: bool = False, **options: Any) -> Rows:
    """Return what leaves a suppression of a table that is read from a topic."""
    builder = StreamsBuilder()
    table = builder.table("in", "t", value_serde="json")
    table.suppress(name="wait", **options).to_stream().to("out", value_serde="json")
    with TopologyTestDriver(Application("app", builder), reopen_tasks=reopen, statestore_cache_max_bytes=0) as driver:
        for key, value, timestamp in records:
            driver.pipe("in", key, value, timestamp=timestamp)
        return [(each.key, each.value, each.timestamp) for each in driver.read_all("out")]


def naive(records: Rows, wait: int, most: int | None) -> Rows:
    """Return what leaves a list of [time, key, value, timestamp]."""
    waiting: list[list[Any]] = []
    found: Rows = []
    for number, (key, value, timestamp) in enumerate(records):
        row = next((each for each in waiting if each[1] == key), None)
        if row is None:
            waiting.append([timestamp, key, value, timestamp])
        else:
            row[2:] = value, timestamp
        waiting.sort(key=lambda each: each[:2])
        now = max(at for _, _, at in records[: number + 1])
        while waiting and (waiting[0][0] <= now - wait or (most is not None and len(waiting) > most)):
            _, *row = waiting.pop(0)
            found.append((row[0], row[1], row[2]))
    return found


@settings(max_examples=examples(40), deadline=None)
@given(RECORDS, st.integers(0, 40), st.none() | st.integers(1, 3), st.booleans())
def test_a_time_limit_lets_the_last_update_go(records: Rows, wait: int, most: int | None, reopen: bool) -> None:
    made = let_go(records, until=f"{wait}ms", max_records=most, reopen=reopen)
    assert made == naive(records, wait, most)


def test_a_full_buffer_lets_the_oldest_go_or_stops() -> None:
    records: Rows = [("a", 1, 0), ("b", 2, 5), ("c", 3, 9)]
    assert let_go(records, until="1h", max_records=2) == [("a", 1, 0)]
    # An update takes 29 bytes, its key and its value; so much fits for one and a half.
    assert let_go(records, until="1h", max_bytes=45) == [("a", 1, 0), ("b", 2, 5)]
    with pytest.raises(ProcessingError, match=r"node 'wait': its buffer has 3 records .* may have 2 records"):
        let_go(records, until="1h", max_records=2, when_full="stop")


def test_a_key_that_waits_has_its_value_from_before_for_joins() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", "t")
    waiting = table.suppress("10ms", name="wait")
    builder.stream("asks").join(waiting, lambda ask, value: f"{ask}{value}").to("out")
    with TopologyTestDriver(Application("app", builder)) as driver:
        driver.pipe("in", "a", "1", timestamp=0)
        driver.pipe("asks", "a", "?", timestamp=0)
        driver.pipe("in", "a", "2", timestamp=5)
        driver.pipe("in", "b", "x", timestamp=10)  # lets a=2 go
        driver.pipe("asks", "a", "?", timestamp=10)
        driver.pipe("in", "a", "3", timestamp=11)
        driver.pipe("asks", "a", "?", timestamp=11)
        assert [each.value for each in driver.read_all("out")] == ["?2", "?2"]


def test_an_update_in_the_cache_above_is_not_seen_before_it_is_let_go() -> None:
    """Without a look at what was sent, a join first found the new value, and then the one before."""
    builder = StreamsBuilder()
    waiting = builder.table("in", "t").suppress("10ms", name="wait")
    builder.stream("asks").join(waiting, lambda ask, value: f"{ask}{value}").to("out")
    with TopologyTestDriver(Application("app", builder), commit_every=10) as driver:
        driver.pipe_many("in", [("a", "1", 0), ("b", "x", 10)])
        driver.pipe_many({"in": [("a", "2", 11)], "asks": [("a", "?", 12)]})
        driver.pipe("asks", "a", "?", timestamp=13)
        assert driver.read_values("out") == ["?1", "?1"]


def test_headers_of_the_last_update_leave_with_it() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in").group_by_key().windowed_by(tumbling("10ms", grace="0s")).count("n")
    stream = counts.suppress("window_closes", name="wait").to_stream(lambda key, n: key.key, with_key=True)
    stream.to("out", key_serde="str", value_serde="int")
    with TopologyTestDriver(Application("app", builder), reopen_tasks=True) as driver:
        driver.pipe("in", "a", "x", timestamp=1, headers=(("h", b"1"),))
        driver.pipe("in", "a", "x", timestamp=2, headers=(("h", b"2"), ("none", None)))
        driver.pipe("in", "a", "x", timestamp=12)
        (record,) = driver.read_all("out")
        assert (record.value, record.timestamp, record.headers) == (2, 2, (("h", b"2"), ("none", None)))


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("by_window", [False, True])
def test_updates_leave_while_nothing_arrives(by_window: bool, reopen: bool) -> None:
    """After 20 s without an update, time goes on with the wall clock; what is decided outlasts the task."""
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by_key()
    if by_window:
        windows = grouped.windowed_by(tumbling("10s", grace="0s")).count("n")
        stream = windows.suppress("window_closes", idle="20s", name="wait").to_stream(
            lambda key, n: key.key, with_key=True
        )
    else:
        stream = grouped.count("n").suppress("7s", idle="20s", name="wait").to_stream()
    stream.to("out", key_serde="str", value_serde="int")
    with TopologyTestDriver(Application("app", builder), reopen_tasks=reopen) as driver:

        def left() -> list[tuple[str, int]]:
            return [(each.key, each.value) for each in driver.read_all("out")]

        driver.pipe("in", "a", "x", timestamp=3_000)
        for _ in range(3):
            driver.advance_wall_clock("5s")
        driver.pipe("in", "a", "x", timestamp=4_000)  # not idle: it begins again
        for _ in range(3):
            driver.advance_wall_clock("5s")
        assert left() == []
        driver.advance_wall_clock("5s")
        assert left() == [("a", 2)]
        driver.pipe("in", "b", "x", timestamp=5_000)  # behind the time that has passed since: a window is closed
        assert left() == ([] if by_window else [("b", 1)])
        assert driver.dropped_records() == by_window
        driver.pipe("in", "b", "x", timestamp=23_500)
        driver.advance_wall_clock("1h")
        assert left() == [("b", 1 if by_window else 2)]
