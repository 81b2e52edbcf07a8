"""The rows of any table, grouped by another key: each counts once in its group, as it was sent last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Application, versioned_store
from penstock.plugins.dsl import KGroupedStream, KTable, StreamsBuilder, hopping, sessions, sliding, tumbling
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples
from ..interleaving import folded

Table = KTable[Any, Any]


def joined(aggregate: str, value: str) -> str:
    return aggregate + value


def by_windows(windows: Any) -> Callable[[KGroupedStream[Any, Any]], Table]:
    return lambda stream: stream.windowed_by(windows).count("n")


def versioned(stream: KGroupedStream[Any, Any]) -> Table:
    return stream.count(versioned_store("n", history_retention="1d", value_serde="int"))


def cogrouped(windows: Any, **merger: Any) -> Callable[[KGroupedStream[Any, Any]], Table]:
    return lambda stream: stream.cogroup(joined).windowed_by(windows).aggregate(str, "n", value_serde="str", **merger)


def with_suppressed(stream: KGroupedStream[Any, Any], kind: str) -> Table:
    """Return counts joined with what is let go of other ones."""
    counts = stream.count("n")
    waiting = stream.reduce(joined, "waiting", value_serde="str").suppress("2ms", name="wait")
    made: Table = getattr(counts, kind)(waiting, lambda one, other: [one, other])
    return made


TABLES: dict[str, Callable[[KGroupedStream[Any, Any]], Table]] = {
    "count": lambda stream: stream.count("n"),
    "reduce": lambda stream: stream.reduce(joined, "n", value_serde="str"),
    "aggregate": lambda stream: stream.aggregate(lambda: "", joined, "n", value_serde="str"),
    "versioned": versioned,
    "cogroup": lambda stream: stream.cogroup(joined).aggregate(str, "n", value_serde="str"),
    "tumbling": by_windows(tumbling("4ms", grace="1d")),
    "hopping": by_windows(hopping("4ms", every="2ms", grace="1d")),
    "sliding": by_windows(sliding("1ms", grace="1d")),
    "sliding, wide": by_windows(sliding("5ms", grace="1d")),
    "sessions": by_windows(sessions("1ms", grace="1d")),
    "sessions of one time": by_windows(sessions("0ms", grace="1d")),
    "cogroup, sliding": cogrouped(sliding("2ms", grace="1d")),
    "cogroup, sessions": cogrouped(sessions("1ms", grace="1d"), merger=joined),
    "tumbling, filtered": lambda stream: by_windows(tumbling("4ms", grace="1d"))(stream).filter(lambda n: n != 2),
    "suppressed": lambda stream: stream.count("n").suppress("2ms", name="wait"),
    "suppressed, bounded": lambda stream: stream.count("n").suppress("1h", max_records=1, name="wait"),
    "suppressed windows": lambda stream: by_windows(tumbling("4ms", grace="2ms"))(stream).suppress(
        "window_closes", name="wait"
    ),
    "joined with a suppressed one": lambda stream: with_suppressed(stream, "join"),
    "joined with a suppressed one, outer": lambda stream: with_suppressed(stream, "outer_join"),
    "suppressed, filtered": lambda stream: stream.count("n").suppress("2ms", name="wait").filter(lambda n: n != 2),
}
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=14)


@pytest.mark.parametrize("made", TABLES.values(), ids=TABLES.keys())
@settings(max_examples=examples(4), deadline=None)
@given(STEPS, st.sampled_from([0, 0, 100_000]), st.sampled_from([1, 4]))
@example([("a", 5), ("b", 5), ("a", 5), ("b", 6), ("a", 6), ("c", 30), ("a", 40)], 0, 1)
@example([("a", 5), ("b", 30), ("a", 31), ("a", 32), ("c", 60)], 100_000, 1)
@example([("a", 11), ("a", 10), ("a", 8), ("a", 13), ("b", 13), ("c", 30)], 0, 1)
def test_each_row_is_in_its_group_once(
    made: Callable[[KGroupedStream[Any, Any]], Table], steps: list[tuple[str, int]], cache: int, commit_every: int
) -> None:
    builder = StreamsBuilder()
    table = made(builder.stream("in", value_serde="str").group_by_key())
    table.to_stream(lambda key, _: str(key), with_key=True).to("rows", value_serde="json")
    groups = table.group_by(lambda _: "all", lambda value: value, name="groups")
    groups.aggregate(list, lambda found, row: sorted([*found, row], key=str), without, "of-all").to_stream().to(
        "groups", value_serde="json"
    )
    application = Application("app", builder, statestore_cache_max_bytes=cache)
    with TopologyTestDriver(application, commit_every=commit_every) as driver:
        driver.pipe_many("in", [(key, "x", time) for key, time in steps])
        rows = sorted(folded(driver.read_all("rows")).values(), key=str)
        assert folded(driver.read_all("groups")).get("all", []) == rows


def without(found: list[Any], row: Any) -> list[Any]:
    """Return the rows of a group without one, which fails if that is not there."""
    found.remove(row)
    return found


def test_an_aggregate_that_is_older_than_its_deletion_is_in_no_group() -> None:
    builder = StreamsBuilder()
    store = versioned_store("n", history_retention="1d", value_serde="str")
    table = (
        builder.stream("in", value_serde="str")
        .group_by_key()
        .aggregate(str, lambda found, value: None if value == "delete" else found + value, store)
    )
    groups = table.group_by(lambda _: "all", name="groups")
    groups.aggregate(list, lambda found, row: [*found, row], without, "of-all").to_stream().to(
        "groups", value_serde="json"
    )
    with TopologyTestDriver(builder) as driver:
        for value, timestamp in (("a", 1), ("delete", 10), ("b", 5), ("c", 12)):
            driver.pipe("in", "k", value, timestamp=timestamp)
        assert driver.store("n").get("k").value == "c"
        assert driver.read_values("groups")[-1] == ["c"]
