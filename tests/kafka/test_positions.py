"""Committed positions that are damaged, of a newer version, or set by somebody else; and somebody else in the
application's group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from penstock.errors import LogError
from penstock.plugins.logs.kafka.positions import from_kafka, position_of, task_of
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import TopicPartition

from ..bad_input.world import says
from ..waiting import wait_until
from .clients import QUIET
from .shop import Shop


@pytest.fixture
def shop(broker: KafkaBroker, tmp_path: Path) -> Shop:
    """Two orders are processed, and one waits."""
    shop = Shop(broker.bootstrap, tmp_path)
    shop.sell(("ann", 1), ("ann", 2))
    shop.run()
    shop.sell(("ann", 3))
    return shop


@contextmanager
def member(broker: KafkaBroker, group: str) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False, **QUIET}
    consumer = Consumer(settings)
    yield consumer
    consumer.close()


def committed(broker: KafkaBroker, shop: Shop) -> KafkaPartition:
    with member(broker, shop.id) as consumer:
        return consumer.committed([KafkaPartition(shop.orders, 0)], timeout=30)[0]


def overwrite(broker: KafkaBroker, shop: Shop, offset: int, metadata: str | None) -> None:
    partition = KafkaPartition(shop.orders, 0, offset)
    if metadata is not None:
        partition = KafkaPartition(shop.orders, 0, offset, metadata=metadata)
    with member(broker, shop.id) as consumer:
        consumer.commit(offsets=[partition], asynchronous=False)


def damaged(text: str) -> str:
    return text.replace('"version":"00', '"version":"10')


def cut_off(text: str) -> str:
    return text[:40]


def newer(text: str) -> str:
    return json.dumps({**json.loads(text), "penstock": 2})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damaged, "its metadata is damaged"),
        (cut_off, "its metadata is damaged"),
        (newer, "was written by a newer version of penstock"),
    ],
)
def test_damaged_metadata(broker: KafkaBroker, shop: Shop, change: object, message: str) -> None:
    wait_until(lambda: committed(broker, shop).offset == 2)
    good = committed(broker, shop).metadata
    assert good is not None and callable(change)
    overwrite(broker, shop, 2, change(good))
    for _ in range(2):
        with pytest.raises(LogError) as caught:
            shop.run()
        says(caught.value, "task 0_0", f"{shop.orders}-0", message, "Nothing was changed", "penstock reset")
        assert committed(broker, shop).offset == 2
        assert shop.sold() == [("ann", "1"), ("ann", "3")]
    overwrite(broker, shop, 2, good)
    shop.is_exact()


def test_set_by_another_program(broker: KafkaBroker, shop: Shop) -> None:
    """As by `kafka-consumer-groups --reset-offsets`."""
    wait_until(lambda: committed(broker, shop).offset == 2)
    overwrite(broker, shop, 0, None)
    with pytest.raises(LogError) as caught:
        shop.run()
    says(caught.value, f"{shop.orders}-0 (offset 0)", "were set by another program", "penstock reset")
    assert shop.sold() == [("ann", "1"), ("ann", "3")]
    with shop.log() as log:
        log.set_positions(shop.id, {TopicPartition(shop.orders, 0): 2})
    shop.run()
    # What `penstock reset` does to the state is its own business; here there is none any more.
    assert shop.sold() == [("ann", "1"), ("ann", "3"), ("ann", "3")]


def test_somebody_else_in_the_group(broker: KafkaBroker, shop: Shop) -> None:
    with member(broker, shop.id) as consumer:
        consumer.subscribe([shop.orders])
        wait_until(lambda: bool(consumer.poll(0.1)) or bool(consumer.assignment()))
        with shop.log() as log:
            for doing in (lambda: log.lease(shop.id, "a driver", 1_000), lambda: log.delete_commits(shop.id)):
                with pytest.raises(LogError) as caught:
                    doing()
                says(caught.value, f"consumer group '{shop.id}' has members", "stop them", "another id")
    with shop.log() as log:
        log.lease(shop.id, "a driver", 1_000).release()


class OfAnotherProgram:
    """A position whose metadata is no text, as Java Kafka Streams' is. confluent-kafka cannot write it."""

    topic, partition, offset = "orders", 0, 7

    @property
    def metadata(self) -> str:
        return b"\x02\xff".decode()


def test_metadata_that_is_no_text_is_another_programs() -> None:
    found: Any = OfAnotherProgram()
    assert position_of(found) == 7
    assert task_of(found) is None
    with pytest.raises(LogError, match=r"committed positions of orders-0 \(offset 7\) were set by another program"):
        from_kafka("0_0", [found])
