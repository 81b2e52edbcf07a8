"""A record that fails in a function of a verb is skipped alone: what came before it, and comes after it, counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Application, skip, versioned_store
from penstock.plugins.dsl import StreamsBuilder, hopping, sessions, sliding, tumbling, within
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples
from ..interleaving import folded

BAD = "bad"
Record = tuple[str, str, int]
"""Key, value and timestamp (ms)."""


def joined(one: str, other: str | None) -> str:
    if BAD in (one, other):
        raise ValueError(one)
    return f"{one}|{other}"


def added(aggregate: str, value: str) -> str:
    if value == BAD:
        raise ValueError(value)
    return aggregate + value


def mistyped(aggregate: str, value: str) -> Any:
    """Return an aggregate that its store refuses."""
    return 0 if value == BAD else aggregate + value


def by_windows(windows: Any, *merger: Any, fold: Callable[[str, str], Any] = added) -> Callable[[StreamsBuilder], Any]:
    def write(builder: StreamsBuilder) -> Any:
        grouped = builder.stream("in").group_by_key().windowed_by(windows)
        table = grouped.aggregate(str, fold, *merger, "n", value_serde="str")
        return table.to_stream(lambda window, _: f"{window.key} {window.start} {window.end}", with_key=True)

    return write


AGGREGATIONS: dict[str, Callable[[StreamsBuilder], Any]] = {
    "aggregate": lambda builder: builder.stream("in").group_by_key().aggregate(str, added, "n").to_stream(),
    "reduce": lambda builder: builder.stream("in").group_by_key().reduce(added, "n").to_stream(),
    "tumbling": by_windows(tumbling("5ms", grace="1d")),
    "hopping": by_windows(hopping("6ms", every="3ms", grace="1d")),
    "sliding": by_windows(sliding("4ms", grace="1d")),
    "sessions": by_windows(sessions("3ms", grace="1d"), lambda one, other: one + other),
    "mistyped": by_windows(sessions("3ms", grace="1d"), lambda one, other: one + other, fold=mistyped),
}


def sent(write: Callable[[StreamsBuilder], Any], records: list[Record], **options: Any) -> tuple[list[Any], int]:
    """Return what comes out, and how many records were skipped."""
    builder = StreamsBuilder()
    write(builder).to("out", value_serde="str")
    application = Application("app", builder, key_serde="str", value_serde="str", processing_handler=skip)
    with TopologyTestDriver(application, **options) as driver:
        for key, value, timestamp in records:
            driver.pipe("in", key, value, timestamp=timestamp)
        skipped = sum(each.dropped["skipped"] for each in driver.metrics().values())
        return [tuple(each[:3]) for each in driver.read_all("out")], skipped


RECORDS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y", BAD]), st.integers(10, 30)), max_size=14)
OPTIONS = st.fixed_dictionaries(
    {
        "reopen_tasks": st.booleans(),
        "statestore_cache_max_bytes": st.sampled_from([0, 100_000]),
        "dsl_store_format": st.sampled_from(["default", "headers"]),
    }
)


@pytest.mark.parametrize("write", AGGREGATIONS.values(), ids=AGGREGATIONS.keys())
@settings(max_examples=examples(20), deadline=None)
@given(RECORDS, OPTIONS)
@example([("a", "x", 10), ("a", BAD, 11)], {})
def test_an_aggregate_is_that_of_the_other_records(
    write: Callable[[StreamsBuilder], Any], records: list[Record], options: dict[str, Any]
) -> None:
    if write is AGGREGATIONS["reduce"]:  # its first value is an aggregate without a call
        records = [("a", "x", 10), ("b", "x", 10), *records]
    good = [each for each in records if each[1] != BAD]
    found, skipped = sent(write, records, **options)
    assert folded(found) == folded(sent(write, good, **options)[0])
    assert skipped == len(records) - len(good)


def with_a_stream(kind: str) -> Callable[[StreamsBuilder], Any]:
    def write(builder: StreamsBuilder) -> Any:
        window = within("3ms", grace="2ms")
        return getattr(builder.stream("in"), kind)(builder.stream("right"), joined, window, name="j")

    return write


def with_a_table(builder: StreamsBuilder) -> Any:
    table = builder.table("right", versioned_store("t", history_retention="1h"))
    return builder.stream("in").left_join(table, joined, grace="4ms", name="j")


JOINS = {"left": with_a_stream("left_join"), "outer": with_a_stream("outer_join"), "table": with_a_table}


@pytest.mark.parametrize("write", JOINS.values(), ids=JOINS.keys())
@settings(max_examples=examples(20), deadline=None)
@given(RECORDS, OPTIONS)
@example([("a", "x", 10), ("a", BAD, 11), ("a", "y", 12)], {})
def test_a_record_that_waited_fails_alone(
    write: Callable[[StreamsBuilder], Any], records: list[Record], options: dict[str, Any]
) -> None:
    """Another record lets it go, and is not the one that fails."""
    records = [(f"{key}{number}", value, at) for number, (key, value, at) in enumerate(records)]
    found, skipped = sent(write, [*records, ("z", "x", 100), ("z", "x", 200)], **options)
    expected = [(key, f"{value}|None", at) for key, value, at in records if value != BAD]
    assert sorted(each for each in found if each[0] != "z") == sorted(expected)
    assert skipped == len(records) - len(expected)


def test_a_record_whose_match_failed_still_waits() -> None:
    builder = StreamsBuilder()
    with_a_stream("left_join")(builder).to("out", value_serde="str")
    application = Application("app", builder, key_serde="str", value_serde="str", processing_handler=skip)
    with TopologyTestDriver(application) as driver:
        driver.pipe("in", "a", "x", timestamp=10)
        driver.pipe("right", "a", BAD, timestamp=11)
        driver.pipe("in", "z", "x", timestamp=100)
        assert driver.read_values("out") == ["x|None"]
