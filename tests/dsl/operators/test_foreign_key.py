"""Joins by foreign key, whose sides run in any order, against the same join of dicts; and the errors of newcomers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Application, TopologyError, versioned_store
from penstock.plugins.dsl import KTable, StreamsBuilder
from penstock.plugins.dsl.operators.foreign_key_messages import compile_hash
from penstock.plugins.serdes.pickle import PickleSerde
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import of_today
from ..interleaving import InterleavingDriver, folded

Rows = dict[Any, Any]


def reference(value: Any) -> str | None:
    return value[0] or None


def both(left: Any, right: Any) -> list[Any]:
    return [left, right]


def joined(left: Rows, right: Rows, *, is_left: bool) -> Rows:
    found = ((key, [value, right.get(value[0])]) for key, value in left.items())
    return {key: value for key, value in found if is_left or value[1] is not None}


def program(*, is_left: bool, store: str | None, joined_again: bool, serde: str = "json") -> StreamsBuilder:
    builder = StreamsBuilder()
    left = builder.table("left", value_serde=serde)
    right = builder.table("right", value_serde=serde)
    join: Any = left.left_join if is_left else left.join
    result: KTable[Any, Any] = join(right, both, store, foreign_key=reference, name="refers", value_serde=serde)
    result.to_stream().to("out", value_serde=serde)
    if joined_again:
        result.join(left, both).to_stream().to("again", value_serde=serde)
    return builder


def some_update(chance: random.Random) -> tuple[str, str, Any]:
    if chance.random() < 0.4:
        return "right", chance.choice("xyz"), chance.choice([None, None, 0, 1])
    foreign = None if chance.random() < 0.3 else [chance.choice(["x", "y", "z", ""]), chance.randint(0, 1)]
    return "left", chance.choice("ab"), foreign


@pytest.mark.parametrize("seed", of_today(range(60), 3))
def test_once_drained_a_join_by_foreign_key_is_that_of_a_database(seed: int) -> None:
    chance = random.Random(seed)
    is_left, joined_again = chance.random() < 0.5, chance.random() < 0.3
    serde = chance.choice(["json", "pickle"])
    builder = program(is_left=is_left, store=chance.choice([None, "joined"]), joined_again=joined_again, serde=serde)
    options: dict[str, Any] = {
        "partitions": chance.choice([{}, {"left": 2, "right": 3}, {"left": 3}, {"right": 3}]),
        "statestore_cache_max_bytes": chance.choice([0, 100_000]),
        "dsl_store_format": chance.choice(["default", "headers"]),
    }
    tables: dict[str, Rows] = {"left": {}, "right": {}}
    with InterleavingDriver(Application("app", builder), chance, **options) as driver:
        for number in range(50):
            topic, key, value = some_update(chance)
            driver.pipe(topic, key, value, timestamp=number)
            folded([(key, value)], tables[topic])
            for _ in range(chance.choice([0, 1, 1, 5])):
                driver.step()
        driver.finish()
        expected = joined(tables["left"], tables["right"], is_left=is_left)
        assert folded(driver.read_all("out")) == expected
        if joined_again:
            again = {key: [value, tables["left"][key]] for key, value in expected.items()}
            assert folded(driver.read_all("again")) == again
        # What no left row refers to any more is forgotten.
        stores = [driver.store("refers-subscription-store", each) for each in range(driver.partitions_of("right"))]
        subscriptions = [value.value for store in stores for _, value in store.all()]
        assert sorted(each.key for each in subscriptions) == sorted(
            key for key, value in tables["left"].items() if reference(value) is not None
        )


@pytest.mark.parametrize("seed", range(10))
def test_of_versioned_tables_the_rows_with_the_highest_timestamps_are_joined(seed: int) -> None:
    chance = random.Random(seed)
    builder = StreamsBuilder()
    left = builder.table("left", versioned_store("l", history_retention="1s"), value_serde="json")
    right = builder.table("right", versioned_store("r", history_retention="1s"), value_serde="json")
    is_left = chance.random() < 0.5
    join: Any = left.left_join if is_left else left.join
    join(right, both, foreign_key=reference).to_stream().to("out", value_serde="json")
    latest: dict[str, Rows] = {"left": {}, "right": {}}
    with TopologyTestDriver(Application("app", builder), reopen_tasks=True) as driver:
        for _ in range(30):
            topic, key, value = some_update(chance)
            timestamp = chance.randint(0, 30)
            driver.pipe(topic, key, value, timestamp=timestamp)
            if timestamp >= latest[topic].get(key, (None, -1))[1]:
                latest[topic][key] = value, timestamp
        rows = [{key: value for key, (value, _) in each.items() if value is not None} for each in latest.values()]
        assert folded(driver.read_all("out")) == joined(*rows, is_left=is_left)


@pytest.mark.parametrize("verb", ["join", "left_join"])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_right_row_that_was_never_sent_is_in_no_answer(verb: str, backwards: bool) -> None:
    """It came and went between two commits, so no update of the record cache took it out of the result again."""
    builder = StreamsBuilder()
    left = builder.table("left", value_serde="json")
    right: KTable[Any, Any] = builder.stream("right", value_serde="json").to_table("rows", value_serde="json")
    join = getattr(left, verb)(right, both, foreign_key=reference, name="refers", value_serde="json")
    join.to_stream().to("out", value_serde="json")
    with TopologyTestDriver(Application("app", builder), commit_every=9) as driver:
        if backwards:
            driver.pipe("right", "x", 0, timestamp=0)
        (of_right,) = {task.subtopology for task, inputs in driver._tasks.items() if ("right", 0) in inputs}
        driver.pause(of_right)
        driver.pipe("right", "x", 1, timestamp=1)
        driver.pipe("left", "a", ["x", 2], timestamp=2)
        driver.pipe("right", "x", 0 if backwards else None, timestamp=3)
        driver.resume()
        expected = {"a": [["x", 2], 0 if backwards else None]} if backwards or verb == "left_join" else {}
        assert folded(driver.read_all("out")) == expected


@pytest.mark.parametrize("verb", ["join", "left_join"])
def test_a_left_row_that_was_never_sent_makes_no_answer_stale(verb: str) -> None:
    """It came and went while a deletion waited for its answer, which was dropped: the result stayed for ever."""
    builder = StreamsBuilder()
    left: KTable[Any, Any] = builder.stream("left", value_serde="json").to_table("rows", value_serde="json")
    right = builder.table("right", value_serde="json")
    join = getattr(left, verb)(right, both, foreign_key=reference, name="refers", value_serde="json")
    join.to_stream().to("out", value_serde="json")
    with TopologyTestDriver(Application("app", builder), commit_every=9) as driver:
        of = {topic: task.subtopology for task, inputs in driver._tasks.items() for topic, _ in inputs}
        driver.pipe("right", "x", 0, timestamp=0)
        driver.pipe("left", "a", ["x", 1], timestamp=1)
        driver.pause(of["right"])
        driver.pipe("left", "a", None, timestamp=10)
        driver.pause(of["left"])
        driver.resume(of["right"])
        driver.pipe("left", "a", ["z", 2], timestamp=5)
        driver.pipe("left", "a", None, timestamp=11)
        driver.resume()
        assert folded(driver.read_all("out")) == {}


def test_the_key_may_be_part_of_the_reference() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left"), builder.table("right")
    made = left.join(
        right,
        lambda key, one, other: f"{key}: {one}{other}",
        foreign_key=lambda key, value: key[0],
        with_key=True,
    )
    made.to_stream().to("out")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("right", "a", "!", timestamp=1)
        driver.pipe("left", "apple", "red", timestamp=2)
        assert driver.read_all("out")[0][:3] == ("apple", "apple: red!", 2)


def test_partitioners_get_the_key_alone() -> None:
    seen: list[Any] = []

    def last(topic: str, record: Any, count: int) -> int:
        seen.append((topic.partition("-")[2], record.key, record.value))
        return count - 1

    builder = StreamsBuilder()
    left, right = builder.table("left"), builder.table("right")
    made = left.join(
        right,
        lambda one, other: one + other,
        foreign_key=lambda value: value,
        partitioner=last,
        other_partitioner=last,
        name="j",
    )
    made.to_stream().to("out")
    with TopologyTestDriver(builder, partitions={"left": 2, "right": 3}) as driver:
        driver.pipe("right", "x", "!", timestamp=1, partition=2)
        driver.pipe("left", "a", "x", timestamp=2, partition=1)
        assert [each.value for each in driver.read_all("out")] == ["x!"]
    assert seen == [("j-subscription-registration-topic", "x", None), ("j-subscription-response-topic", "a", None)]


def test_the_names_follow_the_name_of_the_join() -> None:
    program_ = program(is_left=False, store=None, joined_again=False).build().build()
    assert set(program_.internal_topics) == {
        "refers-subscription-registration-topic",
        "refers-subscription-response-topic",
    }
    assert "refers-subscription-store" in program_.stores


def test_a_value_has_the_same_hash_before_it_was_written_and_after_it_was_read() -> None:
    serde = PickleSerde()
    digest = compile_hash(serde)
    grown = set(range(200))  # It keeps its large table, in which the order is another one.
    for each in set(range(200)) - {1, 64}:
        grown.remove(each)
    read = serde.deserialize(serde.serialize(grown))
    assert serde.serialize(read) != serde.serialize(grown)
    assert digest(grown) == digest(read) != digest({1})
    assert digest(None) is None


def not_a_function(builder: StreamsBuilder) -> Any:
    return builder.table("a").join(builder.table("b"), both, foreign_key="customer")  # type: ignore[call-overload]


def key_and_value(builder: StreamsBuilder) -> Any:
    return builder.table("a").left_join(builder.table("b"), both, foreign_key=lambda key, value: value)  # type: ignore[arg-type, misc]


def a_stream(builder: StreamsBuilder) -> Any:
    return builder.table("a").left_join(builder.stream("b"), both, foreign_key=len)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (not_a_function, r"join: expected a foreign_key of \(value\), found 'customer'"),
        (key_and_value, r"left_join: its foreign_key is called with \(value\).*with_key=True gives it the key first"),
        (a_stream, "left_join: expected a KTable, found a KStream"),
    ],
)
def test_errors_of_newcomers(write: Callable[[StreamsBuilder], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        write(StreamsBuilder())
