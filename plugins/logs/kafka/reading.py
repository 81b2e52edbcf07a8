"""Reading records: a consumer that prefetches one partition, and its messages by column."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from penstock import RecordBatch, TopicPartition

from ..messages import about_bytes
from .clients import Clients
from .failures import error_of, is_retriable

_log = logging.getLogger("penstock.kafka")

MESSAGES = 400
"""How many messages are taken from a consumer at once: few enough that they are still in the processor's cache when
they are taken apart."""
_BLOCK_SECONDS = 0.1
_INTRODUCTION_SECONDS = 0.5
_SAMPLED = 32
_MILLISECONDS = itemgetter(1)  # of a message's timestamp, behind its kind


class PartitionReader:
    """Reads one partition from `offset` on, with a consumer that has no other partition. Used by one thread at a time.

    It never seeks. Its consumer may have had other partitions before, and the same one only up to `offset`: an event
    from before would then say nothing that is wrong (see `Readers`).
    """

    def __init__(
        self,
        clients: Clients,
        consumer: Consumer,
        partition: TopicPartition,
        offset: int,
        topics: frozenset[str] = frozenset(),
    ) -> None:
        self.partition = partition
        self.topics = topics | {partition.topic}
        """Those that the consumer has or had; `topics` are those that it had before."""
        self.next = offset
        """Where the last fetch ended, and the next one begins."""
        self._clients = clients
        self._consumer = consumer
        self._kept: list[Message] = []  # messages after `next`
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
            messages = self._take(end)
            if not messages:
                if self._reached() >= end:
                    at = end
                elif self._ended >= at and log_end() <= self._ended:
                    break
                elif time.monotonic() > deadline:
                    raise KafkaException(
                        KafkaError(KafkaError._TIMED_OUT, f"no records of {partition} from offset {at}")
                    )
                continue
            at = _offset(messages[-1]) + 1
            if at > end:
                cut, at = bisect_left(messages, end, key=_offset), end
                messages, self._kept = messages[:cut], messages[cut:]
                if not messages:
                    break
            batch = columns(partition, messages)
            batches.append(batch)
            taken += size_of(batch)
        if batches:
            batches[-1].next_offset = at
        self.next = at
        self._is_cut_short = at < end and taken >= max_bytes
        return batches

    def has_more(self) -> bool:
        """Return whether there are more records to read ahead, as far as is known. Raises KafkaException."""
        if not self._kept and not self._is_cut_short:
            self._kept = self._without_events(self._consumer.consume(MESSAGES, 0))
        return bool(self._kept) or self._is_cut_short

    def leave(self) -> Consumer:
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

    def _take(self, end: int) -> list[Message]:
        """Return some messages; none when there are no more for now."""
        messages, self._kept = self._kept, []
        if not messages:
            messages = self._consumer.consume(MESSAGES, 0)
            if not messages and self._reached() < end:
                messages = self._consumer.consume(1, _BLOCK_SECONDS)
        if any(map(Message.error, messages)):
            return self._without_events(messages)
        return messages

    def _without_events(self, messages: list[Message]) -> list[Message]:
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                if (message.topic(), message.partition()) == self.partition:
                    self._ended = max(self._ended, message.offset() or 0)
            elif not is_retriable(error):
                raise KafkaException(error)
        return records

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


def columns(partition: TopicPartition, messages: Sequence[Message]) -> RecordBatch:
    """Return messages of one partition by column."""
    first, last = _offset(messages[0]), _offset(messages[-1])
    is_dense = last - first + 1 == len(messages)
    offsets: Any = range(first, last + 1) if is_dense else list(map(Message.offset, messages))
    headers: list[Any] | None = None
    if any(found := list(map(Message.headers, messages))):
        headers = [tuple(each) if each else () for each in found]
    return RecordBatch(
        partition.topic,
        partition.partition,
        offsets,
        list(map(Message.key, messages)),
        list(map(Message.value, messages)),
        list(map(_MILLISECONDS, map(Message.timestamp, messages))),
        headers,
        last + 1,
    )


def _offset(message: Message) -> int:
    return cast(int, message.offset())


def size_of(batch: RecordBatch) -> int:
    """Return about how many bytes a batch has, estimated from a sample."""
    return about_bytes(batch.keys, _SAMPLED) + about_bytes(batch.values, _SAMPLED) + 8 * len(batch.keys)


def out_of_range(error: KafkaError | BaseException) -> bool:
    """Return whether the error says that a consumer's position is not in the log."""
    found = error_of(error)
    return found is not None and found.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def read_whole(reader: PartitionReader, end: int) -> Iterator[RecordBatch]:
    """Yield every record from a reader's position up to `end`, which the log has reached."""
    while reader.next < end:
        yield from reader.fetch(end, 1 << 22, lambda: end)
