"""Following partitions of a cluster as their records come: one consumer for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from math import ceil

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from penstock import Follower, LogError, RecordBatch, TopicPartition

from .clients import Clients
from .columns import Reader, ReaderEvent, Taken, cut
from .failures import error_of, is_retriable, is_unknown_topic
from .reading import MESSAGES, READER_GROUP, introduce, out_of_range, size_of
from .topics import KafkaTopics

_CONSUMER = {
    "fetch.min.bytes": 1,
    # The broker answers at once when there are records; otherwise this is how long the next partition that is added
    # may wait for its first request, and how late the end of a partition is reported.
    "fetch.wait.max.ms": 100,
}
_KEPT_BYTES, _MOST_KEPT_BYTES = 1 << 20, 16 << 20
"""How many bytes of a paused partition are kept, before its consumer stops to fetch it, and about how many of all."""
_WAIT_SECONDS = 1.0
_CHECK_EVERY, _CHECK_SECONDS = 2.0, 0.5
"""Seconds without a record until brokers are asked which topics there are, and how long they may take to answer."""


class KafkaFollower(Follower):
    """Reads partitions with one consumer, so that a wait ends with the first record of any of them.

    A consumer gets a partition at most once: what it still reports from before would skip records. A partition that is
    added again is read with a new consumer, and so are all others, from where they are.

    A pause stores read records, and stops fetching only when they are many: librdkafka drops the prefetched records of
    a partition that it pauses.
    """

    def __init__(
        self, clients: Clients, topics: KafkaTopics, out_of_range_error: Callable[[TopicPartition, int], LogError]
    ) -> None:
        self._clients = clients
        self._topics = topics
        self._out_of_range_error = out_of_range_error
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}  # the last end that the consumer reported
        # Partitions of which no broker has said where they end, and for how many seconds that has been waited for.
        self._unanswered: dict[TopicPartition, float] = {}
        self._looked_at = 0.0  # when those were looked at
        self._paused: set[TopicPartition] = set()
        self._stopped: set[TopicPartition] = set()  # those that the consumer does not fetch, because of a pause
        self._kept: dict[TopicPartition, list[RecordBatch]] = {}  # read in a pause
        self._failed: dict[TopicPartition, LogError] = {}
        self._away_since: float | None = None  # when brokers did not answer first
        self._check_at = 0.0
        self._had: set[TopicPartition] = set()  # what the consumer has or had
        self._topics_had: set[str] = set()
        self._consumer: Reader | None = None

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        self._topics.check(list(positions))
        self._positions.update(positions)
        if self._consumer is None or not self._had.isdisjoint(positions):
            self._renew()
        else:
            self._assign(positions)

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        gone = [partition for partition in partitions if partition in self._positions]
        for each in gone:
            del self._positions[each]
            for of_partition in (self._ends, self._kept, self._failed, self._unanswered):
                of_partition.pop(each, None)
        self._paused.difference_update(gone)
        self._stopped.difference_update(gone)
        assigned = [KafkaPartition(*each) for each in gone if each in self._had]
        if self._consumer is not None and assigned:
            try:
                self._consumer.incremental_unassign(assigned)
            except KafkaException:
                self._renew()

    def poll(self, seconds: float, most: int) -> list[RecordBatch]:
        if self._unanswered:
            self._look_at_unanswered()
        for error in self._failed.values():
            raise error
        if found := self._resumed(most):
            return found
        consumer, deadline = self._consumer, time.monotonic() + seconds
        if consumer is None:
            time.sleep(seconds)
            return []
        while True:
            if found := self._read(consumer, most):
                return found
            for error in self._failed.values():
                raise error
            left = deadline - time.monotonic()
            # librdkafka waits whole milliseconds: with less it would not wait at all, and this loop would spin.
            taken = consumer.take(1, ceil(max(0.0, min(left, _WAIT_SECONDS)) * 1000) / 1000, self._topics_had)
            if taken:
                self._note_answer()
                if found := self._taken(taken):
                    return found + self._read(consumer, most - 1)
            elif time.monotonic() >= self._check_at:
                self._check(consumer)
            for error in self._failed.values():
                raise error
            if time.monotonic() >= deadline:
                return []

    def _read(self, consumer: Reader, most: int) -> list[RecordBatch]:
        """Return up to `most` records that the consumer has, and take them apart while they are in the cache."""
        found: list[RecordBatch] = []
        while most > 0 and (taken := consumer.take(min(most, MESSAGES), 0, self._topics_had)):
            self._note_answer()
            most -= len(taken)
            found += self._taken(taken)
        return found

    def _note_answer(self) -> None:
        self._away_since, self._check_at = None, time.monotonic() + _CHECK_EVERY

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.update(partition for partition in partitions if partition in self._positions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        again = [KafkaPartition(*partition) for partition in partitions if partition in self._stopped]
        self._stopped.difference_update(partitions)
        if self._consumer is not None and again:
            self._consumer.resume(again)

    def ends(self) -> Mapping[TopicPartition, int | None]:
        """Return the stable end where it was reached, else the high end offset of the last answer of the broker.

        None before the first answer to the consumer that there is now.
        """
        return {each: self._end(each, position) for each, position in self._positions.items()}

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._positions.clear()
        if consumer is not None:
            consumer.close()

    # ------------------------------------------------------------------ the consumer

    def _renew(self) -> None:
        """Read everything from its position with a new consumer."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._clients.reader(READER_GROUP, _CONSUMER)
        self._had.clear()
        self._topics_had.clear()
        self._stopped.clear()
        self._ends.clear()
        self._unanswered.clear()
        self._check_at = time.monotonic() + _CHECK_EVERY
        self._assign(self._positions)

    def _assign(self, positions: Mapping[TopicPartition, int]) -> None:
        for each, position in positions.items():
            if position < 0:  # librdkafka gives these a meaning
                self._failed[each] = self._out_of_range_error(each, position)
        wanted = {each: position for each, position in positions.items() if each not in self._failed}
        assert self._consumer is not None
        if wanted:
            if self._had:
                introduce(self._consumer, {each.topic for each in wanted} - self._topics_had)
            self._had.update(wanted)
            self._topics_had = {each.topic for each in self._had}
            if not self._unanswered:
                self._looked_at = time.monotonic()
            self._unanswered.update(dict.fromkeys(wanted, 0.0))
            try:
                self._consumer.incremental_assign([KafkaPartition(*each, at) for each, at in wanted.items()])
            except KafkaException as exception:
                raise self._clients.patience.failed(
                    f"following {', '.join(map(str, wanted))}", exception
                ) from exception

    def _check(self, consumer: Reader) -> None:
        """Check for faults that a consumer does not report: no answer from brokers, and deleted topics.

        Raises LogError when brokers did not answer for too long.
        """
        now = time.monotonic()
        self._check_at = now + _CHECK_EVERY
        try:
            topics = consumer.list_topics(timeout=_CHECK_SECONDS).topics
        except KafkaException as exception:
            patience = self._clients.patience
            self._away_since = self._away_since or now
            if now - self._away_since >= patience.timeout_s:
                doing = f"while following {', '.join(map(str, self._positions))}"
                raise patience.timed_out(doing, error_of(exception)) from exception
            return
        self._away_since = None
        for position in self._positions:
            if position.topic not in topics and (failure := self._unknown(position)):
                self._failed[position] = failure

    def _look_at_unanswered(self) -> None:
        """Fail partitions whose end no broker has reported for too long: their tasks wait for it."""
        now = time.monotonic()
        passed = now - self._looked_at
        if passed < _CHECK_SECONDS:
            return
        self._looked_at = now
        for each in list(self._unanswered):
            if self._end(each, self._positions[each]) is None:
                # A process that was frozen has not waited, so it counts no more than a poll may take.
                self._unanswered[each] += min(passed, _CHECK_EVERY)
                if self._unanswered[each] >= self._clients.patience.timeout_s:
                    self._failed[each] = self._no_end(each)

    def _no_end(self, partition: TopicPartition) -> LogError:
        assert self._consumer is not None
        error = self._clients.patience.out_of_time(
            self._clients.patience.timed_out(f"while following {partition}"),
            self._consumer,
            f"has not said where {partition} ends, or returned its records,",
            f"A partition without a leader does so: `kafka-topics.sh --describe --topic {partition.topic}` shows it. "
            "Nothing is lost: start again when it has one",
        )
        error.partition = partition
        return error

    # ------------------------------------------------------------------ what it returns

    def _resumed(self, most: int) -> list[RecordBatch]:
        """Return the kept records of partitions that are no longer paused."""
        found: list[RecordBatch] = []
        for partition in [each for each in self._kept if each not in self._paused]:
            kept = self._kept[partition]
            while kept and most > 0:
                most -= len(kept[0])
                found.append(kept.pop(0))
            if not kept:
                del self._kept[partition]
        return found

    def _taken(self, taken: Taken) -> list[RecordBatch]:
        """Return the taken records of partitions that are not paused; store the others."""
        found: list[RecordBatch] = []
        for batch in taken.batches:
            partition = TopicPartition(batch.topic, batch.partition)
            position = self._positions.get(partition)
            if position is None:
                continue
            if batch.offsets[0] < position:
                _, batch = cut(batch, position)
            if len(batch):
                self._positions[partition] = batch.next_offset
                self._give(partition, batch, found)
        for event in taken.events:
            self._take_event(event, found)
        return found

    def _give(self, partition: TopicPartition, batch: RecordBatch, found: list[RecordBatch]) -> None:
        if partition not in self._paused and partition not in self._kept:
            found.append(batch)
            return
        kept = self._kept.setdefault(partition, [])
        kept.append(batch)
        most = min(_KEPT_BYTES, _MOST_KEPT_BYTES // len(self._kept))
        is_much = partition in self._paused and sum(map(size_of, filter(len, kept))) > most
        if is_much and partition not in self._stopped and self._consumer is not None:
            self._consumer.pause([KafkaPartition(*partition)])
            self._stopped.add(partition)

    def _take_event(self, event: ReaderEvent, found: list[RecordBatch]) -> None:
        error, partition = event.error, event.partition
        if is_retriable(error):
            return
        position = self._positions.get(partition)
        if error.code() == KafkaError._PARTITION_EOF:
            end = event.offset
            if position is None or end < position:
                return
            self._ends[partition] = end
            if end > position:
                self._positions[partition] = end
                self._give(partition, RecordBatch(*partition, [], [], [], [], None, end), found)
        elif position is not None:
            if failure := self._failure(partition, position, error):
                failure.partition = partition
                self._failed[partition] = failure
        elif not partition.topic:
            raise self._clients.patience.failed("following", error)

    def _failure(self, partition: TopicPartition, position: int, error: KafkaError) -> LogError | None:
        """Return the error of a partition; None if its topic is there after all."""
        if out_of_range(error):
            return self._out_of_range_error(partition, position)
        if not is_unknown_topic(error):
            return self._clients.patience.failed(f"following {partition} from offset {position}", error)
        return self._unknown(partition)

    def _unknown(self, partition: TopicPartition) -> LogError | None:
        """Return the error for a deleted topic; None if it is there after all."""
        self._topics.counts(fresh=True)
        try:
            self._topics.check([partition])
        except LogError as error:
            error.partition = partition
            return error
        return None

    def _end(self, partition: TopicPartition, position: int) -> int | None:
        if self._ends.get(partition) == position:
            self._unanswered.pop(partition, None)
            return position
        if self._consumer is None or partition not in self._had:
            return None
        _, high = self._consumer.get_watermark_offsets(KafkaPartition(*partition), cached=True)
        if high < 0:  # no answer yet, or the last one was an error
            return None
        self._unanswered.pop(partition, None)
        return max(position, int(high))
