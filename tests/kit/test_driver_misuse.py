"""The test driver refuses what cannot be meant, and says what to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock import Application, DeadLetter, PenstockError, Record, Topology, UnknownTopicError
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver

from ..bad_input.world import says


def program() -> Topology:
    return (
        Topology()
        .add_source("orders", "orders", value_serde="int")
        .add_repartition("by-key", "orders", value_serde="int")
        .add_sink("out", "totals-by-customer", "by-key", value_serde="int")
    )


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(program(), processing_handler=DeadLetter("dead")) as made:
        yield made


Misuse = Callable[[Any], Any]

REFUSED: dict[str, tuple[Misuse, tuple[str, ...]]] = {
    "a datetime": (
        lambda d: d.pipe("orders", "ann", 1, datetime(2026, 1, 1)),
        ("topic 'orders'", "timestamp", "milliseconds", "datetime", "int(WHEN.timestamp() * 1000)"),
    ),
    "a datetime by name": (lambda d: d.pipe("orders", "ann", 1, timestamp=datetime(2026, 1, 1)), ("timestamp",)),
    "a length of time": (lambda d: d.pipe("orders", "ann", 1, timedelta(seconds=1)), ("timestamp", "timedelta")),
    "seconds": (lambda d: d.pipe("orders", "ann", 1, 1.5), ("timestamp", "1.5")),
    "a text": (lambda d: d.pipe("orders", "ann", 1, "1"), ("timestamp", "'1'")),
    "a datetime of a handle": (lambda d: d.input_topic("orders").pipe("a", 1, datetime.now()), ("timestamp",)),
    "a datetime among many": (lambda d: d.pipe_many("orders", [Record("a", 1, datetime.now())]), ("timestamp",)),  # type: ignore[arg-type]
    "headers in a dict": (
        lambda d: d.pipe("orders", "ann", 1, 0, {"a": b"b"}), ("topic 'orders'", "headers", "HEADERS.items()"),
    ),
    "a header of text": (lambda d: d.pipe("orders", "ann", 1, 0, (("a", "b"),)), ("headers", "bytes")),
    "no record": (lambda d: d.pipe_many("orders", ["ann"]), ("expected a Record", "'ann'")),
    "a value alone": (lambda d: d.pipe_all("orders", [1]), ("expected a Record", "found 1")),
    "a partition that there is not": (
        lambda d: d.pipe("orders", "ann", 1, partition=7), ("partition 7", "expected 0 to 0, or None"),
    ),
    "a partition as text": (lambda d: d.pipe("orders", "ann", 1, partition="0"), ("partition '0'",)),
    "a key of another type": (lambda d: d.pipe("orders", 5, 1), ("source 'orders'", "key", "serde 'str'")),
    "a value of another type": (lambda d: d.pipe("orders", "ann", "1"), ("source 'orders'", "value", "serde 'int'")),
    "a clock that is none": (
        lambda d: TopologyTestDriver(program(), initial_wall_clock_ms=datetime.now()),  # type: ignore[arg-type]
        ("initial_wall_clock_ms", "milliseconds"),
    ),
    "partitions as text": (
        lambda d: TopologyTestDriver(program(), partitions="2"), ("partitions", "'2'"),  # type: ignore[arg-type]
    ),
    "partitions of another topic": (
        lambda d: TopologyTestDriver(program(), partitions={"ordres": 2}), ("partitions", "'ordres'", "'orders'"),
    ),
    "a class": (lambda d: TopologyTestDriver(Topology), ("found the class Topology", "Topology()")),  # type: ignore[arg-type]
    "a class of an application": (
        lambda d: Application("shop", StreamsBuilder), ("found the class StreamsBuilder",),  # type: ignore[arg-type]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused(case: str, driver: TopologyTestDriver) -> None:
    misuse, parts = REFUSED[case]
    with pytest.raises(PenstockError) as caught:
        misuse(driver)
    says(caught.value, *parts)
    driver.pipe("orders", "ann", 3, timestamp=7)
    assert driver.read_all("totals-by-customer") == [Record("ann", 3, 7)], "nothing of it was sent"


@pytest.mark.parametrize("read", ["read", "read_all", "output_topic"])
def test_a_topic_that_nothing_writes_is_an_error(read: str, driver: TopologyTestDriver) -> None:
    with pytest.raises(UnknownTopicError) as caught:
        getattr(driver, read)("totals-by-custmer")
    says(caught.value, "no sink writes topic 'totals-by-custmer'", "did you mean 'totals-by-customer'?")


def test_topics_that_may_get_records_are_empty_before(driver: TopologyTestDriver) -> None:
    for topic in ("totals-by-customer", "orders", "dead", "test-by-key-repartition"):
        assert driver.read_all(topic) == []
    chosen = Topology().add_source("in", "in").add_sink("out", lambda record, metadata: record.value, "in")
    with TopologyTestDriver(chosen) as choosing:
        assert choosing.read_all("any") == []


def test_tuples_of_a_records_parts_are_records(driver: TopologyTestDriver) -> None:
    driver.pipe_all("orders", [("ann", 1), ("ann", 2, 5)])
    driver.pipe_many("orders", [("ann", 3, 6, (("a", b"b"),))])
    assert driver.read_all("totals-by-customer") == [
        Record("ann", 1, 0), Record("ann", 2, 5), Record("ann", 3, 6, (("a", b"b"),)),
    ]  # fmt: skip
