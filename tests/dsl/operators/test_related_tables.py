"""A table is joined with itself or with what is made of it, so one update reaches both sides of the join."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Application
from penstock.plugins.dsl import KTable, StreamsBuilder, sliding, tumbling
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import of_today
from ..interleaving import folded

Table = KTable[Any, Any]
Rows = dict[Any, Any]
KINDS = ["join", "left_join", "outer_join"]
FROM_THEIR_TOPICS: dict[str, Any] = {"changelog": "topic:", "topology_optimization": "reuse_ktable_source_topics"}


def half(value: int) -> int | None:
    return value // 2 if value % 2 == 0 else None


def is_small(value: int) -> bool:
    return value < 3


def halves(rows: Rows) -> Rows:
    return {key: value // 2 for key, value in rows.items() if value % 2 == 0}


def small(rows: Rows) -> Rows:
    return {key: value for key, value in rows.items() if value < 3}


def copied(table: Table) -> Table:
    return table.to_stream().to_table("copy", value_serde="int")


Pair = tuple[Any, Any]
RELATED: dict[str, tuple[Callable[[Table, Table], Pair], Callable[[Rows, Rows], Pair]]] = {
    "itself": (lambda t, u: (t, t), lambda t, u: (t, t)),
    "mapped": (lambda t, u: (t, t.map_values(half)), lambda t, u: (t, halves(t))),
    "mapped, stored": (lambda t, u: (t.map_values(half, "half"), t), lambda t, u: (halves(t), t)),
    "filtered": (lambda t, u: (t.filter(is_small), t), lambda t, u: (small(t), t)),
    "filtered, stored": (lambda t, u: (t, t.filter(is_small, "small")), lambda t, u: (t, small(t))),
    "both made of it": (
        lambda t, u: (t.map_values(half, "half"), t.filter(is_small)),
        lambda t, u: (halves(t), small(t)),
    ),
    "both made of it, stored": (
        lambda t, u: (t.map_values(half, "half"), t.filter(is_small, "small")),
        lambda t, u: (halves(t), small(t)),
    ),
    "copied": (lambda t, u: (t, copied(t)), lambda t, u: (t, t)),
    "copied, first": (lambda t, u: (copied(t), t), lambda t, u: (t, t)),
    "joined": (lambda t, u: (t.join(u, both), u), lambda t, u: (joined("join", t, u), u)),
    "joined, stored": (lambda t, u: (t, t.join(u, both, "tu")), lambda t, u: (t, joined("join", t, u))),
}


def both(left: Any, right: Any) -> int:
    return 100 * (0 if left is None else left + 50) + (0 if right is None else right + 50)


def joined(kind: str, left: Rows, right: Rows) -> Rows:
    keys = {"join": left.keys() & right.keys(), "left_join": left.keys(), "outer_join": left.keys() | right.keys()}
    return {key: both(left.get(key), right.get(key)) for key in keys[kind]}


@pytest.mark.parametrize("related", RELATED)
@pytest.mark.parametrize("seed", of_today(range(24), 2))
def test_the_result_has_the_rows_of_the_moment(related: str, seed: int) -> None:
    chance = random.Random(seed)
    kind, is_stored, is_grouped = KINDS[seed % 3], chance.random() < 0.4, chance.random() < 0.7
    made, model = RELATED[related]
    builder = StreamsBuilder()
    one, two = (builder.table(topic, topic, value_serde="int") for topic in ("one", "two"))
    left, right = made(one, two)
    result = getattr(left, kind)(right, both, "result" if is_stored else None)
    result.to_stream().to("out", value_serde="int")
    if is_grouped:
        groups = result.group_by(lambda value: f"{value % 7}", value_serde="int", name="groups")
        groups.reduce(lambda a, v: a + v, lambda a, v: a - v, "sums").to_stream().to("sums", value_serde="int")
    options: dict[str, Any] = {
        "statestore_cache_max_bytes": chance.choice([0, 0, 500, 100_000]),
        "reopen_tasks": chance.random() < 0.3,
        "dsl_store_format": chance.choice(["default", "headers"]),
    }
    if chance.random() < 0.3:
        options |= FROM_THEIR_TOPICS
    tables: dict[str, Rows] = {"one": {}, "two": {}}
    out: Rows = {}
    sums: Rows = {}
    with TopologyTestDriver(Application("app", builder), **options) as driver:
        for number in range(25):
            topic, key = chance.choice(["one", "one", "two"]), chance.choice("ab")
            value = chance.choice([None, *range(5)])
            driver.pipe(topic, key, value, timestamp=number)
            folded([(key, value)], tables[topic])
            rows = joined(kind, *model(tables["one"], tables["two"]))
            assert folded(driver.read_all("out"), out) == rows
            if is_grouped:
                expected: Rows = {}
                for each in rows.values():
                    expected[f"{each % 7}"] = expected.get(f"{each % 7}", 0) + each
                found = folded(driver.read_all("sums"), sums)
                assert {group: total for group, total in found.items() if total} == expected


def test_a_table_that_its_topic_fills_is_joined_with_itself() -> None:
    builder = StreamsBuilder()
    table = builder.table("one", "one", value_serde="int")
    table.join(table, both).to_stream().to("out", value_serde="int")
    with TopologyTestDriver(builder, **FROM_THEIR_TOPICS) as driver:
        driver.pipe("one", "a", 1)
        assert folded(driver.read_all("out")) == {"a": both(1, 1)}
        driver.pipe("one", "a", None)
        assert [each.value for each in driver.read_all("out")][-1:] == [None]


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize(
    "windows", [tumbling("10ms", grace="0s"), sliding("5ms", grace="10ms")], ids=["tumbling", "sliding"]
)
def test_windows_that_lose_their_row_leave_the_join(windows: Any, cached: bool) -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", value_serde="str").group_by_key().windowed_by(windows).count("n", cached=cached)
    few = counts.filter(lambda count: count < 2, "few", value_serde="int", cached=cached)
    few.join(counts, lambda one, other: one + other, "both", value_serde="int").to_stream(
        lambda window, _: f"{window.start}", with_key=True
    ).to("out", value_serde="int")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", "k", "x", timestamp=20)
        assert set(folded(driver.read_all("out")).values()) == {2}
        driver.pipe("in", "k", "x", timestamp=20)
        assert all(each.value is None for each in driver.read_all("out")[-1:])
        assert [row for _, row in driver.store("both").all()] == []


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("values", [[2, None], [2, 3], [2, 4, None], [3, None], [2, None, 2]], ids=str)
def test_the_last_update_is_the_row(values: list[int | None], cached: bool) -> None:
    builder = StreamsBuilder()
    numbers = builder.table("numbers", "numbers", value_serde="int")
    evens = numbers.map_values(half, "evens", value_serde="int", cached=cached)
    halved = evens.join(numbers, lambda half, number: half, "halved", value_serde="int", cached=cached)
    halved.to_stream().to("out", value_serde="int")
    with TopologyTestDriver(builder) as driver:
        for time, value in enumerate(values):
            driver.pipe("numbers", "k", value, timestamp=time)
        row = driver.store("halved").get("k")
        expected = None if values[-1] is None else half(values[-1])
        assert (None if row is None else row.value) == expected
        assert [None, *driver.read_values("out")][-1] == expected


@pytest.mark.parametrize("made", ["mapped", "filtered", "copied", "joined"])
@pytest.mark.parametrize("seed", of_today(range(24), 2))
def test_a_full_cache_sends_old_values_as_they_were_sent(made: str, seed: int) -> None:
    """The cache of a table fills the larger one below it, which then forwards keys that still wait in the first."""
    chance = random.Random(seed)
    kind = KINDS[seed % 3]
    builder = StreamsBuilder()
    one = builder.table("one", "one", value_serde="int")
    wide = one.map_values(lambda value: f"{value}".rjust(200) if value else None, "wide", value_serde="str")
    other = {
        "mapped": lambda: wide,
        "filtered": lambda: wide.filter(lambda text: str(text).strip() != "1", "filtered"),
        "copied": lambda: wide.to_stream().to_table("copy", value_serde="str"),
        "joined": lambda: wide.join(one, lambda text, value: text, "joined", value_serde="str"),
    }[made]()
    left, right = (one, other) if chance.random() < 0.5 else (other, one)
    result = getattr(left, kind)(right, lambda a, b: [a, b], "result" if chance.random() < 0.4 else None)
    groups = result.group_by(lambda pair: "all", value_serde="json", name="groups")
    add, subtract = lambda all_, pair: [*all_, pair], lambda all_, pair: without(all_, pair)
    groups.aggregate(list, add, subtract, "all", value_serde="json").to_stream().to("all", value_serde="json")
    application = Application("app", builder, statestore_cache_max_bytes=chance.choice([700, 1_500, 3_000]))
    rows: Rows = {}
    with TopologyTestDriver(application, commit_every=100) as driver:
        for batch in range(3):
            records = [(chance.choice("abcdef"), chance.choice([None, *range(5)])) for _ in range(50)]
            driver.pipe_many("one", [(*each, 100 * batch + number) for number, each in enumerate(records)])
            folded(records, rows)
            texts = {key: f"{value}".rjust(200) for key, value in rows.items() if value}
            texts = {key: text for key, text in texts.items() if made != "filtered" or text.strip() != "1"}
            of_left, of_right = (rows, texts) if left is one else (texts, rows)
            keys = {"join": texts.keys(), "left_join": of_left.keys(), "outer_join": rows.keys()}[kind]
            expected = [[of_left.get(key), of_right.get(key)] for key in keys]
            assert sorted(driver.read_values("all")[-1], key=repr) == sorted(expected, key=repr)


def without(values: list[Any], value: Any) -> list[Any]:
    """Return values without one that has to be among them."""
    at = values.index(value)
    return values[:at] + values[at + 1 :]


@pytest.mark.parametrize("cache_bytes", [0, 100_000])
@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", of_today(range(12), 3))
def test_a_table_is_joined_with_its_suppressed_rows(seed: int, kind: str, is_stored: bool, cache_bytes: int) -> None:
    """Rows of other keys left between the two results of an update: the second one had a wrong previous value."""
    chance, builder = random.Random(seed), StreamsBuilder()
    one = builder.table("one", "one", value_serde="int")
    held = one.suppress("5ms", name="held", max_records=1 if seed % 4 > 1 else None)
    held.to_stream().to("held", value_serde="int")
    left, right = (one, held) if seed % 2 else (held, one)
    result = getattr(left, kind)(right, both, "result" if is_stored else None)
    groups = result.group_by(lambda value: f"{value % 7}", value_serde="int", name="groups")
    groups.reduce(lambda a, v: a + v, lambda a, v: a - v, "sums").to_stream().to("sums", value_serde="int")
    rows: Rows = {}
    held_rows: Rows = {}
    sums: Rows = {}
    application = Application("app", builder, statestore_cache_max_bytes=cache_bytes)
    with TopologyTestDriver(application, commit_every=3) as driver:
        for number in range(10):
            sent = [
                (chance.choice("ab"), chance.choice([None, *range(5)]), 4 * number + place)
                for place in range(chance.randint(1, 3))
            ]
            driver.pipe_many("one", sent)
            folded(sent, rows)
            if "held" in driver.output_topics():
                folded(driver.read_all("held"), held_rows)
            expected: Rows = {}
            for each in joined(kind, *((rows, held_rows) if seed % 2 else (held_rows, rows))).values():
                expected[f"{each % 7}"] = expected.get(f"{each % 7}", 0) + each
            if "sums" in driver.output_topics():
                folded(driver.read_all("sums"), sums)
            assert {group: total for group, total in sums.items() if total} == expected
