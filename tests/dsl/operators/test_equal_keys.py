"""Keys that are equal in Python and have other bytes are other keys, whatever decides by key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from penstock import ProcessingError, Processor, Record, versioned_store
from penstock.plugins.dsl import StreamsBuilder, within
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


def waiting(joined: Callable[[StreamsBuilder], Any], pairs: list[Any]) -> list[str]:
    """Return the values that come out for two equal keys that wait at one time."""
    builder = StreamsBuilder()
    joined(builder).to("out", key_serde="msgpack", value_serde="str")
    with TopologyTestDriver(builder) as driver:
        for key, value, time in pairs:
            driver.pipe("in", key, value, time)
        return driver.read_values("out")


@PAIRS
def test_equal_keys_that_wait_in_a_join_leave_once(one: Any, other: Any) -> None:
    def left_join(builder: StreamsBuilder) -> Any:
        left, right = (builder.stream(topic, key_serde="msgpack", value_serde="str") for topic in ("in", "others"))
        return left.left_join(right, lambda value, none: value, within("10ms", grace="0s"), name="joined")

    times = [(one, "1", 5), (other, "2", 5), ("x", "x", 100), ("y", "y", 101), ("z", "z", 200)]
    assert sorted(waiting(left_join, times)) == ["1", "2", "x", "y"]

    def delayed(builder: StreamsBuilder) -> Any:
        table = builder.table(
            "rows", versioned_store("rows", history_retention="1h"), key_serde="msgpack", value_serde="str"
        )
        stream = builder.stream("in", key_serde="msgpack", value_serde="str")
        return stream.left_join(table, lambda value, none: value, grace="10ms", name="delayed")

    again = [(one, "1", 5), (other, "2", 5), ("x", "x", 100), (one, "0", 95), ("z", "z", 200), ("z", "z", 300)]
    assert sorted(waiting(delayed, again)) == ["0", "1", "2", "x", "z"]
