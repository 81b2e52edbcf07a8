"""A task whose producer was shut out, or whose transaction Kafka gave up: each says so, whatever it was about to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from penstock import OutputBatch, TopicPartition
from penstock.errors import FencedError
from penstock.log import Commit, TaskCommitter
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from tests.kafka.clients import make_topic, read_all
from tests.kafka.names import fresh_name

APPLICATION = fresh_name("application")


@pytest.fixture
def log(broker: KafkaBroker) -> Iterator[KafkaLog]:
    log = KafkaLog(broker.bootstrap, {"producer.transaction.timeout.ms": "1000"})
    yield log
    log.close()


@pytest.fixture
def partition(broker: KafkaBroker) -> TopicPartition:
    topic = fresh_name("out")
    make_topic(broker.bootstrap, topic)
    return TopicPartition(topic, 0)


def outputs(partition: TopicPartition, value: bytes) -> list[OutputBatch]:
    return [OutputBatch(partition.topic, [b"k"], [value], [1])]


def send_on(committer: TaskCommitter, partition: TopicPartition) -> None:
    """A record goes into the producer's queue before anybody can know that it is refused."""
    while True:
        committer.send(outputs(partition, b"late"))
        time.sleep(0.01)


def commit(committer: TaskCommitter, partition: TopicPartition) -> None:
    committer.commit(Commit({partition: 1}, "late"), outputs(partition, b"late"))


each_way = pytest.mark.parametrize("go_on", [send_on, commit])


@each_way
def test_shut_out_by_a_successor(
    log: KafkaLog,
    partition: TopicPartition,
    broker: KafkaBroker,
    go_on: Callable[[TaskCommitter, TopicPartition], None],
) -> None:
    zombie = log.open_committer(APPLICATION, "0_0", [partition])
    zombie.send(outputs(partition, b"zombie"))
    successor = log.open_committer(APPLICATION, "0_0", [partition])
    with pytest.raises(FencedError, match="task 0_0 of application .* was taken over"):
        go_on(zombie, partition)
    successor.commit(Commit({partition: 0}, "one"), outputs(partition, b"successor"))
    zombie.close()
    successor.close()
    assert read_all(broker.bootstrap, partition.topic) == [b"successor"]


@each_way
def test_given_up_by_the_broker(
    log: KafkaLog,
    partition: TopicPartition,
    broker: KafkaBroker,
    go_on: Callable[[TaskCommitter, TopicPartition], None],
) -> None:
    committer = log.open_committer(APPLICATION, "0_0", [partition])
    committer.send(outputs(partition, b"too slow"))
    deadline = time.monotonic() + 180
    while log.end_offsets([partition])[partition] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(FencedError):
        go_on(committer, partition)
    committer.close()
    again = log.open_committer(APPLICATION, "0_0", [partition])
    again.commit(Commit({partition: 0}, "one"), outputs(partition, b"again"))
    again.close()
    assert read_all(broker.bootstrap, partition.topic) == [b"again"]
