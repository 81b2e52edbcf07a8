"""The readers of a process: a few consumers for any number of partitions."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException

from penstock import TopicPartition

from .clients import FETCH_WAIT_MS, Clients
from .reading import PartitionReader

MOST_READERS = 8
"""How many consumers a process keeps; each has some threads and up to `queued.max.messages.kbytes` of records."""
CONSUMER_FILES = 8
"""How many file descriptors a consumer needs with one broker."""
_QUIET_SECONDS = 2 * FETCH_WAIT_MS / 1000
READER_GROUP = "penstock"
"""The group of consumers that only read: librdkafka needs a name, though they neither join nor commit."""


@dataclass
class _Free:
    """A consumer without a partition, the one that it had last, where that was left, when, and which topics it had."""

    consumer: Consumer
    partition: TopicPartition
    next: int
    since: float
    topics: frozenset[str]


class Readers:
    """The readers of a process, by partition. Thread-safe.

    A consumer reads one partition at a time. It keeps that partition while there are records to read ahead. At the end
    of the partition it is given up, so a process that has nothing to read sends no requests. Another partition takes
    over the consumer that was used least recently.

    A consumer never goes back in a partition: an end that it still reports from before would then skip records.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._ahead: OrderedDict[TopicPartition, PartitionReader] = OrderedDict()
        self._free: list[_Free] = []  # the longest unused first

    @contextmanager
    def reader(self, partition: TopicPartition, offset: int) -> Iterator[PartitionReader]:
        """Lend a reader that is at `offset`. An exception closes it, because its prefetched records may have gaps."""
        with self._lock:
            reader = self._ahead.pop(partition, None)
        if reader is not None and reader.next != offset:
            reader.close()
            reader = None
        if reader is None:
            consumer, topics = self._consumer(partition, offset)
            reader = PartitionReader(
                self._clients, consumer or self._clients.consumer(READER_GROUP), partition, offset, topics
            )
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        self._take_back(reader)

    def forget(self, topic: str) -> None:
        """Close the consumers that have read a topic last."""
        with self._lock:
            gone: list[PartitionReader | Consumer] = [
                self._ahead.pop(each) for each in list(self._ahead) if each.topic == topic
            ]
            gone += [each.consumer for each in self._free if each.partition.topic == topic]
            self._free = [each for each in self._free if each.partition.topic != topic]
        for reader in gone:
            reader.close()

    def close(self) -> None:
        """Close all consumers."""
        with self._lock:
            gone: list[PartitionReader | Consumer] = [*self._ahead.values(), *(each.consumer for each in self._free)]
            self._ahead, self._free = OrderedDict(), []
        for reader in gone:
            reader.close()

    # ------------------------------------------------------------------ inside

    def _consumer(self, partition: TopicPartition, offset: int) -> tuple[Consumer | None, frozenset[str]]:
        """Return a consumer to use for `partition` from `offset` on, and the topics that it had; None: make one."""
        with self._lock:
            is_full = len(self._ahead) + len(self._free) >= MOST_READERS
            for each in self._free:
                # A request for the partition that it had may wait for records a little longer.
                if not is_full and time.monotonic() < each.since + _QUIET_SECONDS:
                    break
                if each.partition != partition or each.next <= offset:
                    self._free.remove(each)
                    return each.consumer, each.topics
            if not is_full or not self._ahead:
                return None, frozenset()
            _, reader = self._ahead.popitem(last=False)
        consumer = _left(reader)
        return consumer, frozenset() if consumer is None else reader.topics

    def _take_back(self, reader: PartitionReader) -> None:
        try:
            has_more = reader.has_more()
        except KafkaException:
            reader.close()  # the next fetch meets the error again
            return
        consumer = None if has_more else _left(reader)
        gone: list[PartitionReader | Consumer] = []
        with self._lock:
            if has_more:
                if reader.partition in self._ahead:
                    gone.append(self._ahead.pop(reader.partition))
                self._ahead[reader.partition] = reader
            elif consumer is not None:
                self._free.append(_Free(consumer, reader.partition, reader.next, time.monotonic(), reader.topics))
            while len(self._ahead) + len(self._free) > MOST_READERS:
                gone.append(self._free.pop(0).consumer if self._free else self._ahead.popitem(last=False)[1])
        for each in gone:
            each.close()


def _left(reader: PartitionReader) -> Consumer | None:
    """Return a reader's consumer, without its partition; None if it could not leave that."""
    try:
        return reader.leave()
    except KafkaException:
        return None
