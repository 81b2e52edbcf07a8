"""The Kafka log over a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from confluent_kafka.admin import AdminClient

from penstock.clock import ManualClock
from penstock.errors import FencedError, LogError
from penstock.log import Lease, Log
from penstock.plugins.logs.kafka import KafkaLog
from penstock.plugins.testing.contracts.log import LogContract
from penstock.plugins.testing.kafka_broker import KafkaBroker


@pytest.fixture(scope="module")
def own_broker() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


def empty(bootstrap: str) -> None:
    """Delete every topic and group."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    groups = [each.group_id for each in admin.list_consumer_groups().result().valid]
    for future in admin.delete_consumer_groups(groups).values() if groups else ():
        future.result()
    log = KafkaLog(bootstrap)
    for topic in admin.list_topics().topics:
        if not topic.startswith("__"):
            log.delete_topic(topic)
    log.close()


@pytest.mark.broker
class TestContract(LogContract):
    """All that any log must keep; a new directory stands for a broker without topics."""

    examples: ClassVar[int] = 5
    maintains: ClassVar[bool] = False
    sees_successors: ClassVar[bool] = False
    ends_are_exact: ClassVar[bool] = False
    earliest_timestamp: ClassVar[int] = 1
    latest_timestamp: ClassVar[int] = 1_700_000_000_000

    bootstrap: ClassVar[str]
    seen: ClassVar[set[Path]] = set()

    @pytest.fixture(autouse=True)
    def _broker(self, own_broker: KafkaBroker) -> None:
        type(self).bootstrap = own_broker.bootstrap

    def open_log(self, directory: Path, clock: ManualClock) -> KafkaLog:
        if directory not in self.seen:
            self.seen.add(directory)
            empty(self.bootstrap)
        return KafkaLog(self.bootstrap)

    def test_an_expired_lease_is_lost_to_the_next(self, log: Log, clock: ManualClock) -> None:
        """By the broker's clock: nobody's own counts."""
        lease = log.lease("application", "driver one", 10)
        lease.renew()  # nobody wanted it
        successor = wait_for_lease(log, "driver two")
        with pytest.raises(FencedError, match="driver one"):
            lease.renew()
        lease.release()
        successor.renew()
        with pytest.raises(LogError, match="driver two"):
            log.lease("application", "driver three", 10_000)
        successor.release()


def wait_for_lease(log: Log, owner: str) -> Lease:
    deadline = time.monotonic() + 30
    while True:
        try:
            return log.lease("application", owner, 10_000)
        except LogError:
            assert time.monotonic() < deadline
