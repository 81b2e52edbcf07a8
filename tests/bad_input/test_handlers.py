"""Handlers that cannot work: dead letters that come back, and what cannot be sent to workers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock import (
    Application,
    ConfigError,
    DeadLetter,
    Decision,
    Failure,
    Retry,
    SendToDeadLetter,
    Topology,
    key_value_store,
    skip,
)
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver

from .world import Total, says, totals


class Fills(Total):
    def init(self, context: Any) -> None:
        self.context = context


PROGRAMS = {
    "orders": (totals(), "source 'orders' reads"),
    "orders-eu": (
        Topology().add_source("orders", pattern="orders-.*").add_sink("out", "out", "orders"),
        "source 'orders' reads (pattern 'orders-.*')",
    ),
    "prices": (
        Topology()
        .add_source("orders", "orders")
        .add_sink("out", "out", "orders")
        .add_global_store(key_value_store("prices"), "prices-source", "prices", "fill", Fills),
        "source 'prices-source' reads",
    ),
    "shop-by-key-repartition": (
        Topology().add_source("orders", "orders").add_repartition("by-key", "orders").add_sink("out", "out", "by-key"),
        "source 'by-key' reads",
    ),
}


@pytest.mark.parametrize("topic", PROGRAMS)
@pytest.mark.parametrize("handler", ["deserialization_handler", "processing_handler", "production_handler"])
def test_dead_letters_do_not_go_where_the_application_reads(topic: str, handler: str) -> None:
    topology, reads = PROGRAMS[topic]
    for decides in (DeadLetter(topic), Retry(2, then=DeadLetter(topic))):
        with pytest.raises(ConfigError) as caught:
            Application("shop", topology, {handler: decides})
        says(
            caught.value, f"setting '{handler}'", f"dead letters would go to topic {topic!r}", reads, "process", "again",
            "another topic",
        )  # fmt: skip
    Application("shop", topology, {handler: DeadLetter("dead-letters")})


def test_dead_letters_of_a_streams_builder_by_kafkas_name() -> None:
    builder = StreamsBuilder()
    builder.stream("orders").map_values(int).to("out")
    config = {"errors.dead.letter.queue.topic.name": "orders", "processing_handler": skip}
    with pytest.raises(ConfigError, match="setting 'processing_handler': its dead letters would go to topic 'orders'"):
        Application("shop", builder, config)


class BackWhereItCameFrom:
    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, failure: Failure) -> Decision:
        self.asked += 1
        assert failure.topic is not None and self.asked < 4, "it loops"
        return SendToDeadLetter(failure.topic)


def test_a_handler_of_ones_own_may_not_send_a_record_back() -> None:
    settings: dict[str, Any] = {"key_serde": "str", "value_serde": "str", "processing_handler": BackWhereItCameFrom()}
    with TopologyTestDriver(totals(), **settings) as driver, pytest.raises(Exception) as caught:
        driver.pipe("orders", "ann", "three")
    says(
        caught.value,
        "node 'total'",
        "processing handler",
        "SendToDeadLetter(topic='orders')",
        "the topic that it came from",
    )


class Closure:
    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __call__(self, failure: Failure) -> Decision:
        with self.lock:
            return SendToDeadLetter("dead-letters")


def test_the_test_driver_finds_what_cannot_be_sent_to_workers() -> None:
    lock = threading.Lock()

    def locked(value: str) -> str:
        with lock:
            return value

    builder = StreamsBuilder()
    builder.stream("orders").map_values(locked, name="lock").to("out")
    for program, settings, where in (
        (totals(), {"processing_handler": Closure(lock)}, "setting 'processing_handler'"),
        (builder, {}, "processor 'lock'"),
        (totals(), {"user": {"lock": lock}}, "setting 'user'"),
        (Topology().add_source("in", "in", timestamp_extractor=lambda *_: lock.locked()), {}, "source 'in'"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            TopologyTestDriver(program, **settings)
        says(caught.value, "cannot be sent to its task hosts", where, "lock", "in a processor's init")
