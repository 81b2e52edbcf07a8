"""Counts, reductions and aggregates of each key, against a dict; and the errors of newcomers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Application, TopologyError, Windowed, key_value_store, versioned_store
from penstock.plugins.dsl import (
    KGroupedStream,
    KStream,
    KTable,
    StreamsBuilder,
    collect_of,
    count_of,
    first_of,
    last_of,
    max_of,
    mean_of,
    min_of,
    sessions,
    sum_of,
    tumbling,
)
from penstock.plugins.testing import TopologyTestDriver

Write = Callable[[KGroupedStream[Any, Any]], KTable[Any, Any]]

RECORDS = st.lists(
    st.tuples(st.sampled_from(["a", "long" * 100, None]), st.none() | st.integers(-5, 5), st.integers(0, 20))
)


def updates(write: Write, records: list[tuple[Any, Any, int]], **options: Any) -> list[tuple[Any, Any, int]]:
    """Return what comes out of `write(stream grouped by key)`."""
    builder = StreamsBuilder()
    write(builder.stream("in", value_serde="json").group_by_key()).to_stream().to("out", value_serde="json")
    with TopologyTestDriver(Application("app", builder), **{"statestore_cache_max_bytes": 0, **options}) as driver:
        for key, value, timestamp in records:
            driver.pipe("in", key, value, timestamp=timestamp)
        return [(each.key, each.value, each.timestamp) for each in driver.read_all("out")]


def folded(records: list[tuple[Any, Any, int]], add: Callable[[Any, Any], Any]) -> list[tuple[Any, Any, int]]:
    """Return the updates that a dict of (aggregate, timestamp) makes; the first aggregate is of None."""
    rows: dict[Any, tuple[Any, int]] = {}
    found = []
    for key, value, timestamp in records:
        if key is None or value is None:
            continue
        old, before = rows.pop(key, (None, timestamp))
        aggregate, at = add(old, value), max(timestamp, before)
        if aggregate is not None:
            rows[key] = aggregate, at
        found.append((key, aggregate, at))
    return found


@settings(max_examples=15, deadline=None)
@given(RECORDS, st.booleans(), st.sampled_from(["default", "headers"]))
def test_aggregations_are_those_of_a_dict(records: list[Any], reopen: bool, form: str) -> None:
    options = {"reopen_tasks": reopen, "dsl_store_format": form}
    assert updates(lambda each: each.count("n"), records, **options) == folded(records, lambda a, v: (a or 0) + 1)

    def largest(aggregate: Any, value: Any) -> Any:
        return value if aggregate is None else max(aggregate, value)

    assert updates(lambda each: each.reduce(max, "n"), records, **options) == folded(records, largest)

    def add(aggregate: list[int], value: int) -> list[int] | None:
        return None if value == 5 else [*aggregate, value]

    expected = folded(records, lambda a, v: add(a or [], v))
    assert updates(lambda each: each.aggregate(list, add, "n"), records, **options) == expected


def test_an_aggregator_gets_the_key_first_if_asked() -> None:
    def add(key: str, aggregate: str, value: int) -> str:
        return f"{aggregate}{key}{value}"

    made = updates(lambda each: each.aggregate(str, add, "n", with_key=True), [("a", 1, 0), ("a", 2, 0)])
    assert [value for _, value, _ in made] == ["a1", "a1a2"]


def test_a_declared_store_is_used_and_a_versioned_one_drops_what_is_older_than_its_history() -> None:
    records = [("a", 1, 100), ("b", 1, 10), ("a", 1, 101)]
    assert updates(lambda each: each.count(key_value_store("mine")), records)[1] == ("b", 1, 10)
    versioned = updates(lambda each: each.count(versioned_store("mine", history_retention="20ms")), records)
    assert versioned == [("a", 1, 100), ("a", 2, 101)]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda each: each.aggregate([], lambda a, v: a), r"initializer is a function .* found \[\]; write list"),
        (lambda each: each.aggregate(0, lambda a, v: a), r"write lambda: 0"),
        (
            lambda each: each.aggregate(int, lambda v: v),
            r"aggregate: its aggregator is called with \(aggregate, value\)",
        ),
        (lambda each: each.reduce(lambda v: v), r"reduce: its reducer is called with \(aggregate, value\)"),
        (lambda each: each.agg("n"), r'agg: say what to aggregate; write agg\("NAME", total=sum_of'),
        (lambda each: each.agg("n", total=sum), r"agg: total is .* expected an aggregate; write total=sum_of"),
        (lambda each: each.agg("n", total=sum_of(), retention="1h"), r"agg: retention is .* of the store are .*cached"),
        (lambda each: each.agg("n", cached=False), r"agg: say what to aggregate"),
        (lambda each: each.agg("n", total=sum_of(divmod)), r"sum_of: its field or function is called with"),  # type: ignore[arg-type]
        (lambda each: each.count(3), r"count: expected the name of a store or a declared one, found 3"),
    ],
)
def test_mistakes(write: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        write(StreamsBuilder().stream("in").group_by_key())


def test_several_aggregates_at_once() -> None:
    def write(grouped: KGroupedStream[Any, Any]) -> KTable[Any, Any]:
        return grouped.agg(
            "all",
            total=sum_of(),
            n=count_of(),
            low=min_of(),
            high=max_of(),
            mean=mean_of(),
            first=first_of(),
            last=last_of(),
            odd=collect_of(lambda value: value if value % 2 else None, limit=2),
            none=mean_of(lambda value: None),
        )

    found = updates(write, [("a", value, 0) for value in (3, 1, 5, 4)])
    assert found[-1][1] == {
        "total": 13, "n": 4, "low": 1, "high": 5, "mean": 3.25, "first": 3, "last": 4, "odd": [1, 5], "none": None
    }  # fmt: skip


@pytest.mark.parametrize("cached", [True, False])
def test_what_is_no_aggregate_is_an_option_of_the_store(cached: bool) -> None:
    """A store without a cache sends each update, with one the last of each commit; a window's is looked up for long."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", value_serde="int").group_by_key()
    plain = grouped.agg("plain", total=sum_of(), cached=cached)
    windowed = grouped.windowed_by(tumbling("1m", grace="0s")).agg("w", cached=cached, total=sum_of(), retention="1h")
    table = builder.table("rows", value_serde="int").group_by(lambda row: "all").agg("t", cached=cached, n=count_of())
    plain.to_stream().to("plain", value_serde="json")
    windowed.to_stream().to("windowed", value_serde="json")
    table.to_stream().to("table", value_serde="json")
    with TopologyTestDriver(builder, commit_every=9) as driver:
        driver.pipe_many({"in": [("a", 1, 0), ("a", 2, 0)], "rows": [("a", 1, 0), ("b", 2, 0)]})
        assert driver.read_values("plain") == [{"total": 1}, {"total": 3}][cached:]
        assert driver.read_values("windowed") == [{"total": 1}, {"total": 3}][cached:]
        assert driver.read_values("table") == [{"n": 1}, {"n": 2}][cached:]


def test_several_aggregates_of_sessions_are_merged() -> None:
    builder = StreamsBuilder()
    visits = builder.stream("in", value_serde="json").group_by_key().windowed_by(sessions(gap="5s", grace="1m"))
    table = visits.agg("visits", pages=collect_of("page"), seconds=mean_of("seconds"))
    table.to_stream(lambda key, value: key.key, with_key=True).to("out", key_serde="str", value_serde="json")
    with TopologyTestDriver(Application("app", builder)) as driver:
        for page, seconds, timestamp in (("a", 1, 0), ("c", 3, 8_000), ("b", 5, 4_000)):
            driver.pipe("in", "anna", {"page": page, "seconds": seconds}, timestamp=timestamp)
        assert driver.read_all("out")[-1].value == {"pages": ["a", "c", "b"], "seconds": 3.0}


def typed(stream: KStream[str, int]) -> None:
    """What mypy follows through chains; this is checked, and not run."""
    grouped = stream.group_by_key()
    assert_type(grouped.count("a"), KTable[str, int])
    assert_type(grouped.reduce(max, "b"), KTable[str, int])
    assert_type(grouped.aggregate(lambda: 0.5, lambda total, value: total + value, "c"), KTable[str, float])
    assert_type(grouped.agg("d", total=sum_of()), KTable[str, dict[str, Any]])
    windowed = grouped.windowed_by(sessions(gap="1m", grace="0s"))
    assert_type(windowed.count("e"), KTable[Windowed, int])
    assert_type(windowed.count("f").suppress("window_closes"), KTable[Windowed, int])
    assert_type(stream.group_by(lambda value: value % 2).count("g"), KTable[int, int])
