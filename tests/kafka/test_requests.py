"""How often a log asks its brokers: once for the positions of many tasks, and never again for what is purged."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

import pytest

from penstock.log import Commit
from penstock.plugins.logs.kafka import clients as clients_module
from penstock.plugins.logs.kafka import topics as topics_module
from penstock.plugins.logs.kafka.clients import Clients
from penstock.plugins.logs.kafka.committers import AtLeastOnce
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from ..waiting import wait_until
from .names import fresh_name


class Counted:
    """A consumer that counts the requests for positions."""

    def __init__(self, consumer: Any) -> None:
        self.consumer, self.asked = consumer, 0

    def committed(self, *arguments: Any, **options: Any) -> Any:
        self.asked += 1
        return self.consumer.committed(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.consumer, name)


@pytest.mark.parametrize(
    ("settings", "plain", "transactional"),
    [
        ({}, 5, 5),
        ({"sends.at.once": "true"}, 0, 200),
        ({"sends.at.once": "true", "producer.linger.ms": "7"}, "7", "7"),
        ({"sends.at.once": "true", "linger.ms": "7"}, "7", "7"),
    ],
)
def test_records_under_a_transaction_wait_for_others_where_the_others_do_not(
    settings: dict[str, str], plain: object, transactional: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(properties: dict[str, Any], **options: Any) -> Any:
        return properties["linger.ms"]

    monkeypatch.setattr(clients_module, "producer", made)
    clients = Clients("nowhere:9", settings)
    assert clients.producer() == plain
    assert clients.producer({"transactional.id": "app-0_0"}) == transactional


def test_positions_of_all_tasks_in_one_request(broker: KafkaBroker) -> None:
    with closing(KafkaLog(broker.bootstrap)) as log:
        name = fresh_name("in")
        log.create_topic(name, 5)
        partitions = [TopicPartition(name, number) for number in range(5)]
        counted = Counted(log._group(name, "read_committed"))
        log._positions[name, "read_committed"] = counted  # type: ignore[assignment]
        committers = [log.open_committer(name, f"0_{each.partition}", [each]) for each in partitions]
        for committer, partition in zip(committers, partitions, strict=True):
            committer.commit(Commit({partition: 1}, "v1"), [])
        counted.asked = 0
        assert log.are_current(committers) == [True] * 5
        assert counted.asked == 1
        with closing(log.open_committer(name, "0_1", partitions[1:2])) as successor:
            successor.commit(Commit({partitions[1]: 2}, "v2"), [])
        assert log.are_current(committers) == [True, False, True, True, True]
        for committer in committers:
            committer.close()
        assert log.are_current(committers) == [False] * 5


def test_what_was_purged_is_not_purged_again(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle application asks for the same purge after each batch."""
    sent: list[dict[TopicPartition, int]] = []
    monkeypatch.setattr(topics_module, "_PURGE_SECONDS", 0.0)
    below = topics_module._records_below

    def noted(purges: Any) -> Any:
        sent.append(dict(purges))
        return below(purges)

    monkeypatch.setattr(topics_module, "_records_below", noted)
    with closing(KafkaLog(broker.bootstrap)) as log:
        topic = fresh_name("in")
        log.create_topic(topic, 2)
        one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
        for partition in (one, two):
            log.append(OutputBatch(topic, [b"k"] * 10, [b"v"] * 10, [1] * 10, None, [(partition.partition,)] * 10))

        def purge(partition: TopicPartition, before: int) -> None:
            log.purge(partition, before)
            wait_until(lambda: log.start_offsets([partition])[partition] == before)

        def is_quiet() -> bool:
            """Return whether asking again sends nothing; the answer may need a moment."""
            before = len(sent)
            log.purge(one, 4)
            log.purge(one, 3)
            return len(sent) == before

        purge(one, 4)
        wait_until(is_quiet)
        count = len(sent)
        assert all(is_quiet() for _ in range(5))
        purge(two, 4)
        purge(one, 6)
        assert sent[count:] == [{two: 4}, {one: 6}]
        # A topic that was made again begins at 0.
        log.delete_topic(topic)
        log.create_topic(topic, 2)
        log.append(OutputBatch(topic, [b"k"] * 10, [b"v"] * 10, [1] * 10, None, [(0,)] * 10))
        purge(one, 2)


def test_a_purge_that_waited_while_its_topic_was_made_again_is_dropped(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_module, "_PURGE_SECONDS", math.inf)  # sent when the log is closed
    topic = fresh_name("in")
    partition = TopicPartition(topic, 0)
    with closing(KafkaLog(broker.bootstrap)) as other:
        with closing(KafkaLog(broker.bootstrap)) as frozen:
            other.create_topic(topic, 1)
            frozen.purge(partition, 3, other.topic(topic).id)
            other.delete_topic(topic)
            other.create_topic(topic, 1)
            other.append(OutputBatch(topic, [b"k"] * 5, [b"v"] * 5, [1] * 5))
        assert other.start_offsets([partition]) == {partition: 0}


def test_a_purge_that_failed_is_asked_for_again(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "_PURGE_SECONDS", 0.0)
    with closing(KafkaLog(broker.bootstrap)) as log:
        topic = fresh_name("in")
        log.create_topic(topic, 1)
        partition = TopicPartition(topic, 0)
        log.purge(partition, 3)  # after the end of the log: refused
        log.append(OutputBatch(topic, [b"k"] * 5, [b"v"] * 5, [1] * 5))

        def is_purged() -> bool:
            log.purge(partition, 3)
            return log.start_offsets([partition])[partition] == 3

        wait_until(is_purged)


def test_the_producer_of_outputs_is_made_with_its_task(broker: KafkaBroker) -> None:
    """It takes half a second until that can send: so long each task's first output would wait, one after the other."""
    with closing(KafkaLog(broker.bootstrap, {"processing.guarantee": "at_least_once"})) as log:
        topic = fresh_name("in")
        log.create_topic(topic, 1)
        with closing(log.open_committer(topic, "0_0", [TopicPartition(topic, 0)])) as committer:
            assert isinstance(committer, AtLeastOnce)
            made = committer._sent
            committer.send([OutputBatch(topic, [b"k"], [b"v"], [1])])
            assert made is not None and made is committer._sent
