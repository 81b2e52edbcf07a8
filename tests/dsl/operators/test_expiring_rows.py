"""Tables whose rows expire: an expiry is no update, so nothing may depend on the value before."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock import TopologyError, key_value_store, versioned_store
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


@pytest.mark.parametrize("table", FILTERS.values(), ids=FILTERS.keys())
def test_a_filter_deletes_what_it_sent_of_a_row_that_has_expired(table: Callable[[StreamsBuilder], Table]) -> None:
    builder = StreamsBuilder()
    table(builder).to_stream().to("big", value_serde="int")
    with TopologyTestDriver(builder, statestore_cache_max_bytes=0) as driver:
        driver.pipe("rows", "a", 9, timestamp=0)
        driver.pipe("rows", "a", 1, timestamp=100)
        assert driver.read_pairs("big") == [("a", 9), ("a", None)]
