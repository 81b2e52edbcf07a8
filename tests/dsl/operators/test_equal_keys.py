"""Keys that are equal in Python and have other bytes are other keys, whatever decides by key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from penstock import ProcessingError, Processor, Record, versioned_store
from penstock.plugins.dsl import StreamsBuilder, within
from penstock.plugins.dsl.graph.names import is_same_key
from penstock.plugins.testing import TopologyTestDriver

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EQUAL = [
    (1, True),
    (1, 1.0),
    (Decimal("1.5"), Decimal("1.50")),
    (("x", 1), ("x", 1.0)),
    (("x", 1), ("x", True)),
    (NOON, NOON.astimezone(timezone(timedelta(hours=1)))),
    (0.0, -0.0),
]
PAIRS = pytest.mark.parametrize(("one", "other"), EQUAL, ids=str)


@PAIRS
def test_a_row_leaves_the_group_that_is_only_equal(one: Any, other: Any) -> None:
    builder = StreamsBuilder()
    groups = builder.table("in", "rows", value_serde="msgpack").group_by(lambda value: value, key_serde="msgpack")
    groups.count("counts", key_serde="msgpack").to_stream().to("out", key_serde="msgpack", value_serde="int")
    with TopologyTestDriver(builder, partitions=3) as driver:
        for time, value in enumerate((one, other, other)):
            driver.pipe("in", "k", value, time)
        found = {repr(record.key): record.value for record in driver.read_all("out")}
        assert found == {repr(one): 0, repr(other): 1}


@PAIRS
def test_process_values_refuses_a_key_that_is_only_equal(one: Any, other: Any) -> None:
    class Forward(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record.with_key(record.value))

    builder = StreamsBuilder()
    builder.stream("in", key_serde="msgpack", value_serde="msgpack").process_values(Forward).to(
        "out", value_serde="msgpack"
    )
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", one, one, 0)
        with pytest.raises(ProcessingError, match="forwards key"):
            driver.pipe("in", one, other, 1)


class Shown:
    """Is equal by what it has, and shows its address."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shown) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (Shown(1), Shown(1), True),
        (("x", Shown(1)), ("x", Shown(1)), True),
        (("x", Shown(1)), ("x", Shown(2)), False),
        (frozenset((1, 9, 17)), frozenset((17, 9, 1)), True),
        (frozenset((1, 2)), frozenset((1, 2.0)), False),
    ],
)
def test_keys_are_one_if_they_are_equal_and_shown_alike(one: Any, other: Any, is_same: bool) -> None:
    assert is_same_key(one, other) is is_same


def test_process_values_refuses_a_key_that_was_changed_in_place() -> None:
    class Change(Processor):
        def process(self, record: Record) -> None:
            if record.value:
                record.key["changed"] = True
            self.context.forward(record)

    builder = StreamsBuilder()
    builder.stream("in", key_serde="json", value_serde="int").process_values(Change).to("out", value_serde="int")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", {"id": 1}, 0, 0)
        with pytest.raises(ProcessingError, match="forwards key"):
            driver.pipe("in", {"id": 1}, 1, 1)


def left_over(joined: Callable[[StreamsBuilder], Any], store: str, pairs: list[Any]) -> tuple[list[str], list[Any]]:
    """Return the values that come out for two equal keys that wait at one time, and which values still wait."""
    builder = StreamsBuilder()
    joined(builder).to("out", key_serde="msgpack", value_serde="str")
    with TopologyTestDriver(builder) as driver:
        for key, value, time in pairs:
            driver.pipe("in", key, value, time)
        return sorted(driver.read_values("out")), [value for _, value in driver.store(store).all()]


@PAIRS
def test_equal_keys_that_wait_in_a_left_join_leave_once(one: Any, other: Any) -> None:
    def joined(builder: StreamsBuilder) -> Any:
        left, right = (builder.stream(topic, key_serde="msgpack", value_serde="str") for topic in ("in", "others"))
        return left.left_join(right, lambda value, none: value, within("10ms", grace="0s"), name="joined")

    pairs = [(one, "1", 5), (other, "2", 5), ("x", "x", 100), ("y", "y", 101)]
    values, waiting = left_over(joined, "joined-left-shared-join-store", pairs)
    assert values == ["1", "2"] and len(waiting) == 2


@PAIRS
def test_equal_keys_that_wait_for_a_table_leave_once(one: Any, other: Any) -> None:
    def joined(builder: StreamsBuilder) -> Any:
        rows = versioned_store("rows", history_retention="1h")
        table = builder.table("rows", rows, key_serde="msgpack", value_serde="str")
        stream = builder.stream("in", key_serde="msgpack", value_serde="str")
        return stream.left_join(table, lambda value, none: value, grace="10ms", name="delayed")

    values, waiting = left_over(joined, "delayed-Buffer", [(one, "1", 5), (other, "2", 5), ("x", "x", 100)])
    assert values == ["1", "2"] and len(waiting) == 1
