"""Tables whose rows expire: an expiry is no update, so nothing may depend on the value before."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock import TopologyError, ValueTimestampHeaders, key_value_store, versioned_store
from penstock.plugins.dsl import KTable, StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver

Table = KTable[Any, Any]
EXPIRING = key_value_store("rows", ttl="10ms", timestamped=True)


def rows(builder: StreamsBuilder, topic: str = "rows", **options: Any) -> Table:
    return builder.table(topic, topic, key_serde="str", value_serde="int", **options)


def expiring(builder: StreamsBuilder, topic: str = "rows") -> Table:
    return rows(builder, topic, ttl="10ms")


TABLES: dict[str, Callable[[StreamsBuilder], Table]] = {
    "table": expiring,
    "declared store": lambda b: b.table("rows", EXPIRING, key_serde="str", value_serde="int"),
    "to_table": lambda b: b.stream("rows", key_serde="str").to_table("rows", ttl="10ms"),
    "reduce": lambda b: b.stream("rows", key_serde="str").group_by_key().reduce(max, "rows", ttl="10ms"),
    "count of groups": lambda b: rows(b, "given").group_by(lambda value: value).count("rows", ttl="10ms"),
    "map_values": lambda b: expiring(b).map_values(lambda value: value),
    "map_values with a store": lambda b: rows(b, "given").map_values(lambda value: value, "rows", ttl="10ms"),
    "filter": lambda b: expiring(b).filter(bool),
    "join, left": lambda b: expiring(b).join(rows(b, "other"), max),
    "join, right": lambda b: rows(b, "other").join(expiring(b), max, "joined"),
    "join by foreign key": lambda b: rows(b, "other").join(rows(b, "given"), max, foreign_key=str, store=EXPIRING),
    "suppress": lambda b: expiring(b).suppress("5ms", name="calm"),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_rows_that_expire_are_not_grouped(table: Callable[[StreamsBuilder], Table]) -> None:
    made = table(StreamsBuilder())
    with pytest.raises(TopologyError, match=re.escape("group_by: rows expire in store 'rows' (ttl)")):
        made.group_by(lambda value: value)


KEPT: dict[str, Callable[[StreamsBuilder], Table]] = {
    "a store of its own": lambda b: expiring(b).map_values(lambda value: value, "kept"),
    "ttl removed": lambda b: b.table("rows", key_value_store("rows", expires=True, timestamped=True)),
    "versions": lambda b: b.table("rows", versioned_store("rows", history_retention="1h")),
}


@pytest.mark.parametrize("table", KEPT.values(), ids=KEPT.keys())
def test_rows_that_are_kept_are_grouped(table: Callable[[StreamsBuilder], Table]) -> None:
    table(StreamsBuilder()).group_by(lambda value: value)


def test_a_row_that_comes_back_counts_once() -> None:
    builder = StreamsBuilder()
    kept = expiring(builder).map_values(lambda value: value, "kept")
    kept.group_by(lambda value: value, key_serde="int").count("n").to_stream().to("counts", value_serde="int")
    with TopologyTestDriver(builder, statestore_cache_max_bytes=0) as driver:
        for time in (0, 100, 200):
            driver.pipe("rows", "a", 7, timestamp=time)
        assert driver.read_pairs("counts")[-1] == (7, 1)


FILTERS: dict[str, Callable[[StreamsBuilder], Table]] = {
    "of a table that expires": lambda b: expiring(b).filter(lambda value: value > 5),
    "with a store that expires": lambda b: rows(b).filter(lambda value: value > 5, "big", ttl="10ms"),
}


CACHES = pytest.mark.parametrize(
    "options",
    [{}, {"statestore_cache_max_bytes": 0}, {"dsl_store_format": "headers"}],
    ids=["cached", "uncached", "with headers"],
)


@CACHES
@pytest.mark.parametrize("table", FILTERS.values(), ids=FILTERS.keys())
def test_a_filter_deletes_what_it_sent_of_a_row_that_has_expired(
    table: Callable[[StreamsBuilder], Table], options: dict[str, Any]
) -> None:
    builder = StreamsBuilder()
    table(builder).to_stream().to("big", value_serde="int")
    with TopologyTestDriver(builder, **options) as driver:
        driver.pipe("rows", "a", 9, timestamp=0)
        driver.pipe("rows", "b", 9, timestamp=100)
        driver.pipe("rows", "a", 1, timestamp=101)
        assert driver.read_pairs("big") == [("a", 9), ("b", 9), ("a", None)]


@CACHES
def test_a_row_that_has_expired_can_be_deleted(options: dict[str, Any]) -> None:
    builder = StreamsBuilder()
    expiring(builder).to_stream().to("out", value_serde="int")
    with TopologyTestDriver(builder, **options) as driver:
        for key, value, time in (("a", 1, 0), ("b", 1, 100), ("a", None, 101)):
            driver.pipe("rows", key, value, timestamp=time)
        assert driver.read_pairs("out") == [("a", 1), ("b", 1), ("a", None)]


@CACHES
@pytest.mark.parametrize("expires", [("one",), ("two",), ("one", "two")], ids=str)
@pytest.mark.parametrize("updated", ["one", "two"])
@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
def test_a_join_has_the_rows_of_the_moment_at_the_next_update_of_one_that_has_expired(
    kind: str, updated: str, expires: tuple[str, ...], options: dict[str, Any]
) -> None:
    for value in (None, 3):
        builder = StreamsBuilder()
        one, two = ((expiring if topic in expires else rows)(builder, topic) for topic in ("one", "two"))
        joined = getattr(one, kind)(two, lambda a, b: [a, b])
        joined.to_stream().to("out", value_serde="json")
        with TopologyTestDriver(builder, **options) as driver:
            for topic, key, given, time in (("one", "a", 1, 0), ("two", "a", 2, 0), ("one", "b", 1, 100)):
                driver.pipe(topic, key, given, timestamp=time)
            assert ("a", [1, 2]) in driver.read_pairs("out")
            driver.pipe(updated, "a", value, timestamp=101)
            now = {"one": None if "one" in expires else 1, "two": None if "two" in expires else 2, updated: value}
            is_there = {
                "join": None not in now.values(),
                "left_join": now["one"] is not None,
                "outer_join": any(each is not None for each in now.values()),
            }[kind]
            expected = [now["one"], now["two"]] if is_there else None
            assert driver.read_pairs("out") == [("a", expected)]


def test_a_table_whose_rows_expire_keeps_their_headers() -> None:
    builder = StreamsBuilder()
    expiring(builder).to_stream().to("out", value_serde="int")
    with TopologyTestDriver(builder, dsl_store_format="headers", reopen_tasks=True) as driver:
        driver.pipe("rows", "a", 1, timestamp=0, headers=(("h", b"x"),))
        assert driver.store("rows").get("a") == ValueTimestampHeaders(1, 0, (("h", b"x"),))
        driver.pipe("rows", "b", 1, timestamp=100)
        assert driver.store("rows").get("a") is None


def test_a_global_table_whose_rows_expire_keeps_their_headers() -> None:
    builder = StreamsBuilder()
    given = builder.global_table("rows", EXPIRING, key_serde="str", value_serde="int")
    joined = builder.stream("in", key_serde="str", value_serde="int").join(given, lambda one, row: [one, row])
    joined.to("out", value_serde="json")
    with TopologyTestDriver(builder, dsl_store_format="headers") as driver:
        driver.pipe("rows", "a", 1, timestamp=0)
        driver.pipe("in", "a", 2, timestamp=0)
        assert driver.read_pairs("out") == [("a", [2, 1])]


@CACHES
def test_a_table_that_is_joined_with_itself_deletes_a_row_that_has_expired(options: dict[str, Any]) -> None:
    builder = StreamsBuilder()
    table = expiring(builder)
    table.join(table.map_values(lambda value: -value), lambda a, b: [a, b]).to_stream().to("out", value_serde="json")
    with TopologyTestDriver(builder, **options) as driver:
        for key, value, time in (("a", 1, 0), ("b", 1, 100)):
            driver.pipe("rows", key, value, timestamp=time)
        driver.read_all("out")
        driver.pipe("rows", "a", None, timestamp=101)
        assert set(driver.read_pairs("out")) == {("a", None)}


@CACHES
@pytest.mark.parametrize("value", [None, "", "x", "y", "z"])
@pytest.mark.parametrize("expires", [("rows",), ("named",), ("rows", "named")], ids=str)
@pytest.mark.parametrize("kind", ["join", "left_join"])
def test_a_join_by_foreign_key_has_the_rows_of_the_moment_at_the_next_update(
    kind: str, expires: tuple[str, ...], value: str | None, options: dict[str, Any]
) -> None:
    builder = StreamsBuilder()
    one, named = (
        builder.table(topic, topic, key_serde="str", value_serde="str", ttl="10ms" if topic in expires else None)
        for topic in ("rows", "named")
    )
    getattr(one, kind)(named, lambda a, b: [a, b], foreign_key=lambda a: a or None, name="j").to_stream().to(
        "out", value_serde="json"
    )
    with TopologyTestDriver(builder, **options) as driver:
        driver.pipe("named", "x", "X", timestamp=0)
        driver.pipe("rows", "a", "x", timestamp=0)
        for topic in ("rows", "named"):
            driver.pipe(topic, "y", "y", timestamp=100)
        assert ("a", ["x", "X"]) in driver.read_pairs("out")
        driver.pipe("rows", "a", value, timestamp=101)
        other = {"x": None if "named" in expires else "X", "y": "y"}.get(value or "")
        is_there = value is not None and (kind == "left_join" or other is not None)
        assert driver.read_pairs("out")[-1] == ("a", [value, other] if is_there else None)
