"""A producer that is closed while the end of its transaction is unknown: it is kept until the cluster has answered."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.errors import LogError
from penstock.log import Commit, TaskCommitter
from penstock.plugins.logs.kafka import committers, transactions
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.logs.kafka.producing import Outbox
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from ..waiting import wait_until
from .clients import make_topic, read_all
from .names import fresh_name

FROZEN = """
import os, signal, sys
from penstock.errors import LogError
from penstock.log import Commit
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.logs.kafka.producing import Outbox
from penstock.record import OutputBatch, TopicPartition

location, broker, topic = sys.argv[1:]
partition = TopicPartition(topic, 0)
log = KafkaLog(location, {"task.timeout.ms": "30000", "producer.transaction.timeout.ms": "5000"})
opened = [log.open_committer(topic, f"0_{number}", [partition]) for number in range(3)]
for committer in opened:
    committer.send([OutputBatch(topic, [b"k"], [b"v"], [1])])
os.kill(int(broker), signal.SIGSTOP)
log._clients.patience.timeout_s = 1.0
try:
    opened[0].commit(Commit({partition: 1}, "v1"), [])
except LogError:
    print("no answer", flush=True)
for committer in opened:
    committer.close()
print("closed", flush=True)
"""


@pytest.fixture
def broker(penstock_broker: KafkaBroker) -> KafkaBroker:
    """One of this process, which its tests may freeze."""
    return penstock_broker


@pytest.fixture
def log(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaLog]:
    monkeypatch.setattr(committers, "_LAST_ABORT_SECONDS", 0.5)
    monkeypatch.setattr(transactions, "_STUCK_SECONDS", 0.5)
    log = KafkaLog(broker.bootstrap)
    yield log
    broker.resume()
    log.close()


@pytest.fixture
def partition(broker: KafkaBroker) -> TopicPartition:
    topic = fresh_name("out")
    make_topic(broker.bootstrap, topic)
    return TopicPartition(topic, 0)


@pytest.fixture
def kept_producers() -> Callable[[], int]:
    """Count the producers that are kept since the test began; those of earlier tests end when they can."""
    earlier = set(threading.enumerate())
    return lambda: sum(each.name == "penstock-producer" for each in set(threading.enumerate()) - earlier)


def with_open_transaction(log: KafkaLog, partition: TopicPartition) -> TaskCommitter:
    """Return a committer whose transaction has a record."""
    committer = log.open_committer(partition.topic, "0_0", [partition])
    committer.send([OutputBatch(partition.topic, [b"k"], [b"v"], [1])])
    wait_until(lambda: log.end_offsets([partition], stable=False)[partition] > 0)
    return committer


def test_an_abort_without_an_answer_is_repeated(
    broker: KafkaBroker, log: KafkaLog, partition: TopicPartition, kept_producers: Callable[[], int]
) -> None:
    committer = with_open_transaction(log, partition)
    broker.freeze()
    committer.close()
    assert kept_producers() == 1
    broker.resume()
    # transaction.timeout.ms is a minute.
    wait_until(lambda: log.end_offsets([partition])[partition] > 0, "the transaction is aborted", 30)
    wait_until(lambda: kept_producers() == 0, "the producer is destroyed")
    assert read_all(broker.bootstrap, partition.topic) == []


def test_a_commit_without_an_answer_is_repeated(
    broker: KafkaBroker, log: KafkaLog, partition: TopicPartition, kept_producers: Callable[[], int]
) -> None:
    committer = with_open_transaction(log, partition)
    log._clients.patience.timeout_s = 1.0
    broker.freeze()
    with pytest.raises(LogError, match="did not answer"):
        committer.commit(Commit({partition: 1}, "v1"), [])
    committer.close()
    broker.resume()
    log._clients.patience.timeout_s = 60.0
    wait_until(lambda: log.end_offsets([partition])[partition] > 0, "the transaction is over", 30)
    wait_until(lambda: kept_producers() == 0, "the producer is destroyed")
    committed = log.committed(partition.topic, [partition])[partition]
    assert len(read_all(broker.bootstrap, partition.topic)) == (0 if committed is None else 1)


def test_records_in_flight_are_waited_for(
    broker: KafkaBroker, log: KafkaLog, partition: TopicPartition, kept_producers: Callable[[], int]
) -> None:
    outbox = Outbox(log._clients, log._topics.count)
    outputs = OutputBatch(partition.topic, [b"k"], [b"v"], [1])
    outbox.send(outputs)
    outbox.flush()
    broker.freeze()
    outbox.send(outputs)
    time.sleep(0.1)  # longer than linger.ms: the record is in flight
    outbox.close()
    assert kept_producers() == 1
    broker.resume()
    wait_until(lambda: kept_producers() == 0, "the producer is destroyed")
    assert len(read_all(broker.bootstrap, partition.topic)) == 2


def test_a_process_ends_without_an_answer(broker: KafkaBroker, partition: TopicPartition) -> None:
    arguments = [sys.executable, "-c", FROZEN, broker.bootstrap, str(broker.pid), partition.topic]
    try:
        done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=120)
    finally:
        broker.resume()
    assert (done.returncode, done.stdout.split("\n")) == (0, ["no answer", "closed", ""]), done.stderr
