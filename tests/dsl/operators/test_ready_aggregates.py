"""The ready aggregates of `agg`: what plain Python makes of the same values, on streams, sessions and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import Application, TopologyError, skip
from penstock.dsl import (
    StreamsBuilder,
    collect_of,
    collect_set,
    count_distinct,
    histogram,
    last_of,
    latest,
    max_by,
    min_by,
    sessions,
    top,
)
from penstock.plugins.testing import TopologyTestDriver

NAN = float("nan")
ITEMS = st.none() | st.sampled_from([0, 1, True, 1.0, -0.0, NAN, "a", b"a", ("a", 1), 2.5])
ROWS = st.lists(st.tuples(ITEMS, st.none() | st.integers(0, 3) | st.sampled_from([NAN, 0.5])), max_size=12)

COLUMNS: dict[str, Any] = {
    "histogram": histogram("item"),
    "count": count_distinct("item"),
    "set": collect_set("item"),
    "rows": collect_set(lambda row: [row["item"], {"rank": row["rank"]}]),
    "top": top(3, by="rank"),
    "top_items": top(2, "item", by=lambda row: row["rank"]),
    "top_ranks": top(3, "rank"),
    "latest": latest(3, "item"),
    "latest_by": latest(3, "item", by="rank"),
    "max_by": max_by("item", "rank"),
    "min_by": min_by("item", by="rank"),
}


def is_one(one: Any, other: Any) -> bool:
    """Return whether two items are one value."""
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(map(is_one, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_one(one[each], other[each]) for each in one)
    return bool(one == other) or (one != one and other != other)


def distinct(items: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if item is not None and not any(is_one(item, each) for each in found):
            found.append(item)
    return found


def times(items: Sequence[Any]) -> dict[Any, int]:
    return {each: sum(item is not None and is_one(item, each) for item in items) for each in distinct(items)}


def made_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the aggregates of rows that were processed in this order."""
    items = [row["item"] for row in rows]
    ranked = [row for row in rows if row["rank"] is not None and not math.isnan(row["rank"])]
    named = [row for row in ranked if row["item"] is not None]
    falling = sorted(ranked, key=lambda row: -row["rank"])  # sorts are stable: the first stays in front
    rising = sorted(named, key=lambda row: row["rank"])
    of_items = [row["item"] for row in sorted(named, key=lambda row: -row["rank"])]
    return {
        "histogram": times(items),
        "count": len(distinct(items)),
        "set": distinct(items),
        "rows": distinct([[row["item"], {"rank": row["rank"]}] for row in rows]),
        "top": falling[:3],
        "top_items": of_items[:2],
        "top_ranks": [row["rank"] for row in falling[:3]],
        "latest": [each for each in items if each is not None][-3:],
        "latest_by": [row["item"] for row in rising][-3:],
        "max_by": of_items[0] if named else None,
        "min_by": rising[0]["item"] if named else None,
    }


def shown(value: Any) -> str:
    """Return a text that is the same for equal values of the same types; repr has NaN, -0.0 and 1.0 as they are."""
    return repr(value)


@pytest.mark.parametrize("reopen", [False, True], ids=["", "reopened"])
@given(ROWS)
@example([(NAN, 1), (NAN, NAN), (1, 1), (True, 1), (1.0, 0.5), (None, 3), ("a", None)])
def test_of_a_stream(reopen: bool, pairs: list[tuple[Any, Any]]) -> None:
    builder = StreamsBuilder()
    table = builder.stream("in", value_serde="msgpack").group_by_key().agg("all", **COLUMNS)
    table.to_stream().to("out", value_serde="msgpack")
    rows = [{"item": item, "rank": rank} for item, rank in pairs]
    with TopologyTestDriver(builder, reopen_tasks=reopen) as driver:
        driver.pipe_many("in", [("k", row) for row in rows])
        found = driver.read_values("out")
    assert [shown(each) for each in found] == [shown(made_of(rows[: n + 1])) for n in range(len(rows))]


@given(st.lists(st.tuples(st.integers(0, 30), ITEMS, st.integers(0, 3)), max_size=12))
def test_of_sessions_that_merge(steps: list[tuple[int, Any, int]]) -> None:
    """The rows of a session are in the order in which its parts were merged, those of the earlier end first."""
    builder = StreamsBuilder()
    windows = builder.stream("in", value_serde="msgpack").group_by_key().windowed_by(sessions(gap="2ms", grace="1h"))
    table = windows.agg("all", retention="2h", **COLUMNS, rows_of=collect_of())
    table.to_stream().filter(lambda value: value is not None).to("out", key_serde="session:str", value_serde="msgpack")
    with TopologyTestDriver(builder) as driver:
        driver.pipe_many("in", [("k", {"item": item, "rank": rank}, at) for at, item, rank in steps])
        for _, value in driver.read_pairs("out"):
            expected = made_of(value.pop("rows_of"))
            assert {shown(each) for each in value.pop("histogram").items()} == {
                shown(each) for each in expected.pop("histogram").items()
            }
            assert shown(value) == shown(expected)


OF_TABLES = ("histogram", "count", "set", "rows")
UPDATES = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.tuples(st.sampled_from("xy"), ITEMS)), max_size=20)


@pytest.mark.parametrize("cached", [False, True], ids=["uncached", "cached"])
@given(UPDATES)
@example([("a", ("x", 1)), ("b", ("x", True)), ("a", ("x", 1.0)), ("b", None), ("a", ("y", NAN)), ("a", ("y", NAN))])
def test_of_a_grouped_table(cached: bool, updates: list[tuple[str, Any]]) -> None:
    builder = StreamsBuilder()
    groups = builder.table("rows", value_serde="msgpack").group_by(lambda row: row["group"], name="groups")
    chosen = {name: COLUMNS[name] for name in OF_TABLES}
    groups.agg("all", cached=cached, **chosen).to_stream().to("out", value_serde="msgpack")
    rows: dict[str, Any] = {}
    with TopologyTestDriver(builder, reopen_tasks=True) as driver:
        for key, update in updates:
            row = None if update is None else {"group": update[0], "item": update[1], "rank": 1}
            driver.pipe("rows", key, row)
            rows[key] = row
        last = dict(driver.read_pairs("out"))
    for group, value in last.items():
        expected = made_of([row for row in rows.values() if row is not None and row["group"] == group])
        assert value["count"] == expected["count"]
        assert value["histogram"].keys() - {NAN} == {each for each in expected["histogram"] if each == each} or any(
            each != each for each in value["histogram"]
        )
        assert sorted(map(form, value["histogram"].items())) == sorted(map(form, expected["histogram"].items()))
        assert sorted(map(form, value["set"])) == sorted(map(form, expected["set"]))
        assert len(value["rows"]) == len(expected["rows"])


def form(value: Any) -> str:
    """Return one text for all forms of one value."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int) and not isinstance(value[0], str):
        return f"{form(value[0])}: {value[1]}"
    return (
        "nan" if value != value else repr(float(value) + 0.0) if isinstance(value, (bool, int, float)) else repr(value)
    )


BOUNDED: dict[str, Callable[[], Any]] = {
    "top": lambda: top(3, "item"),
    "latest": lambda: latest(3, "item"),
    "latest by": lambda: latest(3, "item", by="rank"),
    "max_by": lambda: max_by("item", "rank"),
    "min_by": lambda: min_by("item", "rank"),
    "last_of": lambda: last_of("item"),
}


@pytest.mark.parametrize("case", BOUNDED)
def test_what_keeps_a_few_values_is_refused_for_a_grouped_table(case: str) -> None:
    groups = StreamsBuilder().table("rows").group_by(lambda row: row["group"], name="groups")
    with pytest.raises(TopologyError, match=r"agg \(node 'best'\): few cannot be taken back .* aggregate\("):
        groups.agg("kept", few=BOUNDED[case](), all=histogram("item"), name="best")
    with pytest.raises(TopologyError, match=r"agg \(store 'kept'\): few cannot be taken back"):
        groups.agg("kept", few=BOUNDED[case]())


def test_state_has_as_many_as_the_name_promises() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", value_serde="json").group_by_key()
    few = grouped.agg("few", top=top(3), latest=latest(2), by=latest(2, by=lambda value: -value), most=max_by(by=abs))
    few.to_stream().to("out", value_serde="json")
    with TopologyTestDriver(builder) as driver:
        driver.pipe_many("in", [("k", number) for number in range(100)])
        state = driver.store("few").get("k").value
        assert state == {
            "top": [[99, 99], [98, 98], [97, 97]], "latest": [98, 99], "by": [[-1, 1], [0, 0]], "most": [99, 99],
        }  # fmt: skip


@pytest.mark.parametrize(("before", "after"), [(5, 2), (2, 5)])
def test_another_number_over_the_same_state(before: int, after: int) -> None:
    """A program with another `n` shows at most that many of what the one before kept."""

    def columns(n: int) -> dict[str, Any]:
        return {
            "top": top(n),
            "latest": latest(n),
            "by": latest(n, by=lambda value: -value),
            "last": collect_of(limit=n),
        }

    old, new = columns(before), columns(after)
    states: dict[str, Any] = dict.fromkeys(old)
    for value in range(6):
        states = {name: column.taken(states[name], value) for name, column in old.items()}
    kept = {name: column.shown(states[name]) for name, column in old.items()}
    few = min(before, after)
    assert {name: column.shown(states[name]) for name, column in new.items()} == {
        name: each[:few] if name == "top" else each[-few:] for name, each in kept.items()
    }
    states = {name: column.taken(states[name], 9) for name, column in new.items()}
    assert {name: len(state) for name, state in states.items()} == dict.fromkeys(states, min(after, before + 1))


def test_results_of_nothing_are_ones_own() -> None:
    builder = StreamsBuilder()
    table = (
        builder.stream("in", value_serde="json").group_by_key().agg("all", found=histogram("item"), top=top(2, "item"))
    )

    def mark(value: dict[str, Any]) -> dict[str, Any]:
        value["found"]["marked"] = 1
        value["top"].append("marked")
        return value

    table.to_stream().map_values(mark).to("out", value_serde="json")
    with TopologyTestDriver(builder) as driver:
        driver.pipe_many("in", [("a", {"item": None}), ("b", {"item": None})])
        assert driver.read_values("out") == [{"found": {"marked": 1}, "top": ["marked"]}] * 2


def test_a_value_that_is_no_key_of_a_dict_is_a_failed_record() -> None:
    builder = StreamsBuilder()
    table = builder.stream("in", value_serde="json").group_by_key().agg("all", found=histogram())
    table.to_stream().map_values(lambda value: value["found"]).to("out", value_serde="msgpack")
    with TopologyTestDriver(builder) as driver, pytest.raises(Exception, match="histogram: .* cannot be a key"):
        driver.pipe("in", "a", {"x": 1})
    with TopologyTestDriver(Application("app", builder, processing_handler=skip)) as driver:
        driver.pipe_many("in", [("a", 1), ("a", [1]), ("a", 1)])
        assert driver.read_values("out")[-1] == {1: 2}


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "top of no number": (lambda: top("price"), r"top: expected a number .* write top\(3"),  # type: ignore[arg-type]
    "top of 0": (lambda: top(0), "top: expected a number of at least 1"),
    "latest of True": (lambda: latest(True), "latest: expected a number"),
    "max_by of nothing": (lambda: max_by("item"), r"max_by: say what to compare.*max_of"),
    "min_by of nothing": (lambda: min_by("item"), r"min_by: say what to compare.*min_of"),
    "by two values": (lambda: top(2, by=divmod), "top: its field or function is called with"),  # type: ignore[arg-type]
    "part of two values": (lambda: histogram(divmod), "histogram: its field"),  # type: ignore[arg-type]
    "latest part": (lambda: latest(2, divmod), "latest: its field"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_at_once(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(TopologyError, match=message):
        make()
