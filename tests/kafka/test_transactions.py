"""Transactions that nobody ends: one of a process that was killed, and one that took too long."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock import Record, Topology, key_value_store
from penstock.errors import FencedError
from penstock.log import Commit
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import TopicPartition

from ..waiting import wait_until
from .clients import make_topic
from .names import fresh_name
from .shop import Add, Shop, contents, drain

KILLED = """
import os, sys
from penstock.log import Commit
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.logs.kafka.positions import to_kafka
from penstock.record import OutputBatch, TopicPartition

location, guarantee, application, topic = sys.argv[1:]
partition = TopicPartition(topic, 0)
log = KafkaLog(location, {"processing.guarantee": guarantee})
committer = log.open_committer(application, "0_0", [partition])
committer.commit(Commit({partition: 0}, "one"), [OutputBatch(topic, [b"k"], [b"committed"], [1])])
committer.send([OutputBatch(topic, [b"k"], [b"sent ahead"], [1])])
committer._deliver_sent()
transactions = committer._begun()
transactions.send(OutputBatch(topic, [b"k"], [b"given up"], [1]))
transactions.flush()
transactions._send_offsets(to_kafka("0_0", Commit({partition: 7}, "two")), committer._consumer, 30)
os._exit(9)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("exactly_once", "exactly_once"),
        ("exactly_once", "at_least_once"),
        ("at_least_once", "exactly_once"),
        ("at_least_once", "at_least_once"),
    ],
)
def test_a_killed_task_holds_nobody_back(broker: KafkaBroker, before: str, after: str) -> None:
    """Its successor's opening ends its transaction, long before the broker would, whichever guarantee each of them
    has."""
    application, topic = fresh_name("app"), fresh_name("out")
    make_topic(broker.bootstrap, topic)
    arguments = [sys.executable, "-c", KILLED, broker.bootstrap, before, application, topic]
    assert subprocess.run(arguments, check=False).returncode == 9
    log, partition = KafkaLog(broker.bootstrap, {"processing.guarantee": after}), TopicPartition(topic, 0)
    held_back_at = log.end_offsets([partition])[partition]
    assert held_back_at < log.end_offsets([partition], stable=False)[partition]
    began = time.monotonic()
    committer = log.open_committer(application, "0_0", [partition])
    wait_until(lambda: log.end_offsets([partition])[partition] > held_back_at)
    # transaction.timeout.ms is a minute.
    assert time.monotonic() - began < 45
    assert committer.committed == Commit({partition: 0}, "one")
    sent = [(b"k", b"sent ahead")] if before == "at_least_once" else []
    assert contents(log, topic) == [(b"k", b"committed"), *sent]
    committer.commit(Commit({partition: 1}, "two"), [])
    assert log.committed(application, [partition]) == {partition: 1}
    committer.close()
    log.close()


class Slow(Add):
    """Waits, once, until the broker has given up the transaction of what was sent."""

    bootstrap, topic = "", ""
    is_slow = True

    def process(self, record: Record) -> None:
        super().process(record)
        if record.value == "1" and Slow.is_slow:
            Slow.is_slow = False
            log, partition = KafkaLog(self.bootstrap), TopicPartition(self.topic, 0)
            wait_until(lambda: log.end_offsets([partition], stable=False)[partition] > 0)
            wait_until(lambda: log.end_offsets([partition])[partition] > 0)
            log.close()


def test_a_transaction_that_takes_too_long(broker: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(broker.bootstrap, tmp_path, fetch_bytes=100_000, clients={"producer.transaction.timeout.ms": "1000"})
    Slow.bootstrap, Slow.topic, Slow.is_slow = broker.bootstrap, shop.totals, True
    shop.use(
        Topology()
        .add_source("orders", shop.orders)
        .add_processor("add", Slow, "orders", stores=[key_value_store("totals", backend="memory")])
        .add_sink("totals-out", shop.totals, "add")
    )
    # Enough of them are sent ahead of the commit.
    shop.sell(*[("bob", 2)] * 12_000, ("ann", 1))
    with shop.worker() as (log, worker):
        with pytest.raises(FencedError, match="task 0_0"):
            drain(log, worker)
        assert not Slow.is_slow
        assert not shop.position(log)
        assert shop.sold(log) == []
        drain(log, worker)
        assert shop.sold(log) == shop.expected
