"""Two brokers: what a killed one led moves, or waits for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock import TopicPartition
from penstock.errors import LogError, UnknownTopicError
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaCluster
from tests.kafka.clients import leader, make_topic, produce, read_all
from tests.kafka.names import fresh_name
from tests.kafka.shop import Shop, again, drain
from tests.rotation import by_turns
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("test_leaders")]


@pytest.fixture(scope="module")
def two_brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster(2) as cluster:
        yield cluster
    assert not cluster.directory.exists()


@pytest.fixture
def cluster(two_brokers: KafkaCluster) -> KafkaCluster:
    two_brokers.start()
    assert all(broker.known_brokers() == {1, 2} for broker in two_brokers.brokers)
    return two_brokers


def make_topic_led_by(node: int, cluster: KafkaCluster, replicas: int) -> str:
    """Which broker leads is Kafka's choice, so some topics have to be made."""
    found, topic = -1, ""
    while found != node:
        topic = fresh_name("led")
        make_topic(cluster.bootstrap, topic, replicas=replicas)
        while (found := leader(cluster.bootstrap, topic)) == -1:
            time.sleep(0.05)
    return topic


def test_a_leader_moves_when_its_broker_is_killed(cluster: KafkaCluster) -> None:
    topic = make_topic_led_by(2, cluster, replicas=2)
    assert produce(cluster.bootstrap, topic, b"before") == []
    cluster.brokers[1].kill()
    assert produce(cluster.bootstrap, topic, b"after") == []
    assert leader(cluster.bootstrap, topic) == 1
    assert read_all(cluster.bootstrap, topic) == [b"before", b"after"]


def test_the_log_waits_for_a_leader(cluster: KafkaCluster) -> None:
    """And not for the leader of a topic that is gone, nor where only the ends that are known are asked for."""
    topic = make_topic_led_by(2, cluster, replicas=1)
    partition, other_led = TopicPartition(topic, 0), TopicPartition(make_topic_led_by(1, cluster, replicas=1), 0)
    assert produce(cluster.bootstrap, other_led.topic, b"1") == []
    assert produce(cluster.bootstrap, topic, b"1", b"2") == []
    impatient, patient = KafkaLog(cluster.bootstrap, {"task.timeout.ms": "1500"}), KafkaLog(cluster.bootstrap)
    assert patient.end_offsets([partition]) == impatient.end_offsets([partition]) == {partition: 2}
    cluster.brokers[1].kill()
    wait_until(lambda: leader(cluster.bootstrap, topic) == -1)

    def known(partitions: list[TopicPartition], stable: bool) -> dict[TopicPartition, int] | None:
        # A broker of a busy machine may take longer to answer than this question waits.
        try:
            return dict(patient.known_end_offsets(partitions, stable=stable))
        except LogError as error:
            if "no answer in" not in str(error):
                raise
            return None

    with pytest.raises(LogError, match="asking for offsets.*[Ll]eader"):
        impatient.end_offsets([partition])
    for stable in False, True:
        assert wait_until(partial(known, [partition, other_led], stable)) == {other_led: 1}
    cluster.start()
    wait_until(lambda: known([partition, other_led], False) == {partition: 2, other_led: 1})
    assert patient.end_offsets([partition]) == {partition: 2}
    other = KafkaLog(cluster.bootstrap)
    other.delete_topic(topic)

    def is_gone() -> bool:
        # The other broker may take a moment longer to hear of it.
        try:
            patient.end_offsets([partition])
        except UnknownTopicError as error:
            return topic in str(error)
        return False

    wait_until(is_gone, "the topic is gone for the other log")
    for log in (impatient, patient, other):
        log.close()


@by_turns(1, 2)
def test_an_application_goes_on(cluster: KafkaCluster, tmp_path: Path) -> None:
    """What leads moves, and who coordinates the group and the transactions; a task that is told so begins again from
    its last commit."""
    shop = Shop(cluster.bootstrap, tmp_path, partitions=4, task_timeout="60s")
    customers = [f"customer {number}" for number in range(20)]
    shop.sell(*[(customer, 1) for customer in customers])
    with shop.workers() as (log, workers):
        for worker in workers:
            # The brokers may still be moving back what the test before moved.
            again(lambda worker=worker: drain(log, worker))  # type: ignore[misc]
        shop.sell(*[(customer, 2) for customer in customers])
        ends = [log.end_offsets(worker.partitions) for worker in workers]
        cluster.brokers[1].kill()
        for worker, end in zip(workers, ends, strict=True):
            again(lambda worker=worker, end=end: worker.run_batch(end, 0))  # type: ignore[misc]
        shop.sell(*[(customer, 3) for customer in customers])
        for worker in workers:
            again(lambda worker=worker: drain(log, worker))  # type: ignore[misc]
        assert sorted(shop.sold(log)) == sorted(shop.expected)
    cluster.start()
    shop.is_exact()
