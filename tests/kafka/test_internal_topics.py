"""Internal topics: made as they have to be, checked on later starts, given up behind the commits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]

from penstock import Application, Processor, Record, Topology, key_value_store
from penstock.errors import ConfigError, IncompatibleStateError, LogError, TopologyError
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.run_status import RunStatus, StatusTopic
from penstock.plugins.engine.run.companion import OpenApplication
from penstock.plugins.engine.task.own_topics import HEARTBEATS, STATUS
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition
from penstock.world import World

from ..bad_input.world import says
from ..waiting import wait_until
from .clients import make_topic
from .names import fresh_name

TOMORROW = 86_400_000


class Keep(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_store("last")

    def process(self, record: Record) -> None:
        self.store.put(record.key, record.value)


def make(broker: KafkaBroker, directory: Path, store: Any = None, **settings: Any) -> Application:
    """A program with a repartition topic and, with the changelog `topic:`, a changelog topic.

    `store`: options of its store.
    """
    name = fresh_name("app")
    topology = (
        Topology()
        .add_source("in", f"{name}.in")
        .add_repartition("by-key", "in")
        .add_processor("keep", Keep, "by-key", stores=[key_value_store("last", backend="memory", **(store or {}))])
    )
    given: Any = {"changelog": "topic:", "data_dir": str(directory), **settings}
    return Application(name, topology, log=f"kafka:{broker.bootstrap}", **given)


def set_policy(broker: KafkaBroker, log: KafkaLog, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()
    wait_until(lambda: log.topics()[topic].config["cleanup.policy"] == policy)


def test_made_with_the_settings_of_the_application_and_of_the_store(
    broker: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"segment.bytes": 20_000_000, "max.message.bytes": 2_000_000}
    application = make(broker, tmp_path, {"topic_config": {"segment.bytes": 10_000_000}}, topic_config=config)
    log = KafkaLog(broker.bootstrap)
    log.create_topic(f"{application.id}.in", 1)
    prepare(application, log)
    found = [log.topics()[f"{application.id}-{each}"].config for each in ("by-key-repartition", "last-changelog")]
    assert [each["segment.bytes"] for each in found] == ["20000000", "10000000"]
    assert [each["max.message.bytes"] for each in found] == ["2000000", "2000000"]
    assert [each["cleanup.policy"] for each in found] == ["delete", "compact"]
    prepare(application, log)
    assert "was created with other settings" not in caplog.text
    prepare(application.with_settings({"topic.segment.bytes": 30_000_000}), log)
    # The changelog topic has those of its store.
    assert [each.getMessage() for each in caplog.records if "other settings" in each.getMessage()] == [
        f"topic '{application.id}-by-key-repartition' was created with other settings than topic_config says now, and "
        "keeps them: set segment.bytes=30000000 with kafka-configs.sh"
    ]


@pytest.mark.parametrize(
    ("store", "settings", "expected"),
    [
        (
            {"topic_config": {"cleanup.policy": "compact,delete"}},
            {},
            r"topic_config of store 'last': 'cleanup.policy' is 'compact,delete', and topic '.*-last-changelog' needs "
            "'compact': leave it out",
        ),
        (
            {},
            {"topic.retention.ms": 1000},
            r"setting 'topic_config': 'retention.ms' is '1000', and topic '.*-by-key-repartition' needs '-1': leave it",
        ),
        ({}, {"topic_config": {"segment.byts": 5}}, r"topic '.*-repartition': unknown setting 'segment.byts'; did you"),
        ({"topic_config": {"segment.bytes": "many"}}, {}, r"topic '.*-last-changelog' cannot be created in .*many"),
    ],
)
def test_settings_that_an_internal_topic_cannot_have(
    broker: KafkaBroker, tmp_path: Path, store: Any, settings: Any, expected: str
) -> None:
    application = make(broker, tmp_path, store).with_settings(settings)
    log = KafkaLog(broker.bootstrap)
    log.create_topic(f"{application.id}.in", 1)
    with pytest.raises((ConfigError, LogError), match=expected):
        prepare(application, log)


def test_made_and_checked(broker: KafkaBroker, tmp_path: Path) -> None:
    application = make(broker, tmp_path)
    name = application.id
    repartition, changelog = f"{name}-by-key-repartition", f"{name}-last-changelog"
    log = KafkaLog(broker.bootstrap)
    log.create_topic(f"{name}.in", 2)
    prepare(application, log)
    made = {topic: log.topics()[topic] for topic in (repartition, changelog)}
    assert [each.partitions for each in made.values()] == [2, 2]
    assert all(
        each.internal and each.config["message.timestamp.after.max.ms"] == str(2**63 - 1) for each in made.values()
    )
    assert made[repartition].config["retention.ms"] == "-1"
    assert [each.config["cleanup.policy"] for each in made.values()] == ["delete", "compact"]

    for topic, policy, right in ((repartition, "compact", "delete"), (changelog, "delete", "compact")):
        set_policy(broker, log, topic, policy)
        with pytest.raises(IncompatibleStateError) as caught:
            prepare(application, log)
        says(caught.value, repr(topic), f"cleanup.policy={policy}", f"set its cleanup.policy to {right}")
        set_policy(broker, log, topic, right)
    for topic in (repartition, changelog):
        log.delete_topic(topic)
        log.create_topic(topic, 3, {"cleanup.policy": "delete" if topic == repartition else "compact"})
        with pytest.raises((TopologyError, IncompatibleStateError)) as refused:
            prepare(application, log)
        says(refused.value, repr(topic), "3 partitions")
        log.delete_topic(topic)
        log.create_topic(topic, 2, {"cleanup.policy": "delete" if topic == repartition else "compact"})
    prepare(application, log)
    log.close()


def test_topics_beside_the_tasks_are_internal_too(broker: KafkaBroker, tmp_path: Path) -> None:
    application = make(broker, tmp_path)
    log = KafkaLog(broker.bootstrap)
    log.create_topic(f"{application.id}.in", 1)
    prepare(application, log)
    HEARTBEATS.make(application.id, log)
    StatusTopic(log, application.id).write(RunStatus(application.id, "driver", "0s", 1, 2))
    for name in (HEARTBEATS.of(application.id), STATUS.of(application.id)):
        assert log.topics()[name].internal and log.topic(name).internal, name
    assert not log.topics()[f"{application.id}.in"].internal
    log.close()


def test_more_replicas_than_brokers(broker: KafkaBroker, tmp_path: Path) -> None:
    application = make(broker, tmp_path, replication_factor=2)
    log = KafkaLog(broker.bootstrap, {"replication.factor": "2"})
    make_topic(broker.bootstrap, f"{application.id}.in")
    with pytest.raises(LogError) as caught:
        prepare(application, log)
    says(caught.value, "-repartition", "replication_factor", "number of brokers")
    log.close()


def test_any_time_goes_through_and_what_is_read_is_given_up(broker: KafkaBroker, tmp_path: Path) -> None:
    application = make(broker, tmp_path)
    partition = TopicPartition(f"{application.id}-by-key-repartition", 0)
    log, resources = KafkaLog(broker.bootstrap), ProcessResources(World(sleep=lambda seconds: None))
    log.create_topic(f"{application.id}.in", 1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    now = time.time_ns() // 1_000_000
    times = [1, now - 400 * TOMORROW, now + 30 * TOMORROW]
    log.append(OutputBatch(f"{application.id}.in", [b"1", b"2", b"3"], [b"v"] * 3, times))
    prepared = prepare(application, log)
    workers = [
        TaskWorker(application, task, inputs, log, resources=resources)
        for task, inputs in prepared.assignment.tasks.items()
    ]
    running = OpenApplication(prepared, log, None)  # type: ignore[arg-type]
    deadline = time.monotonic() + 180

    def run_until(end: int, start: int) -> None:
        while log.end_offsets([partition])[partition] < end or log.start_offsets([partition])[partition] < start:
            running.take([worker.run_batch(log.end_offsets(worker.partitions), 0) for worker in workers])
            assert time.monotonic() < deadline

    run_until(4, 0)
    # What the newest commit read stays until the next one: reset --from-state may go back to the one before.
    log.append(OutputBatch(f"{application.id}.in", [b"3"], [b"v"], [now]))
    run_until(6, 3)
    task = workers[1].task
    assert task is not None
    assert sorted(key for key, _ in task.stores["last"].all()) == ["1", "2", "3"]  # type: ignore[attr-defined]
    for worker in workers:
        worker.close()
    resources.close()
    log.close()
