"""Readers that share a few consumers: what they return, what they cost, and what one partition's error leaves alone."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from penstock.errors import OffsetOutOfRangeError
from penstock.plugins.logs.kafka import following, reading
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.logs.kafka.reading import CONSUMER_FILES, MOST_READERS, introduce
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from ..waiting import wait_until
from .names import fresh_name

_PARTITIONS = 24


@pytest.fixture
def log(broker: KafkaBroker) -> Iterator[KafkaLog]:
    log = KafkaLog(broker.bootstrap)
    yield log
    log.close()


def consumers(log: KafkaLog) -> tuple[int, int]:
    """Return how many consumers read ahead, and how many have no partition."""
    return len(log._readers._ahead), len(log._readers._free)


def append(log: KafkaLog, partition: TopicPartition, *values: bytes) -> None:
    count = len(values)
    log.append(
        OutputBatch(partition.topic, [b"k"] * count, list(values), [1] * count, None, [(partition.partition,)] * count)
    )


def values(log: KafkaLog, partition: TopicPartition, offset: int, end: int, max_bytes: int = 1 << 20) -> list[object]:
    return [each for batch in log.fetch(partition, offset, end, max_bytes) for each in batch.values]


@pytest.fixture(scope="module")
def history(broker: KafkaBroker) -> tuple[str, list[list[tuple[int, bytes]]], list[int]]:
    """Return a topic, its committed records by partition, and its ends: there are markers and aborted records."""
    topic, chance = fresh_name("in"), random.Random(11)
    log = KafkaLog(broker.bootstrap)
    log.create_topic(topic, _PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    records: list[list[tuple[int, bytes]]] = [[] for _ in range(_PARTITIONS)]
    ends = [0] * _PARTITIONS
    for number in range(8):
        producer.begin_transaction()
        new: dict[int, list[tuple[int, bytes]]] = {}
        for partition in range(_PARTITIONS):
            for at in range(chance.randrange(30)):
                value = b"%d-%d" % (number, at) * chance.randrange(1, 20)
                producer.produce(topic, value, b"k", partition)
                new.setdefault(partition, []).append((ends[partition] + at, value))
        if number % 3:
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
        for partition, found in new.items():
            records[partition] += found if number % 3 else []
            ends[partition] = found[-1][0] + 2
    expected = {TopicPartition(topic, partition): end for partition, end in enumerate(ends)}
    wait_until(lambda: log.end_offsets(list(expected)) == expected)
    log.close()
    del producer
    return topic, records, ends


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_fetches(
    log: KafkaLog, history: tuple[str, list[list[tuple[int, bytes]]], list[int]], seed: int
) -> None:
    """Forwards, backwards, in pieces and by several threads: each fetch returns its own records, all of them."""
    topic, records, ends = history

    def fetch(thread: int) -> None:
        chance = random.Random(seed * 100 + thread)
        for _ in range(150):
            number = chance.randrange(thread, _PARTITIONS, 4)
            partition, at = TopicPartition(topic, number), chance.randrange(ends[number] + 1)
            end = chance.choice([ends[number], chance.randrange(ends[number] + 1)])
            for _ in range(3):
                if at >= end:
                    break
                batches = log.fetch(partition, at, end, chance.choice([1, 500, 1 << 20]))
                after = batches[-1].next_offset if batches else end
                found = [each for batch in batches for each in zip(batch.offsets, batch.values, strict=True)]
                assert found == [each for each in records[number] if at <= each[0] < min(after, end)]
                assert at < after <= end
                at = after

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fetch, range(4)))
    assert sum(consumers(log)) <= MOST_READERS


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors where Linux lists them")
def test_further_partitions_need_no_further_consumers(
    log: KafkaLog, history: tuple[str, list[list[tuple[int, bytes]]], list[int]]
) -> None:
    """And at the end of its partition a consumer gives it up: a process that reads nothing sends no requests."""
    topic, records, ends = history
    log.end_offsets([TopicPartition(topic, 0)])
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number, end in enumerate(ends):
        assert values(log, TopicPartition(topic, number), 0, end) == [value for _, value in records[number]]
        assert consumers(log)[0] == 0
    assert len(os.listdir("/proc/self/fd")) - before <= MOST_READERS * CONSUMER_FILES + 2


def test_records_are_read_ahead_while_there_are_more(log: KafkaLog) -> None:
    """By at most so many consumers; a partition whose consumer was taken away continues where it was."""
    topic = fresh_name("in")
    log.create_topic(topic, MOST_READERS + 4)
    partitions = [TopicPartition(topic, number) for number in range(MOST_READERS + 4)]
    records = [b"%d" % number for number in range(20)]
    for partition in partitions:
        append(log, partition, *records)
    for count, partition in enumerate(partitions, start=1):
        assert values(log, partition, 0, 10) == records[:10]
        assert consumers(log) == (min(count, MOST_READERS), 0)
    for partition in partitions:
        assert values(log, partition, 10, 15) == records[10:15]
        assert consumers(log) == (MOST_READERS, 0)
    for partition in partitions:
        assert values(log, partition, 15, 20) == records[15:]
    assert consumers(log)[0] == 0


def test_a_consumer_is_told_of_a_topic_that_it_has_not_had(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would find the topic within a second, in which a task could have read a hundred thousand records."""
    told: list[set[str]] = []

    def noted(consumer: Consumer, topics: Iterable[str]) -> None:
        told.append(set(topics))
        introduce(consumer, topics)

    for module in (reading, following):
        monkeypatch.setattr(module, "introduce", noted)
    monkeypatch.setattr(reading, "_QUIET_SECONDS", 0.0)  # so that each fetch takes the one consumer
    first, second = fresh_name("in"), fresh_name("in")
    partitions = [TopicPartition(topic, number) for topic in (first, second) for number in range(2)]
    for topic in (first, second):
        log.create_topic(topic, 2)
    for partition in partitions:
        append(log, partition, b"x")
        assert values(log, partition, 0, 1) == [b"x"]
    assert consumers(log) == (0, 1)
    assert told == [set(), {second}, set()], "a new consumer looks for its first topic by itself"
    with closing(log.follow()) as follower:
        for partition in partitions:
            follower.add({partition: 0})
    assert told[3:] == [set(), {second}, set()]


def test_an_offset_out_of_range_disturbs_no_other_partition(log: KafkaLog) -> None:
    topic = fresh_name("in")
    log.create_topic(topic, 3)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    for partition in partitions:
        append(log, partition, b"a", b"b", b"c")
    for _ in range(3):
        assert values(log, partitions[0], 0, 2) == [b"a", b"b"]
        with pytest.raises(OffsetOutOfRangeError, match=f"offset 7 .*{topic}.* partition 1 "):
            log.fetch(partitions[1], 7, 9, 100)
        assert values(log, partitions[2], 1, 3) == [b"b", b"c"]
        assert values(log, partitions[0], 2, 3) == [b"c"]


def test_a_topic_that_another_process_made_again(log: KafkaLog, broker: KafkaBroker) -> None:
    """The consumers that read the old topic read the new one."""
    topic = fresh_name("in")
    partition = TopicPartition(topic, 0)
    other = KafkaLog(broker.bootstrap)
    for number in range(3):
        other.create_topic(topic, 1)
        append(other, partition, b"%d" % number, b"end")
        assert values(log, partition, 0, 2) == [b"%d" % number, b"end"]
        other.delete_topic(topic)
    other.close()
