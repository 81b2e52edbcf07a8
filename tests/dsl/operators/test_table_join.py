"""Tables made of tables, against the same operations on dicts; and the errors of newcomers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Application, TopologyError, ValueTransformer, versioned_store
from penstock.plugins.dsl import KTable, StreamsBuilder, sessions, tumbling
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import of_today
from ..interleaving import InterleavingDriver, folded

Table = KTable[Any, Any]
Rows = dict[Any, Any]

KINDS = ["join", "left_join", "outer_join"]


class Tenfold(ValueTransformer):
    def transform(self, key: Any, value: Any) -> Any:
        return None if value is None else value * 10


VERBS: dict[str, tuple[Callable[..., Table], Callable[[Any], Any]]] = {
    "filter": (lambda table, **o: table.filter(lambda v: v > 0, **o), lambda v: v if v > 0 else None),
    "filter_not": (lambda table, **o: table.filter_not(lambda v: v % 2 == 0, **o), lambda v: v if v % 2 else None),
    "map": (lambda table, **o: table.map_values(lambda v: v + 1 or None, **o), lambda v: v + 1 or None),
    "transform": (lambda table, **o: table.transform_values(Tenfold, **o), lambda v: v * 10),
}


def some_steps(chance: random.Random) -> list[tuple[str, bool]]:
    return [(chance.choice(sorted(VERBS)), chance.random() < 0.4) for _ in range(chance.choice([0, 0, 1, 2, 3]))]


def with_steps(table: Table, prefix: str, steps: list[tuple[str, bool]]) -> Table:
    for number, (verb, is_stored) in enumerate(steps):
        table = VERBS[verb][0](table, store=f"{prefix}{number}" if is_stored else None)
    return table


def rows_of(rows: Rows, steps: list[tuple[str, bool]]) -> Rows:
    for verb, _ in steps:
        made = ((key, VERBS[verb][1](value)) for key, value in rows.items())
        rows = {key: value for key, value in made if value is not None}
    return rows


def both(left: Any, right: Any) -> int:
    return 100 * (0 if left is None else left + 50) + (0 if right is None else right + 50)


def joined(kind: str, left: Rows, right: Rows) -> Rows:
    keys = {"join": left.keys() & right.keys(), "left_join": left.keys(), "outer_join": left.keys() | right.keys()}
    return {key: both(left.get(key), right.get(key)) for key in keys[kind]}


def sums(rows: Rows) -> Rows:
    found: Rows = {}
    for value in rows.values():
        found[f"{value % 3}"] = found.get(f"{value % 3}", 0) + value
    return found


@pytest.mark.parametrize("seed", of_today(range(40), 2))
def test_tables_of_tables_are_at_every_moment_those_of_a_database(seed: int) -> None:
    chance = random.Random(seed)
    kind, of_left, of_right, after = chance.choice(KINDS), *(some_steps(chance) for _ in range(3))
    builder = StreamsBuilder()
    left = with_steps(builder.table("left", value_serde="int"), "l", of_left)
    right = with_steps(builder.table("right", value_serde="int"), "r", of_right)
    result = with_steps(getattr(left, kind)(right, both, chance.choice([None, "joined"])), "a", after)
    result.to_stream().to("out", value_serde="int")
    is_grouped = chance.random() < 0.7  # otherwise values before may not be sent
    if is_grouped:
        groups = result.group_by(lambda value: f"{value % 3}", value_serde="int", name="groups")
        summed = groups.reduce(lambda a, v: a + v, lambda a, v: a - v, "sums", value_serde="int")
        summed.to_stream().to("sums", value_serde="int")
        groups.count("counts").to_stream().to("counts", value_serde="int")
    options: dict[str, Any] = {
        "reopen_tasks": chance.random() < 0.5,
        "partitions": chance.choice([1, 3]),
        "statestore_cache_max_bytes": chance.choice([0, 100_000]),
        "dsl_store_format": chance.choice(["default", "headers"]),
    }
    tables: dict[str, Rows] = {"left": {}, "right": {}}
    got: dict[str, Rows] = {name: {} for name in (("out", "sums", "counts") if is_grouped else ("out",))}
    with TopologyTestDriver(Application("app", builder), **options) as driver:
        for number in range(25):
            topic, key, value = (
                chance.choice(["left", "right"]),
                chance.choice("abc"),
                chance.choice([None, *range(-3, 4)]),
            )
            driver.pipe(topic, key, value, timestamp=number)
            folded([(key, value)], tables[topic])
            rows = joined(kind, rows_of(tables["left"], of_left), rows_of(tables["right"], of_right))
            rows = rows_of(rows, after)
            for name, seen in got.items():
                folded(driver.read_all(name), seen)
            assert got["out"] == rows
            if is_grouped:
                counts = {key: count for key, count in got["counts"].items() if count}
                assert sum(counts.values()) == len(rows)
                assert {key: got["sums"][key] for key in counts} == sums(rows)


@pytest.mark.parametrize("seed", of_today(range(40), 2))
def test_between_two_commits_both_rows_may_change(seed: int) -> None:
    chance = random.Random(seed)
    kind, of_left, of_right, after = chance.choice(KINDS), *(some_steps(chance) for _ in range(3))
    builder = StreamsBuilder()
    left = with_steps(builder.table("left", value_serde="int"), "l", of_left)
    right = with_steps(builder.table("right", value_serde="int"), "r", of_right)
    result = with_steps(getattr(left, kind)(right, both, chance.choice([None, "joined"])), "a", after)
    result.to_stream().to("out", value_serde="int")
    groups = result.group_by(lambda value: f"{value % 3}", value_serde="int", name="groups")
    summed = groups.reduce(lambda a, v: a + v, lambda a, v: a - v, "sums", value_serde="int")
    summed.to_stream().to("sums", value_serde="int")
    tables: dict[str, Rows] = {"left": {}, "right": {}}
    cache = chance.choice([0, 300, 100_000])
    with InterleavingDriver(Application("app", builder, statestore_cache_max_bytes=cache), chance) as driver:
        for number in range(40):
            topic, key, value = chance.choice(["left", "right"]), chance.choice("ab"), chance.choice([None, 1, 2, -1])
            driver.pipe(topic, key, value, timestamp=number)
            folded([(key, value)], tables[topic])
            if chance.random() < 0.3:
                driver.step()
        driver.finish()
        rows = joined(kind, rows_of(tables["left"], of_left), rows_of(tables["right"], of_right))
        rows = rows_of(rows, after)
        assert folded(driver.read_all("out")) == rows
        found = {key: value for key, value in folded(driver.read_all("sums")).items() if value}
        assert found == {key: value for key, value in sums(rows).items() if value}


@pytest.mark.parametrize("seed", range(12))
def test_joins_of_versioned_tables_have_the_rows_with_the_highest_timestamps(seed: int) -> None:
    chance = random.Random(seed)
    kind = KINDS[seed % 3]
    builder = StreamsBuilder()
    left = builder.table("left", versioned_store("l", history_retention="1s"), value_serde="int")
    right = builder.table("right", versioned_store("r", history_retention="1s"), value_serde="int")
    getattr(left, kind)(right, both).to_stream().to("out", value_serde="int")
    latest: dict[str, Rows] = {"left": {}, "right": {}}
    with TopologyTestDriver(Application("app", builder)) as driver:
        for _ in range(25):
            topic, key, value = chance.choice(["left", "right"]), chance.choice("ab"), chance.choice([None, 1, 2])
            timestamp = chance.randint(0, 30)
            driver.pipe(topic, key, value, timestamp=timestamp)
            if timestamp >= latest[topic].get(key, (None, -1))[1]:
                latest[topic][key] = value, timestamp
        rows = [{key: value for key, (value, _) in each.items() if value is not None} for each in latest.values()]
        assert folded(driver.read_all("out")) == joined(kind, *rows)


def test_a_self_join_sees_both_sides() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", "t")
    table.join(table, lambda one, other: one + other, name="twice").to_stream().to("out")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", "a", "x", timestamp=1)
        assert [each.value for each in driver.read_all("out")] == ["xx", "xx"]


def stream_for_a_table(builder: StreamsBuilder) -> Any:
    return builder.table("a").join(builder.stream("b"), both)  # type: ignore[call-overload]


def joiner_of_one(builder: StreamsBuilder) -> Any:
    return builder.table("a").join(builder.table("b"), lambda value: value)  # type: ignore[arg-type, misc]


def keys_that_differ(builder: StreamsBuilder) -> Any:
    return builder.table("a", key_serde="str").left_join(builder.table("b", key_serde="int"), both)


def partitioner_without_foreign_key(builder: StreamsBuilder) -> Any:
    return builder.table("a").join(builder.table("b"), both, partitioner=lambda *_: 0)


def options_without_a_store(builder: StreamsBuilder) -> Any:
    return builder.table("a").filter(bool, logged=False)


def literal_for_an_initializer(builder: StreamsBuilder) -> Any:
    groups = builder.table("a").group_by(len)
    return groups.aggregate([], lambda a, v: a, lambda a, v: a, "s")  # type: ignore[call-overload]


def no_subtractor(builder: StreamsBuilder) -> Any:
    return builder.table("a").group_by(len).reduce(lambda a, v: a, None, "s")  # type: ignore[call-overload]


def a_processor_for_a_table(builder: StreamsBuilder) -> Any:
    return builder.table("a").transform_values(Tenfold())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (stream_for_a_table, r"join: expected a KTable, found a KStream; .* write stream.to_table\(\)"),
        (joiner_of_one, r"join: its joiner is called with \(left, right\)"),
        (
            keys_that_differ,
            "left_join: the keys of the left side have the serde StrSerde, and those of the right side IntSerde",
        ),
        (partitioner_without_foreign_key, "join: partitioner and other_partitioner are for joins by foreign key"),
        (options_without_a_store, 'filter: logged belongs to a store, and filter has none here; write store="NAME"'),
        (literal_for_an_initializer, r"aggregate: initializer is a function .* write aggregate\(lambda: \[\], ...\)"),
        (no_subtractor, r"reduce: expected a subtractor of \(aggregate, value\), found None"),
        (a_processor_for_a_table, "transform_values: expected a class derived from ValueTransformer"),
    ],
)
def test_errors_of_newcomers(write: Callable[[StreamsBuilder], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        write(StreamsBuilder())


def test_tables_that_are_not_co_partitioned_are_refused() -> None:
    builder = StreamsBuilder()
    builder.table("a").join(builder.table("b"), both, "j").to_stream().to("out")
    with pytest.raises(TopologyError, match="must have equal numbers of partitions"):
        TopologyTestDriver(builder, partitions={"a": 2, "b": 3})


def test_a_verb_of_the_other_kind_says_how_to_get_there() -> None:
    table, stream = StreamsBuilder().table("a"), StreamsBuilder().stream("b")
    with pytest.raises(AttributeError, match=r"a table has no to\(\).*: table.to_stream\(\).to\("):
        table.to("out")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"a stream has no transform_values\(\).*stream.to_table\(\)"):
        stream.transform_values(Tenfold)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'KTable' object has no attribute 'tostream'"):
        table.tostream()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("windows", [tumbling("10ms", grace="100ms"), sessions(gap="3ms", grace="100ms")])
def test_joins_of_windowed_tables_do_not_depend_on_caches_and_commits(kind: str, windows: Any) -> None:
    def rows(seed: int, cache: int) -> Rows:
        chance = random.Random(seed)
        builder = StreamsBuilder()
        left, right = (
            builder.stream(topic).group_by_key().windowed_by(windows).count(topic) for topic in ("left", "right")
        )
        getattr(left, kind)(right, both).to_stream().to("out", value_serde="json")
        with InterleavingDriver(Application("app", builder, statestore_cache_max_bytes=cache), chance) as driver:
            inputs = random.Random(seed + 100)
            for _ in range(30):
                driver.pipe(inputs.choice(["left", "right"]), inputs.choice("ab"), "x", timestamp=inputs.randint(0, 40))
            driver.finish()
            return folded(driver.read_all("out"))

    for seed in range(3):
        assert rows(seed, 0) == rows(seed, 100_000)
