"""Errors that somebody keeps, with their tracebacks, keep no threads and no descriptors of Kafka's clients."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as KafkaPartition

from penstock.errors import FencedError, LogError, PenstockError, ProductionError, RecordRefusedError
from penstock.log import Commit
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka.process import free_ports
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from ..rotation import of_today
from ..waiting import wait_until
from .names import fresh_name

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads where Linux lists them")


class World:
    """A topic, a task that reads and writes it, and a topic that takes small records only."""

    def __init__(self, bootstrap: str, guarantee: str) -> None:
        self.bootstrap, self.guarantee = bootstrap, guarantee
        self.log = KafkaLog(bootstrap, {"processing.guarantee": guarantee})
        self.id, topic, self.small = fresh_name("app"), fresh_name("in"), fresh_name("small")
        self.partition = TopicPartition(topic, 0)
        self.log.create_topic(topic, 1)
        self.log.create_topic(self.small, 1, {"max.message.bytes": "300"})

    def outputs(self, *, size: int = 1, topic: str | None = None) -> list[OutputBatch]:
        return [OutputBatch(topic or self.partition.topic, [b"k"], [b"v" * size], [1], [(("h", b"v"),)])]

    def fenced(self) -> None:
        """A commit meets the fence of a successor."""
        zombie = self.log.open_committer(self.id, "0_0", [self.partition])
        try:
            zombie.send(self.outputs())
            successor = self.log.open_committer(self.id, "0_0", [self.partition])
            successor.commit(Commit({self.partition: 1}, "successor"), self.outputs())
            successor.close()
            zombie.commit(Commit({self.partition: 2}, "zombie"), self.outputs())
        finally:
            zombie.close()

    def fenced_by_a_reset(self) -> None:
        """The same, by who gives up all commits, and does not open the task."""
        zombie = self.log.open_committer(self.id, "0_0", [self.partition])
        try:
            zombie.commit(Commit({self.partition: 1}, "zombie"), [])
            self.log.set_positions(self.id, {self.partition: 0})
            zombie.commit(Commit({self.partition: 2}, "zombie"), self.outputs())
        finally:
            zombie.close()

    def given_up(self) -> None:
        """The broker aborts a transaction that takes too long, while records are in flight."""
        settings = {"processing.guarantee": self.guarantee, "producer.transaction.timeout.ms": "1000"}
        with closing(KafkaLog(self.bootstrap, settings)) as log:
            committers = [log.open_committer(self.id, f"1_{number}", [self.partition]) for number in range(8)]
            before = log.end_offsets([self.partition])[self.partition]
            for committer in committers:
                committer.send(self.outputs() * 1000)
            wait_until(lambda: log.end_offsets([self.partition])[self.partition] > before + len(committers))
            try:
                given_up = []
                for committer in committers:
                    try:
                        committer.send(self.outputs() * 3000)
                    except FencedError as error:
                        given_up.append(error)
                if given_up:
                    raise given_up[0]
                for committer in committers:
                    committer.commit(Commit({self.partition: 1}, "too late"), [])
            finally:
                for committer in committers:
                    committer.close()

    def not_opened(self) -> None:
        """Another program has set the positions, which is found after the fence was taken."""
        consumer = self.log._group(self.id)
        consumer.commit(offsets=[KafkaPartition(*self.partition, 7)], asynchronous=False)
        self.log.open_committer(self.id, "0_0", [self.partition]).close()

    def refused(self) -> None:
        """A record is too large for its topic."""
        committer = self.log.open_committer(self.id, "0_0", [self.partition])
        try:
            committer.send(self.outputs(size=1000, topic=self.small))
            committer.commit(Commit({self.partition: 1}, "one"), [])
        finally:
            committer.close()

    def no_topic(self) -> None:
        """An output's topic is not there."""
        committer = self.log.open_committer(self.id, "0_0", [self.partition])
        try:
            committer.send(self.outputs(topic="nowhere"))
        finally:
            committer.close()

    def refused_outside_of_a_task(self) -> None:
        """A record of the command line is too large."""
        self.log.append(self.outputs(size=1000, topic=self.small)[0])

    def out_of_range(self) -> None:
        """A fetch from an offset that is not there."""
        self.log.fetch(self.partition, 99_999, 100_000, 1)


def usage() -> tuple[int, int]:
    """Return the number of this process' threads and descriptors, once those of the last client have gone."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """What nothing refers to goes at once; what refers to itself would go at some time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def keeps_nothing(doing: Callable[[], None], error: type[PenstockError], times: int) -> None:
    """Do it a few times, keep what it raises, and assert that this costs neither threads nor descriptors."""
    kept: list[PenstockError] = []

    def once() -> None:
        try:
            doing()
        except error as raised:
            kept.append(raised)

    once()
    once()
    threads, descriptors = usage()
    for _ in range(times):
        once()
    assert len(kept) == times + 2
    with suppress(AssertionError):
        # A thread that has ended is listed for a moment longer.
        wait_until(lambda: usage()[0] <= threads and usage()[1] <= descriptors)
    assert usage()[0] <= threads and usage()[1] <= descriptors


@pytest.mark.parametrize(
    ("what", "guarantee", "error", "times"),
    of_today(
        [
            (World.fenced, "at_least_once", FencedError, 10),
            (World.fenced, "exactly_once", FencedError, 5),
            (World.fenced_by_a_reset, "at_least_once", FencedError, 2),
            (World.given_up, "exactly_once", FencedError, 2),
            (World.not_opened, "exactly_once", LogError, 2),
            (World.refused, "at_least_once", RecordRefusedError, 2),
            (World.refused, "exactly_once", RecordRefusedError, 2),
            (World.no_topic, "exactly_once", ProductionError, 2),
            (World.refused_outside_of_a_task, "exactly_once", RecordRefusedError, 2),
            (World.out_of_range, "exactly_once", LogError, 2),
        ],
        2,
    ),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_with_a_broker(
    broker: KafkaBroker, what: Callable[[World], None], guarantee: str, error: type[PenstockError], times: int
) -> None:
    world = World(broker.bootstrap, guarantee)
    keeps_nothing(lambda: what(world), error, times)
    world.log.close()


def test_a_broker_that_is_away() -> None:
    where = f"127.0.0.1:{free_ports(1)[0]}"

    def ask() -> None:
        log = KafkaLog(where, {"task.timeout.ms": "300"})
        try:
            log.open_committer("app", "0_0", [TopicPartition("in", 0)])
        finally:
            log.close()

    keeps_nothing(ask, LogError, 4)
