"""Reading records: a few consumers for the partitions of a process, and their messages by column."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from penstock import RecordBatch, TopicPartition

from ..messages import about_bytes
from .clients import FETCH_WAIT_MS, Clients
from .columns import Reader, Taken, cut
from .failures import error_of, is_retriable

_log = logging.getLogger("penstock.kafka")

MESSAGES = 400
"""How many messages are taken from a consumer at once: few enough that they are still in the processor's cache when
they are taken apart."""
_BLOCK_SECONDS = 0.1
_INTRODUCTION_SECONDS = 0.5
_SAMPLED = 32


class PartitionReader:
    """Reads one partition from `offset` on, with a consumer that has no other partition. Used by one thread at a time.

    It never seeks. Its consumer may have had other partitions before, and the same one only up to `offset`: an event
    from before would then say nothing that is wrong (see `Readers`).
    """

    def __init__(
        self,
        clients: Clients,
        consumer: Reader,
        partition: TopicPartition,
        offset: int,
        topics: frozenset[str] = frozenset(),
    ) -> None:
        self.partition = partition
        self.topics = topics | {partition.topic}
        """All topics that the consumer has or had; `topics` are the ones it had before."""
        self.next = offset
        """The offset at which the last fetch ended, and the next one begins."""
        self._clients = clients
        self._consumer = consumer
        self._kept: list[RecordBatch] = []  # records after `next`
        self._ended = -1  # the last end of the partition that the consumer reported
        self._is_cut_short = False  # whether the last fetch stopped at its number of bytes
        try:
            if topics:
                introduce(consumer, self.topics - topics)
            consumer.incremental_assign([KafkaPartition(partition.topic, partition.partition, offset)])
        except BaseException:
            consumer.close()
            raise

    def fetch(self, end: int, max_bytes: int, log_end: Callable[[], int]) -> list[RecordBatch]:
        """Return records up to `end`, about `max_bytes`. Raises KafkaException.

        `log_end` returns the partition's stable end; it is called when the consumer reports an end before `end`.
        """
        partition = self.partition
        batches: list[RecordBatch] = []
        taken, at = 0, self.next
        deadline = time.monotonic() + self._clients.patience.timeout_s
        while at < end and taken < max_bytes:
            batch = self._take(end)
            if batch is None:
                if self._reached() >= end:
                    at = end
                elif self._ended >= at and log_end() <= self._ended:
                    break
                elif time.monotonic() > deadline:
                    raise KafkaException(
                        KafkaError(KafkaError._TIMED_OUT, f"no records of {partition} from offset {at}")
                    )
                continue
            at = batch.next_offset
            if at > end:
                (batch, behind), at = cut(batch, end), end
                self._kept.insert(0, behind)
                if not len(batch):
                    break
            batches.append(batch)
            taken += size_of(batch)
        if batches:
            batches[-1].next_offset = at
        self.next = at
        self._is_cut_short = at < end and taken >= max_bytes
        return batches

    def has_more(self) -> bool:
        """Return whether more records can be read ahead, as far as known. Raises KafkaException."""
        if not self._kept and not self._is_cut_short:
            self._kept = self._without_events(self._consumer.take(MESSAGES, 0, self.topics))
        return bool(self._kept) or self._is_cut_short

    def leave(self) -> Reader:
        """Return the consumer, without a partition; then this object is of no more use. Raises KafkaException."""
        self._kept = []
        try:
            self._consumer.incremental_unassign([KafkaPartition(*self.partition)])
        except BaseException:
            self._consumer.close()
            raise
        return self._consumer

    def close(self) -> None:
        """End the consumer."""
        self._kept = []
        self._consumer.close()

    def _take(self, end: int) -> RecordBatch | None:
        """Return some records; None when there are no more for now."""
        if not self._kept:
            taken = self._consumer.take(MESSAGES, 0, self.topics)
            if not taken and self._reached() < end:
                taken = self._consumer.take(1, _BLOCK_SECONDS, self.topics)
            self._kept = self._without_events(taken)
        return self._kept.pop(0) if self._kept else None

    def _without_events(self, taken: Taken) -> list[RecordBatch]:
        for event in taken.events:
            if event.error.code() == KafkaError._PARTITION_EOF:
                if event.partition == self.partition:
                    self._ended = max(self._ended, event.offset)
            elif not is_retriable(event.error):
                raise KafkaException(event.error)
        return [batch for batch in taken.batches if (batch.topic, batch.partition) == self.partition]

    def _reached(self) -> int:
        """Return the offset that the consumer has reached: it passes control records and gaps without a message."""
        found = self._consumer.position([KafkaPartition(*self.partition)])[0]
        return max(int(found.offset), self._ended)


def introduce(consumer: Consumer, topics: Iterable[str]) -> None:
    """Let a consumer that has had other topics look for these, before it is assigned partitions of them.

    By itself it would do so only once a second (librdkafka looks at its unknown topics that often).
    """
    for topic in topics:
        try:
            consumer.list_topics(topic, timeout=_INTRODUCTION_SECONDS)
        except KafkaException as error:
            _log.debug("looking for topic %s: %s; reading it will tell", topic, error)


def size_of(batch: RecordBatch) -> int:
    """Return about the bytes of a batch, estimated from a sample."""
    return about_bytes(batch.keys, _SAMPLED) + about_bytes(batch.values, _SAMPLED) + 8 * len(batch.keys)


def out_of_range(error: KafkaError | BaseException) -> bool:
    """Return whether the error says that a consumer's position is not in the log."""
    found = error_of(error)
    return found is not None and found.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def read_whole(reader: PartitionReader, end: int) -> Iterator[RecordBatch]:
    """Yield every record from a reader's position up to `end`, which the log has reached."""
    while reader.next < end:
        yield from reader.fetch(end, 1 << 22, lambda: end)


MOST_READERS = 8
"""How many consumers a process keeps; each has some threads and up to `queued.max.messages.kbytes` of records."""
CONSUMER_FILES = 8
"""How many file descriptors a consumer needs with one broker."""
_QUIET_SECONDS = 2 * FETCH_WAIT_MS / 1000
READER_GROUP = "penstock"
"""The group of consumers that only read: librdkafka needs a name, though they neither join nor commit."""


@dataclass
class _Free:
    """A consumer without a partition, with its last partition and position, the time of its release, and its topics."""

    consumer: Reader
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
                self._clients, consumer or self._clients.reader(READER_GROUP), partition, offset, topics
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

    def _consumer(self, partition: TopicPartition, offset: int) -> tuple[Reader | None, frozenset[str]]:
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


def _left(reader: PartitionReader) -> Reader | None:
    """Return a reader's consumer, without its partition; None if it could not leave that."""
    try:
        return reader.leave()
    except KafkaException:
        return None
