"""At least once, a process that was thought dead takes neither positions nor state back, whatever its successor deleted
meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock import Application, Processor, Record, Topology, key_value_store
from penstock.errors import FencedError, LogError
from penstock.log import Commit
from penstock.plugins.logs.kafka import failures
from penstock.plugins.logs.kafka.clients import Clients
from penstock.plugins.logs.kafka.groups import ConsumerGroups, renewal_seconds
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from ..bad_input.world import says
from ..processes import opened_workers
from .clients import QUIET, make_topic
from .names import fresh_name
from .shop import contents, drain


class Count(Processor):
    """Counts by key. `pause` is called before one record is done, once: what happens while this process is frozen."""

    pause: ClassVar[Callable[[], None] | None] = None

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        pause, Count.pause = Count.pause, None
        if pause is not None:
            pause()
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(count))


@pytest.mark.parametrize("changelog", ["directory", "topic"])
def test_a_commit_behind_what_the_successor_purged(broker: KafkaBroker, tmp_path: Path, changelog: str) -> None:
    name = fresh_name("app")
    topology = (
        Topology()
        .add_source("in", f"{name}.in", key_serde="str", value_serde="str")
        .add_repartition("by-key", "in", key_serde="str", value_serde="str")
        .add_processor("count", Count, "by-key", stores=[key_value_store("counts", backend="memory")])
        .add_sink("out", f"{name}.out", "count", key_serde="str", value_serde="int")
    )
    zombie = Application(
        name,
        topology,
        log=f"kafka:{broker.bootstrap}",
        changelog=f"directory:{tmp_path / 'changelog'}" if changelog == "directory" else "topic:",
        data_dir=str(tmp_path / "zombie"),
        processing_guarantee="at_least_once",
    )
    successor = zombie.with_settings(data_dir=str(tmp_path / "successor"))
    log = KafkaLog(broker.bootstrap, {"processing.guarantee": "at_least_once"})
    for topic in (f"{name}.in", f"{name}.out"):
        log.create_topic(topic, 1)
    between = TopicPartition(f"{name}-by-key-repartition", 0)

    def produce(count: int) -> None:
        log.append(OutputBatch(f"{name}.in", [b"k"] * count, [b"v"] * count, [1] * count))

    def succeed() -> None:
        produce(20)
        with opened_workers(successor, log) as workers:
            for worker in workers:
                drain(log, worker)
        log.purge(between, log.committed(name, [between])[between] or 0)
        log._topics.purges.flush()
        assert log.start_offsets([between])[between] >= 30

    produce(10)
    other = KafkaLog(broker.bootstrap, {"processing.guarantee": "at_least_once"})
    with opened_workers(zombie, other) as (first, second):
        drain(other, first)
        Count.pause = succeed
        with pytest.raises(FencedError, match="task 1_0"):
            drain(other, second)
        committed = log.committed(name, [between])[between]
        assert committed is not None and committed >= 30
        produce(1)
        drain(other, first)
        drain(other, second)
        assert second.task is not None and second.task.stores["counts"].get("k") == 31  # type: ignore[attr-defined]
    # What the zombie sent before its commit is there, too.
    values = [int.from_bytes(value, "big", signed=True) for _, value in contents(log, f"{name}.out")]
    assert set(values) == set(range(1, 32)) and values[-1] == 31
    other.close()
    log.close()


@pytest.fixture
def guarded() -> Iterator[KafkaBroker]:
    """A broker that asks who may do what, and too small for transactions."""
    options = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "transaction.state.log.replication.factor": "3",
        "offsets.retention.minutes": "240",
    }
    with KafkaBroker(options=options, credentials=("anna", "secret")) as broker:
        yield broker


@pytest.mark.parametrize(
    "give_up", [KafkaLog.delete_commits, lambda log, application: log.set_positions(application, {})]
)
def test_a_reset_sees_the_first_commit_that_has_just_returned(
    broker: KafkaBroker, give_up: Callable[..., None]
) -> None:
    """A reset that did not see it would not shut out its task: a list of positions lacks those of open transactions."""
    topic = fresh_name("t")
    make_topic(broker.bootstrap, topic)
    partition = TopicPartition(topic, 0)
    log = KafkaLog(broker.bootstrap)
    for _ in range(5):
        application = fresh_name("app")
        frozen = log.open_committer(application, "0_0", [partition])
        frozen.commit(Commit({partition: 1}, "one"), [])
        give_up(log, application)
        with pytest.raises(FencedError):
            frozen.commit(Commit({partition: 2}, "two"), [])
        frozen.close()
        assert log.committed(application, [partition]) == {partition: None}
    log.close()


def test_a_first_commit_is_listed_when_it_returns(broker: KafkaBroker) -> None:
    """Eight tasks at once: on a quiet broker most are listed at once anyway."""
    topic = fresh_name("t")
    make_topic(broker.bootstrap, topic)
    partition = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    with closing(KafkaLog(broker.bootstrap)) as log, ThreadPoolExecutor(8) as threads:

        def offset_after_first_commit(application: str) -> list[int]:
            with closing(log.open_committer(application, "0_0", [partition])) as committer:
                committer.commit(Commit({partition: 1}, "one"), [])
                asked = [ConsumerGroupTopicPartitions(application)]
                [found] = admin.list_consumer_group_offsets(asked, require_stable=True).values()
                return [each.offset for each in found.result().topic_partitions]

        listed = list(threads.map(offset_after_first_commit, [fresh_name("app") for _ in range(48)]))
    assert listed == [[1]] * 48


def test_a_new_cluster_and_what_it_must_allow(guarded: KafkaBroker) -> None:
    """Without transactions at least once is not possible either, and the error says what is missing."""
    # No group was ever used there: the client library crashed here.
    log = KafkaLog(guarded.bootstrap)
    log.delete_commits("nobody")
    log.close()
    name = fresh_name("app")
    make_topic(guarded.bootstrap, name)
    everything = [
        AclBinding(kind, "*", ResourcePatternType.LITERAL, "User:anna", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap, **QUIET})
    for future in admin.create_acls(everything).values():
        future.result()
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "anna",
        "sasl.password": "secret",
    }
    settings = {"processing.guarantee": "at_least_once", "task.timeout.ms": "2000"}
    # Idle tasks repeat their commits four times in the brokers' time, or twice a day where they may not ask for it.
    assert renewal_seconds(Clients(guarded.bootstrap, {})) == 3_600
    assert renewal_seconds(Clients(guarded.sasl_bootstrap, login)) == 12 * 3_600
    for where, client, expected in (
        (
            guarded.sasl_bootstrap,
            login,
            [
                f"task 0_0 of application '{name}'",
                "use of the transactional id is denied",
                "Write and Describe",
                f"'{name}-0_0'",
            ],
        ),
        (
            guarded.bootstrap,
            {},
            [
                "did not begin transactions",
                f"task 0_0 of application '{name}'",
                "transaction.state.log.replication.factor",
            ],
        ),
    ):
        log = KafkaLog(where, {**settings, **client})
        with pytest.raises(LogError) as caught:
            log.open_committer(name, "0_0", [TopicPartition(name, 0)])
        says(caught.value, where, *expected)
        log.close()


def test_positions_of_a_transaction_that_does_not_end(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where brokers have lost the end of one: they answer, so the error is not that they did not."""
    application, topic = fresh_name("app"), fresh_name("t")
    make_topic(broker.bootstrap, topic)
    other = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": fresh_name("other"), **QUIET})
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": application, **QUIET})
    other.init_transactions(30)
    other.begin_transaction()
    other.send_offsets_to_transaction([KafkaPartition(topic, 0, 7)], group.consumer_group_metadata(), 30)
    with closing(KafkaLog(broker.bootstrap, {"task.timeout.ms": "2000"})) as log:
        with pytest.raises(LogError) as caught:
            log.open_committer(application, "0_0", [TopicPartition(topic, 0)])
        says(
            caught.value,
            f"{broker.bootstrap} answers",
            f"a transaction with positions of task 0_0 of application '{application}' did not end for 2 s",
            "kafka-transactions.sh find-hanging",
        )
        assert log.visible_commit(application, "0_0", [TopicPartition(topic, 0)]) is None, "queries do not wait for it"
        monkeypatch.setattr(failures, "_SAYS_LATER", 0.0)
        with pytest.raises(LogError):
            log.last_commit(application, "0_0", [TopicPartition(topic, 0)])
        said = [each.getMessage() for each in caplog.records if "waiting for" in each.getMessage()]
        says(said[0], f"task 0_0 of application {application!r} (transactional id '{application}-0_0')")
        other.abort_transaction(30)
        log.open_committer(application, "0_0", [TopicPartition(topic, 0)]).close()
    group.close()


def test_positions_are_read_again_until_their_transaction_has_ended(broker: KafkaBroker) -> None:
    """A broker answers at once, with an error for each of them."""
    application, topic = fresh_name("app"), fresh_name("t")
    make_topic(broker.bootstrap, topic)
    other = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": fresh_name("other"), **QUIET})
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": application, **QUIET})
    other.init_transactions(30)
    clients, hasty = Clients(broker.bootstrap, {}), Clients(broker.bootstrap, {"task.timeout.ms": "1000"})

    def commit(offset: int) -> None:
        other.begin_transaction()
        other.send_offsets_to_transaction([KafkaPartition(topic, 0, offset)], group.consumer_group_metadata(), 30)

    def offsets(clients: Clients, stable: bool) -> list[int]:
        return [each.offset for each in ConsumerGroups(clients).positions(application, stable=stable)]

    commit(7)
    other.commit_transaction(30)
    assert offsets(clients, stable=True) == [7]
    commit(8)
    assert offsets(clients, stable=False) == [7]
    with pytest.raises(LogError, match="a transaction has not ended .*find-hanging"):
        offsets(hasty, stable=True)
    other.commit_transaction(30)
    assert offsets(clients, stable=True) == [8]
    group.close()
