"""A record that fails in a function of a verb is skipped alone: what came before it, and comes after it, counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Application, skip
from penstock.plugins.dsl import StreamsBuilder, hopping, sessions, sliding, tumbling
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples
from ..interleaving import folded

BAD = "bad"
Record = tuple[str, str, int]
"""Key, value and timestamp (ms)."""


def added(aggregate: str, value: str) -> str:
    if value == BAD:
        raise ValueError(value)
    return aggregate + value


def by_windows(windows: Any, *merger: Any) -> Callable[[StreamsBuilder], Any]:
    def write(builder: StreamsBuilder) -> Any:
        grouped = builder.stream("in").group_by_key().windowed_by(windows)
        table = grouped.aggregate(str, added, *merger, "n", value_serde="str")
        return table.to_stream(lambda window, _: f"{window.key} {window.start} {window.end}", with_key=True)

    return write


AGGREGATIONS: dict[str, Callable[[StreamsBuilder], Any]] = {
    "aggregate": lambda builder: builder.stream("in").group_by_key().aggregate(str, added, "n").to_stream(),
    "reduce": lambda builder: builder.stream("in").group_by_key().reduce(added, "n").to_stream(),
    "tumbling": by_windows(tumbling("5ms", grace="1d")),
    "hopping": by_windows(hopping("6ms", every="3ms", grace="1d")),
    "sliding": by_windows(sliding("4ms", grace="1d")),
    "sessions": by_windows(sessions("3ms", grace="1d"), lambda one, other: one + other),
}


def sent(write: Callable[[StreamsBuilder], Any], records: list[Record], **options: Any) -> tuple[list[Any], int]:
    """Return what comes out, and how many records were dropped."""
    builder = StreamsBuilder()
    write(builder).to("out", value_serde="str")
    application = Application("app", builder, key_serde="str", value_serde="str", processing_handler=skip)
    with TopologyTestDriver(application, **options) as driver:
        for key, value, timestamp in records:
            driver.pipe("in", key, value, timestamp=timestamp)
        return [tuple(each[:3]) for each in driver.read_all("out")], driver.dropped_records()


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
    found, dropped = sent(write, records, **options)
    assert folded(found) == folded(sent(write, good, **options)[0])
    assert dropped == len(records) - len(good)
