"""Serdes that are made of others: what is said to one of them reaches those inside."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Serde, StrSerde, WrappingSerde
from penstock.plugins.dsl import SessionWindowedSerde, StreamsBuilder, TimeWindowedSerde, tumbling
from penstock.plugins.dsl.operators.aggregate.table_aggregate import ChangeSerde
from penstock.plugins.dsl.operators.foreign_key_messages import ResponseSerde, SubscriptionSerde
from penstock.plugins.dsl.operators.suppress import BufferedSerde
from penstock.plugins.dsl.operators.waiting import SideSerde, TimedKeySerde, ValueAndHeadersSerde, WaitingKeySerde
from penstock.plugins.serdes.list import ListSerde
from penstock.plugins.testing import TopologyTestDriver
from penstock.program.in_flight import PendingKeySerde, PendingRecordSerde
from penstock.program.row_serde import RowSerde
from penstock.program.serdes import resolve_serde


class OfTopic(Serde[str]):
    """Text with the topic in front, as a serde of a registry writes the number of the topic's schema."""

    topic = "-"

    def serialize(self, value: str) -> bytes:
        return f"{self.topic}:{value}".encode()

    def deserialize(self, data: bytes) -> str:
        topic, _, value = data.decode().rpartition(":")
        assert topic == self.topic
        return value

    def bind(self, topic: str, *, is_key: bool) -> Serde[str]:
        made = OfTopic()
        made.topic = f"{topic}-{'key' if is_key else 'value'}"
        return made

    def written_form(self) -> str:
        return "OfTopic"


def bound(serde: Serde[Any]) -> Serde[Any]:
    return resolve_serde(serde, None, "test")


WRAPPING: list[Serde[Any]] = [
    TimeWindowedSerde(OfTopic(), 5),
    SessionWindowedSerde(OfTopic()),
    ChangeSerde(OfTopic()),
    BufferedSerde(OfTopic()),
    SubscriptionSerde(OfTopic()),
    ResponseSerde(OfTopic()),
    WaitingKeySerde(bound(OfTopic())),
    SideSerde(bound(OfTopic()), bound(OfTopic())),
    TimedKeySerde(bound(OfTopic())),
    ValueAndHeadersSerde(bound(OfTopic())),
    ListSerde(OfTopic()),
    PendingKeySerde(bound(OfTopic())),
    PendingRecordSerde(bound(OfTopic())),
]


def inner(serde: Serde[Any]) -> list[Serde[Any]]:
    return [each for each in vars(serde).values() if isinstance(each, Serde)]


def classes(serde: type[object]) -> set[type[object]]:
    return {serde}.union(*map(classes, serde.__subclasses__()))


@pytest.mark.parametrize("serde", WRAPPING, ids=lambda serde: type(serde).__name__)
def test_bound_to_a_topic_the_serdes_inside_are_bound_too(serde: Serde[Any]) -> None:
    made = serde.bind("orders", is_key=False)
    assert type(made) is type(serde)
    of_subscription = isinstance(serde, SubscriptionSerde)
    assert [each.serialize("x") for each in inner(made)] == [
        b"orders-pk-key:x" if of_subscription else b"orders-value:x" for _ in inner(serde)
    ]
    assert all(each.serialize("x") == b"-:x" for each in inner(serde)), "the one that was bound stays as it was"
    assert made.written_form() == serde.written_form()


def test_these_are_all_serdes_that_are_made_of_others() -> None:
    found = {each for each in classes(WrappingSerde) if each.__module__.startswith("penstock.")}
    ours = {each for each in found if not each.__name__.startswith("_")} - {RowSerde, WrappingSerde}
    assert ours == {type(each) for each in WRAPPING}


def test_a_serde_inside_of_windowed_keys_learns_their_topic() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", key_serde=StrSerde()).group_by_key().windowed_by(tumbling("10s", grace="0s")).count()
    counts.to_stream().to("out", key_serde=TimeWindowedSerde(OfTopic(), 10_000), value_serde="int")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", "anna", "x", 5)
        (record,) = driver.output_topic("out", key_serde="bytes").read_all()
    assert record.key.startswith(b"out-key:anna")
