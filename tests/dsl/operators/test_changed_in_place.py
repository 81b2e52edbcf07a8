"""Users' functions change their arguments in place and return them: no other result, and no old value, changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import ValueTransformer, versioned_store
from penstock.plugins.dsl import KStream, StreamsBuilder, first_of, hopping, last_of, sessions, sliding, within
from penstock.plugins.testing import TopologyTestDriver

STORES = pytest.mark.parametrize(
    "options", [{}, {"cached": False}, {"versioned": "1h"}], ids=["cached", "uncached", "versioned"]
)


def add(collected: list[Any], value: Any) -> list[Any]:
    collected.append(value)
    return collected


def without(collected: list[Any], value: Any) -> list[Any]:
    collected.remove(value)
    return collected


def update(one: dict[str, Any], other: dict[str, Any] | None) -> dict[str, Any]:
    one.update(other or {})
    return one


def mark(value: dict[str, Any]) -> dict[str, Any]:
    value["marked"] = value.get("marked", 0) + 1
    return value


def answers(builder: StreamsBuilder, *records: tuple[Any, ...], topics: str = "out", **options: Any) -> list[Any]:
    """Pipe (topic, key, value, time); return (key, value) of the output."""
    with TopologyTestDriver(builder, **options) as driver:
        for topic, key, value, time in records:
            driver.pipe(topic, key, value, time)
        return driver.read_pairs(topics)


def rows(driver: TopologyTestDriver, store: str) -> dict[Any, Any]:
    """Return the values in a store by key."""
    return {key: entry[0] for key, entry in driver.store(store).all()}


def orders(builder: StreamsBuilder, topic: str = "in") -> KStream[Any, Any]:
    return builder.stream(topic, value_serde="json")


@STORES
def test_an_aggregate_leaves_its_group(options: dict[str, Any]) -> None:
    builder = StreamsBuilder()
    made = builder.stream("in").group_by_key()
    if "versioned" in options:
        baskets = made.aggregate(list, add, versioned_store("baskets", history_retention=options["versioned"]))
    else:
        baskets = made.aggregate(list, add, "baskets", **options)
    baskets.group_by(lambda basket: str(len(basket)), name="by-size").count("sizes")
    with TopologyTestDriver(builder) as driver:
        for time, item in enumerate(("tea", "cup", "pot")):
            driver.pipe("in", "anna", item, time)
        assert rows(driver, "sizes") == {"1": 0, "2": 0, "3": 1}


def test_an_initializer_may_return_one_object_each_time() -> None:
    builder = StreamsBuilder()
    nothing: list[str] = []
    builder.stream("in").group_by_key().aggregate(lambda: nothing, add, "all").to_stream().to("out", value_serde="json")
    found = answers(builder, ("in", "a", "1", 0), ("in", "b", "2", 0), ("in", "a", "3", 0))
    assert found == [("a", ["1"]), ("b", ["2"]), ("a", ["1", "3"])] and nothing == []


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_a_row_leaves_its_group_of_a_table(cached: bool) -> None:
    builder = StreamsBuilder()
    owners = builder.table("in", "owners").group_by(lambda owner: owner, name="by-owner")
    lists = owners.aggregate(list, add, without, "lists", cached=cached)
    lists.group_by(lambda items: str(len(items)), name="by-size").count("sizes")
    with TopologyTestDriver(builder) as driver:
        for time, key in enumerate("abc"):
            driver.pipe("in", key, "anna", time)
        assert rows(driver, "sizes") == {"1": 0, "2": 0, "3": 1}


@pytest.mark.parametrize("function", ["flat_map", "flat_map_values"])
def test_each_of_several_records_has_its_own(function: str) -> None:
    builder = StreamsBuilder()
    stream = orders(builder)
    if function == "flat_map":
        several = stream.flat_map(lambda key, value: [(key, value), (key, value)], with_key=True)
    else:
        several = stream.flat_map_values(lambda value: [value, value])
    several.map_values(mark).to("out", value_serde="json")
    assert answers(builder, ("in", "k", {}, 0)) == [("k", {"marked": 1})] * 2


def test_a_record_in_several_windows() -> None:
    builder = StreamsBuilder()
    windowed = orders(builder).group_by_key().windowed_by(hopping("10s", every="5s", grace="0s"))
    reduced = windowed.reduce(update, "all", cached=False).to_stream(lambda window, value: window.key, with_key=True)
    reduced.map_values(mark).to("out", value_serde="json")
    found = answers(builder, ("in", "k", {"a": 1}, 7_000))
    assert found == [("k", {"a": 1, "marked": 1})] * 2


@pytest.mark.parametrize("times", [[11_000, 14_000, 12_000], [1_000, 4_000, 2_000]], ids=["later", "early"])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_sliding_windows(cached: bool, times: list[int]) -> None:
    def run(aggregator: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        builder = StreamsBuilder()
        windowed = builder.stream("in").group_by_key().windowed_by(sliding("5s", grace="1h"))
        windowed.aggregate(list, aggregator, "all", cached=cached)
        with TopologyTestDriver(builder) as driver:
            for time in times:
                driver.pipe("in", "k", str(time), time)
            return rows(driver, "all")

    assert run(add) == run(lambda collected, value: [*collected, value])


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_sessions_that_merge(cached: bool) -> None:
    def merge(one: list[str], other: list[str]) -> list[str]:
        one.extend(other)
        return one

    builder = StreamsBuilder()
    windowed = builder.stream("in").group_by_key().windowed_by(sessions("5s", grace="1h"))
    table = windowed.aggregate(list, add, merge, "all", cached=cached)
    table.group_by(lambda value: str(len(value)), name="sizes").count("sizes")
    with TopologyTestDriver(builder) as driver:
        for time in (0, 8_000, 4_000, 5_000):
            driver.pipe("in", "k", str(time), time)
        assert rows(driver, "sizes") == {"1": 0, "3": 0, "4": 1}


@pytest.mark.parametrize("is_self", [False, True], ids=["two streams", "a stream with itself"])
def test_a_joiner_of_streams(is_self: bool) -> None:
    builder = StreamsBuilder()
    left = orders(builder)
    right = left if is_self else orders(builder, "others")
    joined = left.join(right, update, within("10s", grace="0s"), name="joined")
    joined.map_values(mark).to("out", value_serde="json")
    records = [("in", "k", {"a": 1}, 1), ("in", "k", {"a": 2}, 2), ("in", "k", {"a": 3}, 3)]
    if not is_self:
        records = [("others", "k", {"b": 1}, 1), ("others", "k", {"b": 2}, 2), *records, ("others", "k", {"b": 3}, 3)]
    options = {"topology_optimization": "single_store_self_join"} if is_self else {}
    expected = StreamsBuilder()
    left = orders(expected)
    right = left if is_self else orders(expected, "others")
    joined = left.join(right, lambda one, two: {**one, **two}, within("10s", grace="0s"), name="joined")
    joined.map_values(lambda value: {**value, "marked": 1}).to("out", value_serde="json")
    for each in [{}, options] if is_self else [{}]:
        assert answers(builder, *records, **each) == answers(expected, *records, **each)


@pytest.mark.parametrize("kind", ["left_join", "outer_join"])
def test_an_outer_joiner_of_streams(kind: str) -> None:
    def run(joiner: Callable[[Any, Any], Any]) -> list[Any]:
        builder = StreamsBuilder()
        join = getattr(orders(builder), kind)
        join(orders(builder, "others"), joiner, within("10s", grace="0s"), name="joined").to("out", value_serde="json")
        return answers(
            builder,
            ("in", "k", {"a": 1}, 1),
            ("in", "k", {"a": 2}, 2),
            ("others", "k", {"b": 1}, 3),
            ("in", "k", {"a": 3}, 4),
            ("in", "other", {"a": 4}, 5),
            ("others", "k", {"b": 2}, 100_000),
            ("in", "k", {"a": 5}, 200_000),
        )

    def changing(one: Any, two: Any) -> Any:
        if one is not None and two is not None:
            two["x"] = one["y"] = 1
        return update(one if one is not None else {}, two)

    def copying(one: Any, two: Any) -> Any:
        both = {"y": 1} if one is not None and two is not None else {}
        return {**(one or {}), **both, **(two or {}), **({"x": 1} if both else {})}

    assert run(changing) == run(copying)


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("batch", [1, 10])
def test_a_joiner_of_tables(cached: bool, batch: int) -> None:
    def run(joiner: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
        builder = StreamsBuilder()
        left, right = (builder.table(topic, topic, value_serde="json") for topic in ("left", "right"))
        joined = left.join(right, joiner, "joined", value_serde="json", cached=cached)
        counted = joined.group_by(lambda value: str(value["b"]), name="by-b").count("counts", cached=cached)
        counted.to_stream().to("out", value_serde="int")
        with TopologyTestDriver(builder, commit_every=batch) as driver:
            driver.pipe_many("left", [("k", {"a": 1}, 1), ("k", {"a": 2}, 2)])
            driver.pipe_many("right", [("k", {"b": 1}, 3), ("k", {"b": 2}, 4)])
            driver.pipe_many("left", [("k", {"a": 3}, 5)])
            driver.pipe_many("right", [("k", {"b": 3}, 6)])
            return rows(driver, "left"), rows(driver, "joined"), rows(driver, "counts")

    def right_with_left(left: Any, right: Any) -> Any:
        right["b"] *= 10
        return update(right, left)

    assert run(right_with_left) == run(lambda left, right: {"b": right["b"] * 10, **left})


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_a_joiner_of_a_stream_with_tables(cached: bool) -> None:
    builder = StreamsBuilder()
    table = builder.table("users", "users", value_serde="json", cached=cached)
    every = builder.global_table("places", "places", value_serde="json")
    stream = orders(builder)
    stream.join(table, lambda order, user: mark(user)).to("out", value_serde="json")
    stream.join(every, lambda order, place: mark(place), select_key=lambda order: "p").to("placed", value_serde="json")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("users", "k", {"name": "anna"}, 0)
        driver.pipe("places", "p", {"city": "Berlin"}, 0)
        for time in (1, 2):
            driver.pipe("in", "k", {}, time)
        assert driver.read_values("out") == [{"name": "anna", "marked": 1}] * 2
        assert driver.read_values("placed") == [{"city": "Berlin", "marked": 1}] * 2


def test_branches_of_a_table() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", "rows", value_serde="json")
    table.map_values(mark, "marked", value_serde="json")
    table.map_values(mark, "again", value_serde="json").to_stream().to("out", value_serde="json")
    with TopologyTestDriver(builder) as driver:
        for time in (1, 2):
            driver.pipe("in", "k", {}, time)
        assert driver.read_values("out") == [{"marked": 1}] * 2
        assert [rows(driver, name) for name in ("rows", "marked", "again")] == [
            {"k": {}},
            {"k": {"marked": 1}},
            {"k": {"marked": 1}},
        ]


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_a_cogroup(cached: bool) -> None:
    builder = StreamsBuilder()
    first, second = (builder.stream(topic).group_by_key() for topic in ("in", "others"))
    table = first.cogroup(add).cogroup(second, add).aggregate(list, "all", cached=cached)
    table.group_by(lambda items: str(len(items)), name="sizes").count("sizes")
    with TopologyTestDriver(builder) as driver:
        for time, topic in enumerate(("in", "others", "in")):
            driver.pipe(topic, "k", "x", time)
        assert rows(driver, "sizes") == {"1": 0, "2": 0, "3": 1}


def test_an_initializer_of_a_grouped_table_may_return_one_object_each_time() -> None:
    builder = StreamsBuilder()
    nothing: list[str] = []
    groups = builder.table("in", "rows").group_by(lambda value: value[0], name="groups")
    groups.aggregate(lambda: nothing, add, without, "lists")
    with TopologyTestDriver(builder) as driver:
        for time, value in enumerate(("x1", "y1", "x2")):
            driver.pipe("in", value, value, time)
        assert rows(driver, "lists") == {"x": ["x1", "x2"], "y": ["y1"]} and nothing == []


@pytest.mark.parametrize("times", [[11_000, 14_000, 12_000], [1_000, 4_000, 2_000]], ids=["later", "early"])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_old_values_of_sliding_windows_that_a_verb_changes(cached: bool, times: list[int]) -> None:
    def run(function: Callable[[Any], Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
        builder = StreamsBuilder()
        windowed = builder.stream("in").group_by_key().windowed_by(sliding("5s", grace="1h"))
        table = windowed.aggregate(list, add, "all", cached=cached).map_values(function)
        table.group_by(lambda items: str(len(items)), name="sizes").count("sizes")
        with TopologyTestDriver(builder) as driver:
            for time in times:
                driver.pipe("in", "k", str(time), time)
            return rows(driver, "all"), rows(driver, "sizes")

    assert run(lambda items: add(items, "more")) == run(lambda items: [*items, "more"])


def test_a_function_changes_the_row_whose_foreign_key_it_takes() -> None:
    builder = StreamsBuilder()
    left, users = (builder.table(topic, topic, value_serde="json") for topic in ("in", "users"))
    joined = left.join(users, update, foreign_key=lambda order: order.pop("user"), name="joined")
    joined.to_stream().to("out", value_serde="json")
    found = answers(builder, ("users", "u", {"name": "anna"}, 0), ("in", "k", {"user": "u"}, 1))
    assert found == [("k", {"user": "u", "name": "anna"})]


def test_a_transformer_of_a_table_may_return_what_it_keeps() -> None:
    class Live(ValueTransformer):
        def __init__(self) -> None:
            self.value: dict[str, int] = {}

        def transform(self, key: Any, value: Any) -> Any:
            return self.value

    builder = StreamsBuilder()
    table = builder.table("in", value_serde="json").transform_values(Live)
    table.map_values(mark).to_stream().to("out", value_serde="json")
    assert answers(builder, ("in", "k", {}, 0), ("in", "k", {}, 1)) == [("k", {"marked": 1})] * 2


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
def test_columns_that_keep_one_value(cached: bool) -> None:
    builder = StreamsBuilder()
    made = orders(builder).group_by_key().agg("all", first=first_of(), last=last_of(), cached=cached)
    marked = made.map_values(lambda row: {**row, "first": mark(row["first"])})
    marked.to_stream().to("out", value_serde="json")
    assert answers(builder, ("in", "k", {}, 0)) == [("k", {"first": {"marked": 1}, "last": {}})]


# ---------------------------------------------------------------------- keys


def with_marked_keys(stream: KStream[Any, Any]) -> None:
    stream.map(lambda key, value: (mark(key), value), with_key=True).to("out", key_serde="json", value_serde="json")


@pytest.mark.parametrize("verb", ["select_key", "map"])
def test_a_key_that_is_a_part_of_the_value(verb: str) -> None:
    builder = StreamsBuilder()
    make: dict[str, Callable[[Any], Any]] = {
        "select_key": lambda value: value["id"],
        "map": lambda value: (value["id"], value),
    }
    made = getattr(orders(builder), verb)(make[verb])
    made.map_values(lambda value: mark(value["id"])).to("out", key_serde="json", value_serde="json")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", "k", {"id": {"n": 1}}, 0)
        assert driver.read_pairs("out") == [({"n": 1}, {"n": 1, "marked": 1})]


def test_each_of_several_records_has_its_own_key() -> None:
    builder = StreamsBuilder()
    with_marked_keys(builder.stream("in", key_serde="json", value_serde="json").flat_map_values(lambda value: value))
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", {"n": 1}, [1, 2], 0)
        assert driver.read_pairs("out") == [({"n": 1, "marked": 1}, 1), ({"n": 1, "marked": 1}, 2)]


@pytest.mark.parametrize("of", ["streams", "a table"])
def test_a_key_that_waited_in_a_join(of: str) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde="json", value_serde="int")
    if of == "streams":
        others = builder.stream("others", key_serde="json", value_serde="int")
        joined = stream.left_join(others, lambda value, none: value, within("10ms", grace="0s"), name="joined")
    else:
        kept = versioned_store("rows", history_retention="1h")
        table = builder.table("rows", kept, key_serde="json", value_serde="int")
        joined = stream.left_join(table, lambda value, none: value, grace="10ms", name="joined")
    with_marked_keys(joined)
    waiting = "joined-left-shared-join-store" if of == "streams" else "joined-Buffer"
    with TopologyTestDriver(builder) as driver:
        for time in (1, 2, 100, 200):
            driver.pipe("in", {"n": time}, time, time)
        assert driver.read_pairs("out") == [({"n": time, "marked": 1}, time) for time in (1, 2, 100)]
        assert len(list(driver.store(waiting).all())) == 1


@pytest.mark.parametrize("verb", ["aggregate", "stateful_map", "aggregate of a table"])
def test_a_key_that_a_function_changes_keeps_its_row(verb: str) -> None:
    def number(key: Any, count: int, value: Any) -> int:
        key["seen"] = True
        return count + 1

    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde="json")
    if verb == "aggregate":
        stream.group_by_key().aggregate(int, number, "counts", with_key=True)
    elif verb == "stateful_map":
        stream.stateful_map(lambda *given: (number(*given), None), int, "counts", with_key=True).to("out")
    else:
        groups = builder.table("in", "rows", key_serde="json").group_by(
            lambda key, _: key, with_key=True, name="by", key_serde="json"
        )
        groups.aggregate(int, number, lambda key, count, value: count, "counts", with_key=True)
    with TopologyTestDriver(builder) as driver:
        for _ in range(2):
            driver.pipe("in", {"id": 1}, "x")
        found = [(key, getattr(count, "value", count)) for key, count in driver.store("counts").all()]
        assert found == [({"id": 1}, 2)]


def test_a_key_that_a_merger_changes_keeps_its_sessions() -> None:
    def merge(key: Any, one: int, other: int) -> int:
        key["merged"] = True
        return one + other

    builder = StreamsBuilder()
    windows = builder.stream("in", key_serde="json").group_by_key().windowed_by(sessions(gap="1s", grace="1h"))
    counts = windows.aggregate(int, lambda key, count, value: count + 1, merge, "counts", with_key=True)
    counts.to_stream(lambda key, value: key.key, with_key=True).to("out", key_serde="json", value_serde="int")
    with TopologyTestDriver(builder) as driver:
        for time in (0, 2_000, 1_000, 3_000):
            driver.pipe("in", {"id": 1}, "x", time)
        assert [(key, count) for key, count in driver.read_pairs("out") if count] == [
            ({"id": 1}, count) for count in (1, 1, 3, 4)
        ]
