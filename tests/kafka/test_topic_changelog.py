"""The topic changelog on a real broker: an ordinary consumer reads it, and another host restores from it."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError

from penstock import Application, Processor, Record, Topology, key_value_store
from penstock.errors import FencedError
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.contracts.log_tests import settled_ends
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition
from penstock.support.names import changelog_topic

from .names import fresh_name

PARTITIONS = 2


class Count(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, None if record.value == "forget" else count)
        self.context.forward(record.with_value(str(count)))


def make(broker: KafkaBroker, name: str, directory: Path, guarantee: str, **options: Any) -> Application:
    topology = (
        Topology()
        .add_source("in", f"{name}-in")
        .add_processor(
            "count", Count, "in", stores=[key_value_store("counts", key_serde="str", value_serde="json", **options)]
        )
        .add_sink("out", f"{name}-out", "count")
    )
    return Application(
        name,
        topology,
        log=f"kafka:{broker.bootstrap}",
        changelog="topic:",
        data_dir=str(directory),
        processing_guarantee=guarantee,
    )


def run_everywhere(application: Application, log: KafkaLog, source: str) -> dict[str, int]:
    """Run each task to the end of its input on this host; return its counts."""
    found: dict[str, int] = {}
    for number in range(PARTITIONS):
        partition = TopicPartition(source, number)
        task = TaskWorker(application, TaskId(0, number), [partition], log, resources=ProcessResources())
        task.run_batch(log.end_offsets([partition]), 0)
        assert task.task is not None
        with task.task.stores["counts"].all() as entries:  # type: ignore[attr-defined]
            found.update(entries)
        task.close()
    return found


def consume(broker: KafkaBroker, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Read a topic to its end, as any Kafka client does."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": fresh_name("reader"),
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    rows, ended = [], 0
    while ended < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            ended += 1
            continue
        rows.append((message.key(), message.value()))
    consumer.close()
    return rows


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_it_is_read_by_anybody_and_restores(broker: KafkaBroker, tmp_path: Path, guarantee: str) -> None:
    name = fresh_name("changelog")
    application = make(broker, name, tmp_path / "one", guarantee)
    log = open_log(application.settings)
    assert isinstance(log, KafkaLog)
    for topic in (f"{name}-in", f"{name}-out"):
        log.create_topic(topic, PARTITIONS)
    prepare(application, log)
    words = ["a", "b", "c", "a", "b", "a", "d"]
    log.append(OutputBatch(f"{name}-in", [word.encode() for word in words], [b"x"] * 7, list(range(1, 8))))
    log.append(OutputBatch(f"{name}-in", [b"d"], [b"forget"], [8]))
    expected = {"a": 3, "b": 2, "c": 1}
    assert run_everywhere(application, log, f"{name}-in") == expected
    topic = changelog_topic(name, "counts")
    last = dict(consume(broker, topic))
    assert last == {b"a": b"3", b"b": b"2", b"c": b"1", b"d": None}
    assert log.topics()[topic].config["cleanup.policy"] == "compact"
    # A host that has nothing, and then the first one again, which is behind.
    elsewhere = make(broker, name, tmp_path / "two", guarantee)
    log.append(OutputBatch(f"{name}-in", [b"a", b"d"], [b"x", b"x"], [9, 10]))
    assert run_everywhere(elsewhere, log, f"{name}-in") == {**expected, "a": 4, "d": 1}
    log.append(OutputBatch(f"{name}-in", [b"b"], [b"x"], [11]))
    assert run_everywhere(application, log, f"{name}-in") == {"a": 4, "b": 3, "c": 1, "d": 1}
    log.close()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_catching_up_reads_what_was_missed(broker: KafkaBroker, tmp_path: Path, guarantee: str) -> None:
    """Not the markers of transactions, nor attempts that failed, of all commits since the task was opened."""
    name = fresh_name("catching-up")
    log = open_log(make(broker, name, tmp_path, guarantee).settings)
    for topic in (f"{name}-in", f"{name}-out"):
        log.create_topic(topic, PARTITIONS)
    prepare(make(broker, name, tmp_path, guarantee), log)
    source, changelog = TopicPartition(f"{name}-in", 0), TopicPartition(changelog_topic(name, "counts"), 0)
    keys = count()

    def worker(host: str) -> TaskWorker:
        application = make(broker, name, tmp_path / host, guarantee)
        return TaskWorker(application, TaskId(0, 0), [source], log, resources=ProcessResources())

    def run(task: TaskWorker) -> tuple[int, int]:
        """Make a commit of one entry; return where its version says that it begins, and where it does."""
        log.append(OutputBatch(source.topic, [b"%d" % next(keys)], [b"x"], [1], None, [(0,)]))
        before = settled_ends(log, [changelog])[changelog]
        report = task.run_batch(log.end_offsets([source]), 0)
        return int(report.version.rpartition("-")[2]), before

    first = worker("one")
    for number in range(12):
        if number == 4 and guarantee == "exactly_once":
            # An attempt of another worker is given up; then this one opens the task again.
            attempt = log.open_committer(name, "0_0", [source])
            attempt.send([OutputBatch(changelog.topic, [b"never"] * 5, [b"1"] * 5, [1] * 5, None, [(0,)] * 5)])
            attempt.close()
            with pytest.raises(FencedError):
                run(first)
        said, began = run(first)
        assert said == began
    first.close()
    second = worker("two")
    run(second)
    second.close()
    first = worker("one")
    assert first.run_batch({}, 0).restored <= 2
    first.close()
    log.close()


def test_a_store_that_was_not_logged_in_between(broker: KafkaBroker, tmp_path: Path) -> None:
    """Its topic has what the host has from then on, and nothing of what was deleted meanwhile."""
    name = fresh_name("changelog")
    log = open_log(make(broker, name, tmp_path, "exactly_once").settings)
    assert isinstance(log, KafkaLog)
    for topic in (f"{name}-in", f"{name}-out"):
        log.create_topic(topic, PARTITIONS)
    expected: dict[str, int] = {}
    for host, logged, rows, expected in (
        ("one", True, [("a", "x"), ("b", "x")], {"a": 1, "b": 1}),
        ("one", False, [("a", "x"), ("b", "forget"), ("c", "x")], {"a": 2, "c": 1}),
        ("one", True, [("d", "x")], {"a": 2, "c": 1, "d": 1}),
        ("two", True, [("a", "x")], {"a": 3, "c": 1, "d": 1}),
    ):
        for key, value in rows:
            log.append(OutputBatch(f"{name}-in", [key.encode()], [value.encode()], [1]))
        prepared = prepare(make(broker, name, tmp_path / host, "exactly_once", logged=logged), log)
        assert run_everywhere(prepared.application, log, f"{name}-in") == expected
    last = dict(consume(broker, changelog_topic(name, "counts")))
    assert {key: value for key, value in last.items() if value is not None} == {
        key.encode(): b"%d" % count for key, count in expected.items()
    }
    log.close()
