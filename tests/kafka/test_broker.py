"""The broker that the tests use."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.plugins.testing.kafka_broker import KafkaBroker
from tests.kafka.names import fresh_name


def test_it_makes_topics(broker: KafkaBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = fresh_name("made")
    admin.create_topics([NewTopic(topic, 3)])[topic].result()
    assert len(admin.list_topics(topic).topics[topic].partitions) == 3
