"""Tables from topics: what their updates are, when they have a store, and the errors that a newcomer meets."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Application, TopologyError, ValueTransformer, key_value_store, versioned_store
from penstock.plugins.dsl import StreamsBuilder, collect_of, count_of, mean_of, min_of, sum_of
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples
from ..interleaving import InterleavingDriver, folded


def test_a_table_replaces_and_deletes() -> None:
    builder = StreamsBuilder()
    builder.table("in", "prices").to_stream().to("out")
    with TopologyTestDriver(builder) as driver:
        for key, value in (("a", "1"), ("a", "2"), (None, "3"), ("b", "4"), ("b", None)):
            driver.pipe("in", key, value, timestamp=7)
        assert [(each.key, each.value) for each in driver.read_all("out")] == [
            ("a", "1"),
            ("a", "2"),
            ("b", "4"),
            ("b", None),
        ]
        assert driver.dropped_records() == 1
        with driver.store("prices").all() as entries:
            assert [(key, tuple(value)) for key, value in entries] == [("a", ("2", 7))]


def test_a_versioned_table_drops_what_is_older_than_its_history() -> None:
    builder = StreamsBuilder()
    builder.table("in", versioned_store("prices", history_retention="10ms")).to_stream().to("out")
    with TopologyTestDriver(builder) as driver:
        for timestamp, value in ((100, "now"), (95, "before"), (80, "late")):
            driver.pipe("in", "a", value, timestamp=timestamp)
        assert [each.value for each in driver.read_all("out")] == ["now", "before"]
        assert driver.dropped_records() == 1
        assert driver.store("prices").get("a").value == "now"


def test_headers_may_be_kept_in_the_store() -> None:
    builder = StreamsBuilder()
    builder.table("in", "prices").to_stream().to("out")
    application = Application("app", builder, dsl_store_format="headers")
    with TopologyTestDriver(application, dsl_store_format="headers") as driver:
        driver.pipe("in", "a", "1", 5, (("from", b"x"),))
        assert tuple(driver.store("prices").get("a")) == ("1", 5, (("from", b"x"),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a", "b"],), r"table: expected the name of one topic, found \['a', 'b'\]; write table\(TOPIC\)"),
        (("a", 3), "table: expected the name of a store or a declared one, found 3"),
        (("a", "a store"), "expected 1 to 249 letters"),
    ],
)
def test_errors_of_newcomers(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        StreamsBuilder().table(*arguments)


def test_options_of_a_declared_store_belong_to_its_declaration() -> None:
    with pytest.raises(TopologyError, match="cached belong to the declared store 'prices'; say it there"):
        StreamsBuilder().table("a", key_value_store("prices"), cached=True)


@pytest.mark.parametrize("seed", range(10))
def test_a_table_of_a_stream_has_the_last_value_of_each_key(seed: int) -> None:
    chance = random.Random(seed)
    builder = StreamsBuilder()
    stream = builder.stream("in")
    if is_rekeyed := chance.random() < 0.5:
        stream = stream.select_key(lambda key, value: key[:1], with_key=True)
    table = stream.to_table(chance.choice([None, "latest"]), name="latest")
    table.to_stream().to("out")
    table.filter(lambda value: value != "2").to_stream().to("filtered")
    rows: dict[Any, Any] = {}
    partitions = 1 if is_rekeyed else 2  # otherwise the order of several partitions decides
    options: dict[str, Any] = {"statestore_cache_max_bytes": chance.choice([0, 100_000])}
    with InterleavingDriver(Application("app", builder, **options), chance, partitions=partitions) as driver:
        for number in range(20):
            key, value = chance.choice(["a1", "a2", "b1"]), chance.choice([None, "1", "2"])
            driver.pipe("in", key, value, timestamp=20 - number)
            folded([(key[:1] if is_rekeyed else key, value)], rows)
        driver.finish()
        assert folded(driver.read_all("out")) == rows
        assert folded(driver.read_all("filtered")) == {key: value for key, value in rows.items() if value != "2"}


def test_of_several_updates_in_a_commit_a_cached_table_sends_the_last() -> None:
    def values(cache: int, **options: Any) -> list[Any]:
        builder = StreamsBuilder()
        each = builder.stream("in").flat_map_values(lambda value: value.split())
        each.to_table("latest", **options).to_stream().to("out")
        with TopologyTestDriver(Application("app", builder, statestore_cache_max_bytes=cache)) as driver:
            driver.pipe("in", "k", "1 2 3", timestamp=1)
            return [record.value for record in driver.read_all("out")]

    assert values(100_000) == ["3"]
    assert values(100_000, cached=False) == values(0) == ["1", "2", "3"]


class Counted(ValueTransformer):
    def init(self, context: Any) -> None:
        super().init(context)
        self.seen = context.get_store("seen")

    def transform(self, key: Any, value: Any) -> Any:
        self.seen.put(key, (self.seen.get(key) or 0) + 1)
        return None if value is None else f"{value}{self.seen.get(key)}"


def test_a_transformer_has_stores() -> None:
    builder = StreamsBuilder()
    table = builder.table("in").transform_values(Counted, "made", stores=[key_value_store("seen")])
    table.to_stream().to("out")
    with TopologyTestDriver(builder, reopen_tasks=True) as driver:
        for value in ("a", "b", None):
            driver.pipe("in", "k", value, timestamp=1)
        assert [each.value for each in driver.read_all("out")] == ["a1", "b2", None]


class Shown(ValueTransformer):
    def transform(self, key: Any, value: Any) -> str:
        return "nothing" if value is None else f"<{value}>"


@pytest.mark.parametrize("store", [None, "made"])
def test_a_transformer_gets_deletions_and_a_mapper_does_not(store: str | None) -> None:
    builder = StreamsBuilder()
    table = builder.table("in", "rows")
    table.transform_values(Shown, store).to_stream().to("transformed")
    table.map_values(lambda value: f"<{value}>", store and "mapped").to_stream().to("mapped")
    with TopologyTestDriver(builder) as driver:
        for value in ("a", None):
            driver.pipe("in", "k", value, timestamp=1)
        assert [each.value for each in driver.read_all("transformed")] == ["<a>", "nothing"]
        assert [each.value for each in driver.read_all("mapped")] == ["<a>", None]


def test_a_group_gets_one_update_where_its_row_stays_and_else_loses_before_it_gets() -> None:
    def added(aggregate: str, value: str) -> str:
        return f"{aggregate}+{value}"

    def taken(aggregate: str, value: str) -> str:
        return f"{aggregate}-{value}"

    builder = StreamsBuilder()
    groups = builder.table("in").group_by(lambda value: value[0] or None, name="groups")
    groups.aggregate(str, added, taken, "made").to_stream().to("out", value_serde="json")
    with TopologyTestDriver(builder) as driver:
        for value in ("x1", "x2", "y3", None):
            driver.pipe("in", "k", value, timestamp=1)
        assert [(each.key, each.value) for each in driver.read_all("out")] == [
            ("x", "+x1"),
            ("x", "+x1-x1+x2"),
            ("x", "+x1-x1+x2-x2"),
            ("y", "+y3"),
            ("y", "+y3-y3"),
        ]


_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "long" * 100]),
        st.none() | st.fixed_dictionaries({"group": st.sampled_from("xy"), "n": st.none() | st.integers(-5, 5)}),
    ),
    max_size=12,
)


@settings(max_examples=examples(40))
@given(rows=_ROWS)
def test_several_aggregates_of_groups_are_those_of_the_rows_there_are(rows: list[tuple[str, Any]]) -> None:
    builder = StreamsBuilder()
    groups = builder.table("in", value_serde="json").group_by(lambda row: row["group"], name="groups")
    made = groups.agg("all", total=sum_of("n"), rows=count_of(lambda row: row), some=count_of("n"), mean=mean_of("n"))
    made.to_stream().to("out", value_serde="json")
    table: dict[str, Any] = {}
    sent: dict[str, Any] = {}
    with TopologyTestDriver(builder) as driver:
        for key, row in rows:
            driver.pipe("in", key, row, timestamp=0)
            table[key] = row
            sent |= {record.key: record.value for record in driver.read_all("out")}
            for group, found in sent.items():
                inside = [row["n"] for row in table.values() if row is not None and row["group"] == group]
                some = [n for n in inside if n is not None]
                assert found == {
                    "total": sum(some), "rows": len(inside), "some": len(some),
                    "mean": sum(some) / len(some) if some else None,
                }  # fmt: skip


def test_what_cannot_be_taken_back_is_no_aggregate_of_groups() -> None:
    groups = StreamsBuilder().table("in").group_by(lambda row: row["group"])
    with pytest.raises(TopologyError, match=r"agg \(store 'all'\): low, all cannot be taken back when a row changes"):
        groups.agg("all", total=sum_of("n"), low=min_of("n"), all=collect_of("n"))
