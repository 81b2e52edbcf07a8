"""The Kafka log over a real broker."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from penstock.clock import ManualClock
from penstock.errors import FencedError, LeaseHeldError, LogError
from penstock.log import Commit, Lease, Log
from penstock.plugins.engine.task.epoch import begin_epoch, current_epoch
from penstock.plugins.logs.kafka import columns, notes
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.logs.kafka.producing import Outbox
from penstock.plugins.logs.partitioner import NULL_KEY_RUN
from penstock.plugins.testing.contracts.log import LogContract
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from ..kafka.names import fresh_name
from ..kafka.ways import way  # noqa: F401
from ..waiting import wait_until


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
@pytest.mark.xdist_group("log_contract")
class TestContract(LogContract):
    """All that any log must keep; a new directory stands for a broker without topics."""

    examples: ClassVar[int] = 5
    races: ClassVar[int] = 0  # each call of a broker takes long
    maintains: ClassVar[bool] = False
    in_one_process: ClassVar[bool] = True  # the broker writes, and it is no process of a test
    sees_successors: ClassVar[bool] = False
    ends_are_exact: ClassVar[bool] = False
    earliest_timestamp: ClassVar[int] = 1
    latest_timestamp: ClassVar[int] = 1_700_000_000_000

    guarantee: ClassVar[str] = "exactly_once"
    bootstrap: ClassVar[str]
    seen: ClassVar[set[Path]] = set()

    @pytest.fixture(autouse=True)
    def _broker(self, own_broker: KafkaBroker) -> None:
        type(self).bootstrap = own_broker.bootstrap

    def open_log(self, directory: Path, clock: ManualClock) -> KafkaLog:
        if directory not in self.seen:
            self.seen.add(directory)
            empty(self.bootstrap)
        return KafkaLog(self.bootstrap, {"processing.guarantee": self.guarantee})

    def delete_old_commits(self, log: Log, application_id: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_consumer_groups([application_id])[application_id].result()

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

    def test_notes_that_were_read_are_kept(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are not read again; those of another writer are, and those of a topic that was made again."""
        assert isinstance(log, KafkaLog)
        log.put_meta("noted", "note", b"one")
        assert log.get_meta("noted", "note") == b"one"
        with monkeypatch.context() as patch:
            patch.setattr(log._clients, "reader", None)
            assert log.get_meta("noted", "note") == b"one"
            assert log.get_meta("noted", "other") is None
            patch.setattr(notes, "_KNOWN_SECONDS", 0.0)
            with pytest.raises(TypeError):  # a note may have been deleted so long ago that nothing says so
                log.get_meta("noted", "note")
        with closing(KafkaLog(self.bootstrap)) as other:
            other.put_meta("noted", "note", b"two")
            assert log.get_meta("noted", "note") == b"two"
        log.delete_topic("noted-penstock-notes")
        for value in (b"three", b"four"):  # as many as before
            log.put_meta("noted", "note", value)
        assert log.get_meta("noted", "note") == b"four"
        log.delete_commits("noted")
        assert log.get_meta("noted", "note") is None

    def test_a_note_under_a_lost_lease_changes_nothing(self, log: Log, clock: ManualClock) -> None:
        """Also if its writer is frozen when it has the fence, and has seen that the lease is its own."""
        lease = log.lease("application", "driver one", 10)
        lease.put_meta("beside", "note", b"one")
        assert log.get_meta("beside", "note") == b"one"
        renew, successors = lease.renew, []

        def renew_and_freeze(**how: bool) -> None:
            renew(**how)
            successors.append(wait_for_lease(log, "driver two"))

        lease.renew = renew_and_freeze  # type: ignore[method-assign]
        with pytest.raises(FencedError, match="driver one"):
            lease.put_meta("beside", "note", b"late")
        lease.renew = renew  # type: ignore[method-assign]
        with pytest.raises(FencedError, match="driver one"):
            lease.put_meta("beside", "note", b"later")
        assert log.get_meta("beside", "note") == b"one"
        [successor] = successors
        successor.put_meta("beside", "note", b"two")
        assert log.get_meta("beside", "note") == b"two"
        successor.release()
        log.lease("application", "driver three", 10_000).release()


class TestCommitsAtLeastOnce(TestContract):
    """What a commit is does not depend on the guarantee."""

    guarantee: ClassVar[str] = "at_least_once"
    sent_is_hidden: ClassVar[bool] = False


_COMMITS = {
    "test_a_record_that_is_too_large_changes_nothing",
    "test_a_commit_is_one_step",
    "test_whoever_was_replaced_is_fenced",
    "test_what_is_sent_ahead_is_there_once",
    "test_an_output_without_a_topic_changes_nothing",
    "test_a_closed_committer_commits_nothing",
    "test_forgetting_an_application",
    "test_an_application_is_told_where_to_begin",
}
for name in dir(TestContract):
    if name.startswith("test_") and name not in _COMMITS:
        setattr(TestCommitsAtLeastOnce, name, None)


def wait_for_lease(log: Log, owner: str, application_id: str = "application") -> Lease:
    deadline = time.monotonic() + 180
    while True:
        try:
            return log.lease(application_id, owner, 10_000)
        except LogError:
            assert time.monotonic() < deadline


@pytest.mark.broker
def test_leases_that_are_over_keep_no_keys(broker: KafkaBroker) -> None:
    """The lease is read whole at each renewal: it must not grow with the number of starts."""
    application, log = fresh_name("app"), KafkaLog(broker.bootstrap)
    claims = TopicPartition(f"{application}-penstock-notes", 1)

    def keys() -> int:
        end = log.end_offsets([claims])[claims]
        last = {
            key: value
            for batch in log.fetch(claims, 0, end, 1 << 20)
            for key, value in zip(batch.keys, batch.values, strict=True)
        }
        return sum(value is not None for value in last.values())

    for number in range(3):
        log.lease(application, f"driver {number}", 60_000).release()
    assert keys() == 0
    log.lease(application, "killed", 1)
    lease = wait_for_lease(log, "present", application)
    assert keys() == 1
    with pytest.raises(LogError, match="present"):
        log.lease(application, "rival", 60_000)
    lease.renew()
    assert keys() == 1
    lease.release()
    log.lease(application, "next", 60_000).release()
    log.close()


@pytest.mark.broker
def test_who_waits_for_a_lease_looks_and_claims_it_when_it_is_over(broker: KafkaBroker) -> None:
    application = fresh_name("app")
    claims = TopicPartition(f"{application}-penstock-notes", 1)
    with closing(KafkaLog(broker.bootstrap)) as log, closing(KafkaLog(broker.bootstrap)) as waiting:
        lease = log.lease(application, "present", 60_000)
        before = log.end_offsets([claims])[claims]
        for _ in range(20):
            with pytest.raises(LeaseHeldError, match="present"):
                waiting.lease(application, "waiting", 10_000)
        assert log.end_offsets([claims])[claims] <= before + 2, "one claim, which is withdrawn"
        lease.release()
        lease = waiting.lease(application, "waiting", 1_500)
        with pytest.raises(LeaseHeldError, match="waiting"):
            log.lease(application, "next", 10_000)
        lease.renew()
        again = log.end_offsets([claims])[claims]
        wait_for_lease(log, "next", application).release()
        assert log.end_offsets([claims])[claims] <= again + 4, "claimed once, when it was over; then given up"
        found = log.fetch(claims, 0, log.end_offsets([claims])[claims], 1 << 20)
        assert len({key for batch in found for key in batch.keys}) == 3, "a token for each process"


@pytest.mark.broker
def test_who_waits_for_a_lease_looks_though_the_brokers_clock_was_set_back(broker: KafkaBroker) -> None:
    application = fresh_name("app")
    claims = TopicPartition(f"{application}-penstock-notes", 1)
    with closing(KafkaLog(broker.bootstrap)) as log, closing(KafkaLog(broker.bootstrap)) as waiting:
        log.create_topic(claims.topic, 2, {"message.timestamp.type": "CreateTime"})
        ahead_ms = int(time.time() * 1000) + 1_800_000
        claim = b'{"owner": "before", "ttl_ms": 1000}'
        log.append(OutputBatch(claims.topic, [b"t", b"t"], [claim, None], [ahead_ms] * 2, None, [[1], [1]]))
        change = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, claims.topic, incremental_configs=[change])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result()
        timestamps = [1]
        while timestamps[-1] == 1:  # the broker takes the change a moment later
            log.append(OutputBatch(claims.topic, [b"t"], [None], [1], None, [[1]]))
            end = log.end_offsets([claims])[claims]
            timestamps = [at for batch in log.fetch(claims, 0, end, 1 << 20) for at in batch.timestamps]
        lease = log.lease(application, "present", 60_000)
        before = log.end_offsets([claims])[claims]
        for _ in range(5):
            with pytest.raises(LeaseHeldError, match="present"):
                waiting.lease(application, "waiting", 10_000)
        assert log.end_offsets([claims])[claims] <= before + 2, "one claim, which is withdrawn"
        lease.release()


@pytest.mark.broker
def test_readers_leave_an_open_transaction_of_notes_alone(broker: KafkaBroker) -> None:
    """The process that changes a note may be slow: status, plan and queries, which ask often, must not fence it."""
    application = fresh_name("app")
    with closing(KafkaLog(broker.bootstrap)) as log, closing(KafkaLog(broker.bootstrap)) as reader:
        begin_epoch(application, log)
        slow = _open_transaction(broker, application)
        for _ in range(2):
            assert reader.get_meta(application, "paused") is None
        slow.commit_transaction(30)
        wait_until(lambda: reader.get_meta(application, "paused") == b"value")


@pytest.mark.broker
def test_a_start_reads_notes_behind_a_transaction_of_a_killed_process(broker: KafkaBroker) -> None:
    """The transaction would hide them, so a start would work with what was written before."""
    application = fresh_name("app")
    with closing(KafkaLog(broker.bootstrap)) as log, closing(KafkaLog(broker.bootstrap)) as starting:
        begin_epoch(application, log)
        killed = _open_transaction(broker, application)
        # The start that wrote this one was killed before it could be read.
        plain = Producer({"bootstrap.servers": broker.bootstrap})
        plain.produce(f"{application}-penstock-notes", b"later", b"epoch", partition=0)
        plain.flush(30)
        lease = starting.lease(application, "driver", 60_000)
        assert current_epoch(application, starting) == "later"
        with pytest.raises(KafkaException):
            killed.commit_transaction(30)
        _open_transaction(broker, application)
        assert begin_epoch(application, starting) == current_epoch(application, log)
        _open_transaction(broker, application)
        lease.put_meta(application, "under", b"the lease")
        assert log.get_meta(application, "under") == b"the lease"
        lease.release()


def _open_transaction(broker: KafkaBroker, application: str) -> Producer:
    """Begin to change a note, as a process does that is slow, or was killed."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{application}-notes"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(f"{application}-penstock-notes", b"value", b"paused", partition=0)
    producer.flush(30)
    return producer


def test_records_of_a_sink_that_names_no_part_of_the_key_are_spread_over_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each batch has one record, as where a task commits often. No broker is needed to see the partitions."""

    def delivered(self: object, error: KafkaError | None, message: Message) -> None:
        found[message.partition()] += 1

    found: Counter[int | None] = Counter()
    monkeypatch.setattr(columns._Reported, "delivered", delivered)
    monkeypatch.setattr(columns, "_module", None)
    with closing(KafkaLog("127.0.0.1:1")) as log, closing(Outbox(log._clients, lambda topic: 3)) as outbox:
        for _ in range(3 * NULL_KEY_RUN):
            outbox.send(OutputBatch("topic", [b"key"], [b"value"], [1], None, None, [None]))
        outbox.settle()  # gives them up
    assert found == dict.fromkeys(range(3), NULL_KEY_RUN)


@pytest.mark.broker
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts native threads where Linux lists them")
def test_a_closed_committer_leaves_no_threads(broker: KafkaBroker) -> None:
    """Tasks are opened and closed as long as an application lives, and each has some of librdkafka's threads."""
    log = KafkaLog(broker.bootstrap)
    topic = fresh_name("in")
    log.create_topic(topic, 1)
    partition = TopicPartition(topic, 0)

    def open_and_close() -> int:
        committer = log.open_committer(topic, "0_0", [partition])
        committer.commit(Commit({partition: 0}, "v1"), [])
        committer.close()
        return len(list(Path("/proc/self/task").iterdir()))

    first = [open_and_close() for _ in range(2)][-1]
    gc.disable()
    try:
        assert max(open_and_close() for _ in range(4)) <= first + 2
    finally:
        gc.enable()
    log.close()
