"""Kafka clients for tests: no more than it takes to see what is on a broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.log import Log
from penstock.plugins.testing.kafka_broker import KafkaBroker, KafkaCluster

QUIET: dict[str, Any] = {"log_level": 0}
"""Otherwise librdkafka writes to standard error when a broker is away."""


def make_topic(bootstrap: str, topic: str, partitions: int = 1, replicas: int = -1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result()


def produce(bootstrap: str, topic: str, *values: bytes) -> list[str]:
    """Produce to partition 0; return the errors."""
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    for value in values:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _: errors.append(error.name()) if error else None
        )
    assert not producer.flush(30)
    return errors


def read_all(bootstrap: str, topic: str) -> list[bytes | None]:
    """Return the values of partition 0, as a reader of committed records sees them."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, **QUIET}
    consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes | None] = []
        while (message := consumer.poll(30)) is not None:
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF"
                return found
            found.append(message.value())
        raise AssertionError(f"no end of {topic} after {len(found)} records")
    finally:
        consumer.close()


def leader(bootstrap: str, topic: str) -> int:
    """Return the node id of partition 0's leader; -1 while there is none."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    # A broker may hear of the topic before it hears of its partitions.
    return int(partitions[0].leader) if 0 in partitions else -1


def create_topics(log: Log, topics: Mapping[str, int], kafka: KafkaBroker | KafkaCluster | None) -> None:
    """Create topics with so many partitions.

    On several brokers, partitions of one number in a topic and in the next one have different leaders: what a task
    reads of both comes in different answers.
    """
    if not isinstance(kafka, KafkaCluster):
        for topic, count in topics.items():
            log.create_topic(topic, count)
        return
    nodes = [broker.node_id for broker in kafka.brokers]
    new = [
        NewTopic(topic, count, replica_assignment=[_turned(nodes, order + number) for number in range(count)])
        for order, (topic, count) in enumerate(topics.items())
    ]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for created in admin.create_topics(new).values():
        created.result(60)


def _turned(nodes: Sequence[int], by: int) -> list[int]:
    """Return the nodes from another one on; the first has the lead."""
    return [nodes[(by + number) % len(nodes)] for number in range(len(nodes))]


def delete_own(log: Log, applications: Collection[str], topics: Collection[str]) -> None:
    """Delete `topics`, and the commits and internal topics of applications. Other tests use the broker meanwhile."""
    for application in applications:
        log.delete_commits(application)
    own = tuple(f"{application}-" for application in applications)
    for topic in log.topics():
        if topic in topics or topic.startswith(own):
            log.delete_topic(topic)
