"""Offsets that brokers have forgotten, and that nobody repeats: what tools have committed counts all the same."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from penstock import Application, Failure, Processor, Record, RetryAfter, Stage, Topology, key_value_store
from penstock.errors import IncompatibleStateError, LogError
from penstock.log import Commit
from penstock.plugins.engine.program.dead_letters import Selection, count_letters, group_of, replay
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.reset import plan_reset, reset, to_latest
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.state.transfer.reshard import plan_reshard, reshard, undo
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition
from penstock.support.names import changelog_topic
from penstock.task.dead_letter import letter_headers
from penstock.task.failures import RetryRequested
from tests.reshard.programs import Append
from tests.reshard.runs import outputs, produce, run, settings

from ..rotation import WHOLE, by_turns
from ..waiting import wait_until
from .names import fresh_name
from .shop import Shop
from .test_resharding import leased

pytestmark = pytest.mark.broker


def forget(broker: KafkaBroker, group: str, topic: str | None = None) -> None:
    """Delete a group's offsets, or those in one topic.

    That happens by itself `offsets.retention.minutes` after they were committed.
    """
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    admin.delete_consumer_groups([group])[group].result()
    kept = [each for each in found.topic_partitions if topic is not None and each.topic != topic]
    if kept:
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, kept)])[group].result()


def ends(log: KafkaLog, topic: str) -> list[int]:
    return list(log.end_offsets([TopicPartition(topic, 0)]).values())


def test_letters_are_not_replayed_again(broker: KafkaBroker) -> None:
    source, dead = fresh_name("source"), fresh_name("dead")
    with closing(KafkaLog(broker.bootstrap)) as log:
        for topic in (source, dead):
            log.create_topic(topic, 1)
        for number, error in enumerate((ValueError("v"), KeyError("k"), ValueError("v"))):
            failure = Failure(Stage.PROCESSING, error, "node", "0_0", source, 0, number, b"k", b"v")
            log.append(OutputBatch(dead, [b"k"], [b"v"], [number + 1], [letter_headers(failure)]))
        kinds = Selection(exceptions=("KeyError",))
        assert sum(each.records for each in replay(log, dead, kinds).sent) == 1
        forget(broker, group_of(dead))
        assert [waiting for _, waiting in count_letters(log, dead).values()] == [2, 0]
        assert replay(log, dead, kinds).sent == ()
        assert sum(each.records for each in replay(log, dead, Selection()).sent) == 2
        forget(broker, group_of(dead))
        before = ends(log, source)
        assert replay(log, dead, Selection()).sent == ()
        assert ends(log, source) == before
        # Of another topic of this name, none was replayed.
        log.delete_topic(dead)
        wait_until(lambda: dead not in log.topics())
        log.create_topic(dead, 1)
        log.append(OutputBatch(dead, [b"k"], [b"v"], [1], [letter_headers(failure)]))
        assert sum(each.records for each in replay(log, dead, Selection()).sent) == 1


def test_positions_to_start_from(broker: KafkaBroker) -> None:
    """They count until the first commit of the task; from then on a missing position is a lost one."""
    name = fresh_name("begun")
    one, two = partitions = [TopicPartition(name, number) for number in range(2)]
    with closing(KafkaLog(broker.bootstrap)) as log:
        log.create_topic(name, 2)
        log.set_positions(name, {one: 1, two: 2})
        assert log.commits_kept_until(name, partitions) is None, "they have copies"
        forget(broker, name)
        assert log.committed(name, partitions) == {one: 1, two: 2}
        assert log.last_commit(name, "0_0", [one]) is None
        with closing(log.open_committer(name, "0_0", [one])) as committer:
            assert committer.committed is None and committer.is_current()
            committer.commit(Commit({one: 5}, "v1"), [])
        kept_until = log.commits_kept_until(name, partitions)
        assert kept_until is not None and abs(kept_until / 1000 - time.time() - 7 * 86_400) < 600
        assert log.committed(name, partitions) == {one: 5, two: 2}
        forget(broker, name)
        assert log.committed(name, partitions) == {one: None, two: 2}
        log.set_positions(name, {one: 7})
        forget(broker, name)
        assert log.committed(name, partitions) == {one: 7, two: None}
        log.delete_commits(name)
        assert log.committed(name, partitions) == {one: None, two: None}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_lasting_commits(broker: KafkaBroker, guarantee: str) -> None:
    name = fresh_name("lasting")
    one, two = partitions = [TopicPartition(name, number) for number in range(2)]
    with closing(KafkaLog(broker.bootstrap, {"processing.guarantee": guarantee})) as log:
        log.create_topic(name, 2)
        with closing(log.open_lasting_committer(name, "0_0", partitions)) as committer:
            committer.commit(Commit({one: 1, two: 1}, "v1", b"{}"), [])
            committer.commit(commit := Commit({one: 3, two: 4}, "v2", b'{"a":1}'), [])
        for is_forgotten in (False, True):
            if is_forgotten:
                forget(broker, name)
            assert log.last_commit(name, "0_0", partitions) == commit
            assert log.visible_commit(name, "0_0", partitions) == commit
            assert log.committed(name, partitions) == commit.positions
            with closing(log.open_committer(name, "0_0", partitions)) as committer:
                assert committer.committed == commit
                assert log.are_current([committer]) == [committer.is_current()] == [True]
        with closing(log.open_committer(name, "0_0", partitions)) as committer:
            committer.commit(Commit({one: 5, two: 4}, "v3"), [])
            committer.commit(Commit({one: 6, two: 4}, "v4"), [])
        forget(broker, name)
        assert log.last_commit(name, "0_0", partitions) is None
        assert log.committed(name, partitions) == {one: None, two: None}


KEYS = ["a", "bb", "ccc", "dddd", "eeeee"]


def appending(broker: KafkaBroker, name: str, topic: str, directory: Path, changelog: str) -> Application:
    topology = Topology().add_source("in", topic).add_processor("keep", Append, "in", stores=[key_value_store("kept")])
    topology.add_sink("out", f"{name}-out", "keep")
    return Application(name, topology, **{**settings(directory, changelog), "log": f"kafka:{broker.bootstrap}"})


def refuse(topic: str) -> None:
    raise LogError(f"topic {topic!r} cannot be deleted: Topic authorization failed")


@pytest.mark.parametrize("changelog", ["directory:changes", "topic:"])
def test_a_reset_long_before_the_first_start(
    broker: KafkaBroker, tmp_path: Path, changelog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins where it was told, without state; also where nobody may delete topics, so the old state stays there."""
    shop = Shop(broker.bootstrap, tmp_path, changelog=changelog)
    shop.sell(("ann", 1), ("bob", 2))
    shop.run()
    with shop.log() as log:
        monkeypatch.setattr(log, "delete_topic", refuse)
        with suppress(LogError):
            reset(shop.application, log, plan_reset(shop.application, log, to_latest), lambda: None)
    forget(broker, shop.id)
    before = shop.sold()
    shop.sell(("ann", 10))
    shop.run()
    # The position in the topic of the changelog is repeated by nobody, and counts as long as the topic is there.
    forget(broker, shop.id, changelog_topic(shop.id, "totals"))
    shop.sell(("ann", 10), ("bob", 20))
    shop.run()
    assert shop.sold()[len(before) :] == [("ann", "10"), ("ann", "20"), ("bob", "20")]
    forget(broker, shop.id)
    with pytest.raises(IncompatibleStateError, match="had committed positions that are gone"):
        shop.run()


@pytest.mark.parametrize("changelog", ["directory:changes", "topic:"])
def test_resharded_long_before_the_first_start(broker: KafkaBroker, tmp_path: Path, changelog: str) -> None:
    """The new layout begins where the old one ended, and so does the old one after one went back to it."""
    name = fresh_name("reshard")
    topics = [f"{name}-{number}" for number in range(2)]
    app, new = (appending(broker, name, topic, tmp_path, changelog) for topic in topics)
    with closing(open_log(app.settings)) as log:
        for number, topic in enumerate((*topics, f"{name}-out")):
            log.create_topic(topic, number + 2)
        produce(log, topics[0], [(key, "0,", 1) for key in KEYS])
        run(app, log)
        with leased(log, name) as lease:
            assert reshard(plan_reshard(app, log, 3, sources={topics[0]: topics[1]}), log, lease).id != name
        forget(broker, name)
        forget(broker, f"{name}-layout-2")
        with leased(log, name) as lease:
            undo(app, log, lease)
        produce(log, topics[0], [(key, "1,", 1) for key in KEYS])
        run(app, log)
        with leased(log, name) as lease:
            reshard(plan_reshard(app, log, 3, sources={topics[0]: topics[1]}), log, lease)
        forget(broker, f"{name}-layout-3")
        produce(log, topics[1], [(key, "2,", 1) for key in KEYS])
        run(new, log)
        found = {key: [value for value, _ in sent] for key, sent in outputs(log, f"{name}-out").items()}
        assert found == {key.encode(): [b"0,", b"0,1,", b"0,1,2,"] for key in KEYS}


class Fails(Processor):
    def process(self, record: Record) -> None:
        raise ValueError("not yet")


@by_turns(3, WHOLE)
def test_what_a_broker_forgets_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause longer than the retention, after each tool and in each kind of task that commits nothing new."""
    options = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker(options=options))
        log = stack.enter_context(closing(KafkaLog(broker.bootstrap)))
        # Tools.
        source, dead = fresh_name("source"), fresh_name("dead")
        for topic in (source, dead):
            log.create_topic(topic, 1)
        failure = Failure(Stage.PROCESSING, ValueError("v"), "node", "0_0", source, 0, 0, b"k", b"v")
        log.append(OutputBatch(dead, [b"k"], [b"v"], [1], [letter_headers(failure)]))
        assert replay(log, dead, Selection()).sent
        begun, stopped = (Shop(broker.bootstrap, tmp_path, changelog="topic:") for _ in range(2))
        for shop in (begun, stopped):
            shop.sell(("ann", 1))
            shop.run()
            with shop.log() as opened:
                prepare(shop.application, opened)
        with begun.log() as opened, monkeypatch.context() as patch:
            patch.setattr(opened, "delete_topic", refuse)
            with suppress(LogError):
                reset(begun.application, opened, plan_reset(begun.application, opened, to_latest), lambda: None)
        name = fresh_name("reshard")
        old, new = (appending(broker, name, f"{name}-{number}", tmp_path, "topic:") for number in range(2))
        for number, topic in enumerate((f"{name}-0", f"{name}-1", f"{name}-out")):
            log.create_topic(topic, number + 2)
        produce(log, f"{name}-0", [(key, "0,", 1) for key in KEYS])
        run(old, log)
        with leased(log, name) as lease:
            reshard(plan_reshard(old, log, 3, sources={f"{name}-0": f"{name}-1"}), log, lease)
        # Tasks: one that waits before a retry, an idle one in batches, an idle one in the continuous mode.
        waiting, idle, looping = (Shop(broker.bootstrap, tmp_path) for _ in range(3))
        waiting.use(
            Topology().add_source("in", waiting.orders).add_processor("fail", Fails, "in"),
            processing_handler=lambda failure: RetryAfter("1h"),
        )
        for shop in (waiting, idle, looping):
            shop.sell(("ann", 1))
        tasks = []
        for shop in (waiting, idle):
            opened, worker = stack.enter_context(shop.worker())
            with suppress(RetryRequested):
                worker.try_batch(opened.end_offsets(worker.partitions), 0)
            tasks.append(worker)
        opened = stack.enter_context(looping.log())
        prepared = prepare(looping.application, opened)
        resources = ProcessResources()
        stack.callback(resources.close)
        loop = TaskLoop(prepared.application, prepared.tasks(), opened, resources, lambda: 0)
        loop.run(prepared.tasks(), {})
        stack.callback(loop.close)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})

        left = {stopped.id, group_of(dead), begun.id, f"{name}-layout-2"}

        def are_forgotten() -> bool:
            """Work on as the hosts do, and return whether the brokers have no offsets of what nobody runs."""
            loop.turn(0.2)
            assert not loop.take_failures()
            for worker in tasks:
                worker.renew(0)
            for group in sorted(left):
                found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
                if not any(each.offset >= 0 for each in found.topic_partitions):
                    left.discard(group)
            return not left

        wait_until(are_forgotten, "the offsets are forgotten", 240)
        with pytest.raises(IncompatibleStateError, match="had committed positions that are gone"):
            stopped.run()
        assert replay(log, dead, Selection()).sent == ()
        before = begun.sold()
        begun.sell(("ann", 10))
        begun.run()
        assert begun.sold()[len(before) :] == [("ann", "10")]
        produce(log, f"{name}-1", [(key, "1,", 1) for key in KEYS])
        run(new, log)
        sent = outputs(log, f"{name}-out")
        assert {key: [value for value, _ in found][-1] for key, found in sent.items()} == dict.fromkeys(
            map(str.encode, KEYS), b"0,1,"
        )
        for shop, position in ((waiting, 0), (idle, 1), (looping, 1)):
            assert shop.position(log) == position
