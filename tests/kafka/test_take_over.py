"""A driver is killed inside a commit: what waits takes over without waiting for the end of that transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from penstock import run
from penstock.plugins.engine.program.run_status import StatusTopic
from penstock.plugins.logs.kafka.transactions import transactional_id
from penstock.plugins.state.copies.standbys import FOLLOWING, TAKEN, Standbys
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..embedded.test_run import records
from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .clients import QUIET
from .names import fresh_name

pytestmark = pytest.mark.broker

_TRANSACTION_SECONDS = 60
"""Kafka's default: so long a transaction of a killed process lasts unless its task is opened."""


@contextmanager
def killed_in_a_commit(bootstrap: str, application_id: str, topics: list[tuple[str, int]]) -> Iterator[None]:
    """Leave a transaction open under the fence of task 0_0, with its position and a record of each of these topics."""
    fence = transactional_id(application_id, "0_0")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": fence, **QUIET})
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": application_id, **QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    (source, number), *others = topics
    for topic, partition in others:
        producer.produce(topic, b"of the killed driver", b"key", partition=partition)
    producer.flush(30)
    producer.send_offsets_to_transaction([KafkaPartition(source, number, 1)], group.consumer_group_metadata(), 30)
    group.close()
    yield
    with pytest.raises(Exception, match="fence"):
        producer.commit_transaction(30)


def test_a_waiting_run_with_copies(broker: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = fresh_name("app")
    source, sink = f"{name}.in", f"{name}.out"
    with Surroundings(tmp_path / "data", f"kafka:{broker.bootstrap}") as surroundings, ExitStack() as stack:
        surroundings.create(**{source: 1, sink: 1})
        settings = {"engine": "embedded", "commit_interval": "10ms", "changelog": "topic:"}
        topology = apps.count(source=source, sink=sink)
        first = surroundings.application(name, topology, state_dir="one", **settings)
        surroundings.put(source, records(70))
        run(first)
        second = surroundings.application(name, topology, state_dir="two", num_standby_replicas=1, **settings)
        lease = surroundings.log.lease(name, "the driver that is killed", 30_000)
        caplog.set_level("INFO", "penstock")
        written = [(source, 0), (f"{name}-counts-changelog", 0)]
        stack.enter_context(killed_in_a_commit(broker.bootstrap, name, written))
        waiting = second.start("continuous", wait=True)
        lock = surroundings.directory / "two" / name / "0_0.lock"
        wait_until(lambda: lock.exists() and lock.read_bytes(), "the copy of task 0_0 is open")
        waited = time.time()
        lease.release()
        released = time.monotonic()
        surroundings.put(source, records(7))
        with waiting:
            wait_until(lambda: sum(map(len, surroundings.values_by_key(sink).values())) == 77, "it goes on")
            assert time.monotonic() - released < _TRANSACTION_SECONDS / 3
            status = StatusTopic(surroundings.log, name)
            found = wait_until(lambda: (each := status.read()) is not None and each.number == 2 and each.tasks and each)
            assert found.started_ms / 1000 >= waited - 1, "its time counts from the take-over"
    assert "does not answer" not in caplog.text, "the copy gives way as soon as its task has the fence"


def test_the_log_says_what_a_copy_waits_for(
    broker: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.plugins.state.copies.standbys._SAYS_AFTER_SECONDS", 0.5)
    name = fresh_name("app")
    source, sink = f"{name}.in", f"{name}.out"
    with Surroundings(tmp_path / "data", f"kafka:{broker.bootstrap}") as surroundings, ExitStack() as stack:
        surroundings.create(**{source: 1, sink: 1})
        topology = apps.count(source=source, sink=sink)
        given = surroundings.application(name, topology, engine="embedded", changelog="topic:")
        surroundings.put(source, records(70))
        run(given)
        with killed_in_a_commit(broker.bootstrap, name, [(source, 0)]):
            standbys = Standbys(given.with_settings(state_dir="two"), surroundings.log)
            stack.callback(standbys.close)
            wait_until(lambda: "standby of task 0_0: nothing for" in caplog.text)
            assert "a transaction that its driver left open" in caplog.text
            assert not standbys.are_current
            surroundings.put(source, records(7))
            run(given)  # its opening ends the transaction
        wait_until(lambda: {each.state for each in standbys.status()} <= {FOLLOWING, TAKEN})
