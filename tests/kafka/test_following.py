"""Following a cluster: pauses of what is much, and brokers that are away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock.errors import LogError
from penstock.plugins.logs.kafka import following
from penstock.plugins.logs.kafka.columns import Taken
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.logs.kafka.reading import size_of
from penstock.plugins.testing.contracts.log_following import follow_until, poll_into, records_in
from penstock.plugins.testing.contracts.log_tests import settled_ends
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from .names import fresh_name

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("test_following")]


@pytest.fixture(scope="module")
def own() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def topic(own: KafkaBroker) -> str:
    topic = fresh_name("in")
    with closing(KafkaLog(own.bootstrap)) as log:
        log.create_topic(topic, 2)
    return topic


def append(log: KafkaLog, topic: str, partition: int, count: int, size: int = 1) -> None:
    values: list[bytes | None] = [b"%0*d" % (size, number) for number in range(count)]
    log.append(OutputBatch(topic, [b"k"] * count, values, [1] * count, None, [[partition]] * count))


def test_little_is_kept_of_all_paused_partitions_together(own: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_MOST_KEPT_BYTES", 40_000)
    topic, count = fresh_name("in"), 20
    with closing(KafkaLog(own.bootstrap)) as log, closing(log.follow()) as follower:
        log.create_topic(topic, count)
        partitions = [TopicPartition(topic, number) for number in range(count)]
        for number in range(count):
            append(log, topic, number, 1000, 200)
        ends = settled_ends(log, partitions)
        positions = dict.fromkeys(partitions, 0)
        follower.add(positions)
        follower.pause(partitions)
        deadline, kept = time.monotonic() + 60, 0
        while len(follower._stopped) < count and time.monotonic() < deadline:
            assert not follower.poll(0.01, 50)
            kept = sum(size_of(batch) for batches in follower._kept.values() for batch in batches if len(batch))
        assert len(follower._stopped) == count and 40_000 < kept < 1_000_000
        follower.resume(partitions)
        found = follow_until(follower, positions, ends)
        assert {each: len(found[each]) for each in partitions} == dict.fromkeys(partitions, 1000)


def test_a_long_pause(own: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is kept of the paused partition, and it continues where it was, however often it is paused."""
    monkeypatch.setattr(following, "_KEPT_BYTES", 20_000)
    paused, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with closing(KafkaLog(own.bootstrap)) as log, closing(log.follow()) as follower:
        append(log, topic, 0, 3000, 100)
        append(log, topic, 1, 3000, 100)
        ends = settled_ends(log, [paused, other])
        positions = {paused: 0, other: 0}
        follower.add(positions)
        found = follow_until(follower, positions, {paused: 1})
        while positions[paused] < ends[paused]:
            follower.pause([paused])
            at = positions[paused]
            for _ in range(30):
                poll_into(follower, found, positions, 0.01, 100)
            assert positions[paused] == at
            assert sum(map(len, follower._kept.get(paused, []))) < 500
            follower.resume([paused])
            for partition, records in follow_until(follower, positions, {paused: min(at + 900, ends[paused])}).items():
                found[partition] = found.get(partition, []) + records
        assert found[paused] == records_in(log, paused)
        for partition, records in follow_until(follower, positions, ends).items():
            found[partition] += records
        assert found[other] == records_in(log, other)


def test_a_broker_that_is_killed(own: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower continues when it is back; one that is not patient raises an error meanwhile."""
    monkeypatch.setattr(following, "_CHECK_EVERY", 0.2)
    partitions = [TopicPartition(topic, number) for number in range(2)]
    with (
        closing(KafkaLog(own.bootstrap)) as log,
        closing(KafkaLog(own.bootstrap, {"task.timeout.ms": "1500"})) as hasty,
        closing(log.follow()) as follower,
        closing(hasty.follow()) as impatient,
    ):
        append(log, topic, 0, 10)
        positions = dict.fromkeys(partitions, 0)
        follower.add(positions)
        impatient.add(positions)
        found = follow_until(follower, positions, {partitions[0]: 10})
        own.kill()
        began = time.monotonic()
        with pytest.raises(LogError, match=r"did not answer for 1.5 s \(task_timeout\) while following"):
            while True:
                impatient.poll(0.1, 100)
        assert time.monotonic() - began >= 1.4
        assert follower.poll(0.1, 100) == []
        starting = threading.Thread(target=own.start)
        starting.start()
        while starting.is_alive():
            assert follower.poll(0.1, 100) == []
        starting.join()
        append(log, topic, 1, 10)
        append(log, topic, 0, 5)
        ends = settled_ends(log, partitions)
        for partition, records in follow_until(follower, positions, ends).items():
            found[partition] = found.get(partition, []) + records
        assert found == {each: records_in(log, each) for each in partitions}


def test_a_partition_that_does_not_answer_is_an_error_of_its_own(
    own: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks wait until the log has said where it is, so it must not say nothing for ever."""
    monkeypatch.setattr(following, "_CHECK_SECONDS", 0.05)
    silent, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with (
        closing(KafkaLog(own.bootstrap)) as log,
        closing(KafkaLog(own.bootstrap, {"task.timeout.ms": "500"})) as hasty,
        closing(hasty.follow()) as follower,
    ):
        append(log, topic, 1, 10)
        positions = {other: 0}
        follower.add(positions)
        follow_until(follower, positions, {other: 10})

        class Silent:
            """A consumer that gets no answer of one partition, as one of which the leader is gone."""

            def __init__(self, consumer: Any) -> None:
                self._consumer = consumer

            def __getattr__(self, name: str) -> Any:
                return getattr(self._consumer, name)

            def take(self, most: int, seconds: float, topics: Any) -> Taken:
                taken = self._consumer.take(most, seconds, topics)
                return Taken(
                    [each for each in taken.batches if each.partition != silent.partition],
                    [each for each in taken.events if each.partition != silent],
                )

            def get_watermark_offsets(self, partition: Any, cached: bool) -> Any:
                if partition.partition == silent.partition:
                    return -1001, -1001
                return self._consumer.get_watermark_offsets(partition, cached=cached)

        with monkeypatch.context() as patched:
            patched.setattr(follower, "_consumer", Silent(follower._consumer))
            follower.add({silent: 0})
            positions[silent] = 0
            with pytest.raises(
                LogError, match=r"answers, and has not said where .*-0 ends.* 0.5 s \(task_timeout\)"
            ) as e:
                while True:
                    poll_into(follower, {}, positions, 0.05, 100)
            assert e.value.partition == silent
            assert follower.ends() == {silent: None, other: 10}
        follower.remove([silent])
        follower.add({silent: 0})
        append(log, topic, 0, 5)
        positions[silent] = 0
        assert len(follow_until(follower, positions, {silent: 5})[silent]) == 5


def test_a_wait_does_not_spin(own: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka waits whole milliseconds: with a part of one it returns at once."""
    log = KafkaLog(own.bootstrap)
    follower = log.follow()
    follower.add({TopicPartition(topic, 0): 0})
    calls = 0

    class Counting:
        def __init__(self, consumer: Any) -> None:
            self._consumer = consumer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._consumer, name)

        def take(self, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return self._consumer.take(*arguments)

    monkeypatch.setattr(follower, "_consumer", Counting(follower._consumer))
    for _ in range(20):
        follower.poll(0.0105, 10)
    assert calls <= 20 * 15
    follower.close()
    log.close()
