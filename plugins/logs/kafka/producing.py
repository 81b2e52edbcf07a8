"""Outbox: queues outputs in one producer, limits the records in flight, and keeps the first delivery error."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from penstock import LogError, OutputBatch, ProductionError, RecordRefusedError, UnknownTopicError

from ..messages import about_bytes, no_such_partition, unknown_topics_as_production_errors
from ..partitioner import partitions_of, runs_of_partitions
from .clients import Clients
from .columns import PURGED
from .failures import describe, error_of, fatal_errors_as_kafka_exceptions, is_fenced, is_retriable, is_unknown_topic

_MOMENT = 0.5
_TRY_SECONDS = 10.0
_PAUSE_SECONDS = 0.2


def end(producer: Producer, *, is_committing: bool = False, is_aborting: bool = False) -> None:
    """Give up unsent records, and destroy the producer when it is idle. The caller keeps no reference to it.

    `is_committing`, `is_aborting`: a call to commit or abort a transaction has had no answer yet. It is repeated until
    the cluster answers, the producer is fenced, or another error ends the transaction.
    """
    producer.purge(in_flight=False)
    if is_committing or is_aborting or not _is_empty(producer, _MOMENT):
        Thread(
            target=_wait_until_idle, args=(producer, is_committing, is_aborting), name="penstock-producer", daemon=True
        ).start()


def _wait_until_idle(producer: Producer, is_committing: bool, is_aborting: bool) -> None:
    while is_committing or is_aborting:
        try:
            with fatal_errors_as_kafka_exceptions():
                if is_committing:
                    producer.commit_transaction(_TRY_SECONDS)
                else:
                    producer.abort_transaction(_TRY_SECONDS)
            break
        except KafkaException as exception:
            error = error_of(exception)
            if error is not None and error.txn_requires_abort() and not error.fatal():
                is_committing, is_aborting = False, True
            elif error is None or not is_retriable(error):
                break
        time.sleep(_PAUSE_SECONDS)
    # Records in flight fail at the latest after the transaction's, or the message's, time limit.
    while not _is_empty(producer, _TRY_SECONDS):
        pass


def _is_empty(producer: Producer, seconds: float) -> bool:
    """Wait up to some seconds; return whether every record has been delivered or has failed."""
    deadline = time.monotonic() + seconds
    while len(producer):
        if time.monotonic() > deadline:
            return False
        # After a fatal error, requests in flight are answered all the same.
        with suppress(KafkaException, SystemError):
            producer.poll(0.02)
    return True


_CHUNK = 5_000
"""Records between two checks of the amount in flight."""
_MOST_IN_FLIGHT_BYTES = 32 * 1024 * 1024
_MOST_IN_FLIGHT = 400_000
_SAMPLED = 32
_CHECK_SECONDS = 1.0
"""Seconds without a delivery until the topics are checked."""
_SETTLE_SECONDS = 5.0
_NO_LIMIT_MS = (1 << 63) - 1
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)


class Outbox:
    """Sends records with one producer. Used by one thread.

    A producer keeps threads and sockets until the last reference to it is gone, and a kept exception keeps the
    variables of its traceback's frames. So only this object refers to the producer, and `close` ends it in any case.
    """

    def __init__(
        self, clients: Clients, partitions: Callable[[str], int], properties: Mapping[str, Any] | None = None
    ) -> None:
        self._clients = clients
        self._partitions = partitions
        self._checked: dict[str, int] = {}
        self._anywhere: dict[tuple[str, int], Iterator[int]] = {}
        """By topic and its number of partitions: the partitions of the next records without a fixed one."""
        self.is_over = False
        self._producer = clients.producer(properties)
        self._failures = self._producer.failures

    @property
    def failed(self) -> tuple[str, KafkaError] | None:
        """The topic and the error of the first record that was not delivered.

        A record that was refused takes precedence over those that were given up because of it.
        """
        first = self._failures.first()
        return None if first is None else (first.topic, first.error)

    def knows_refusal(self) -> bool:
        """Return whether `failed` is a refused record, not one that was given up because of another."""
        first = self._failures.first()
        return first is not None and first.error.code() not in PURGED

    def send(self, batch: OutputBatch) -> None:
        """Queue a batch. Raises ProductionError for a record that cannot be produced, and for a missing topic."""
        if not batch.keys:
            return
        topic = batch.topic
        count = self._checked.get(topic)
        if count is None:
            # librdkafka would report a missing topic only after half a minute.
            with unknown_topics_as_production_errors():
                count = self._checked[topic] = self._partitions(topic)
        if batch.hashed is not None:
            anywhere = self._anywhere.setdefault((topic, count), runs_of_partitions(count))
            batch = replace(batch, partitions=_by_hash(batch, batch.hashed, count, anywhere), hashed=None)
        if batch.partitions is not None:
            _check_partitions(batch, count)
        size = _record_size(batch)
        for start in range(0, len(batch.keys), _CHUNK):
            stop = min(start + _CHUNK, len(batch.keys))
            self._make_room(stop - start, size)
            try:
                self._producer.queue(batch, start, stop)
            except Exception as exception:
                raise self._refused(topic, exception) from exception
            self.poll(0)
            self.check()

    def _make_room(self, count: int, size: int) -> None:
        most = max(0, min(_MOST_IN_FLIGHT, _MOST_IN_FLIGHT_BYTES // size) - count)
        deadline = time.monotonic() + self._clients.patience.timeout_s
        check_at = time.monotonic() + _CHECK_SECONDS
        while len(self._producer) > most:
            self.poll(0.01)
            self.check()
            if time.monotonic() > check_at:
                self.check_topics()
                check_at = time.monotonic() + _CHECK_SECONDS
            if time.monotonic() > deadline:
                raise self._clients.patience.timed_out(f"with {len(self._producer)} records on their way to it")

    def flush(self) -> None:
        """Wait until everything sent is delivered. Raises as `send`, and LogError when that takes too long."""
        deadline = time.monotonic() + self._clients.patience.timeout_s
        while self._flush(_CHECK_SECONDS):
            self.check()
            self.check_topics()
            if time.monotonic() > deadline:
                raise self._clients.patience.timed_out(f"with {len(self._producer)} records on their way to it")
        self.check()

    def check_topics(self) -> None:
        """Raise ProductionError if a topic was deleted: librdkafka would wait until it is created again."""
        for topic in list(self._checked):
            try:
                self._partitions(topic)
            except UnknownTopicError as error:
                self._checked.pop(topic)
                raise ProductionError(
                    f"cannot produce: {error} It was there when the task began: was it deleted? Create it and start "
                    "again"
                ) from error

    def check(self) -> None:
        """Raise ProductionError if a record could not be delivered."""
        if self.failed is not None:
            topic, error = self.failed
            raise self.error(topic, error)

    def error(self, topic: str, error: KafkaError) -> ProductionError:
        """Return the error for a record that a topic refused."""
        self._checked.pop(topic, None)
        what = f"topic {topic!r}: cannot produce to {self._clients.where}: {describe(error)}"
        if error.code() in _TOO_LARGE:
            limit = largest_message(self._clients, topic)
            # A refused batch does not show which of its records is too large: the next producer makes smaller batches.
            is_alone = limit is None or not self._clients.limit_batches(limit)
            first = self._failures.first()
            size = first.bytes if is_alone and first is not None else None
            return RecordRefusedError(
                f"{what}: {'records sent together' if size is None else f'a record of {size} bytes'}: "
                "make records smaller, or raise the topic's 'max.message.bytes'"
                + (f" ({limit})" if limit is not None else ""),
                topic,
                above=limit if size is None else size - 1,
            )
        if error.code() == KafkaError.INVALID_RECORD:
            return RecordRefusedError(
                f"{what}: a compacted topic (cleanup.policy=compact) takes no record without a key",
                topic,
                without_key=True,
            )
        if error.code() == KafkaError.INVALID_TIMESTAMP:
            return self._stamped_wrong(what, topic)
        hint = (
            ": was it deleted? Create it (`penstock topics create`) and start again" if is_unknown_topic(error) else ""
        )
        return ProductionError(f"{what}{hint}")

    def _stamped_wrong(self, what: str, topic: str) -> RecordRefusedError:
        """Return the error for a timestamp that is too far from the broker's clock.

        A refused batch does not show which of its records it is, and the report of a delivery lacks its timestamp.
        """
        now = round(time.time() * 1000)
        after = topic_setting(self._clients, topic, "message.timestamp.after.max.ms")
        before = topic_setting(self._clients, topic, "message.timestamp.before.max.ms")
        settings = " or ".join(
            f"'message.timestamp.{side}.max.ms' ({limit})"
            for side, limit in (("after", after), ("before", before))
            if limit is not None and limit < _NO_LIMIT_MS
        )
        return RecordRefusedError(
            f"{what}: a record has a timestamp too far from the broker's clock: give it another, or raise the topic's "
            f"{settings or 'limits'}",
            topic,
            earliest=None if before is None else now - before,
            latest=None if after is None else now + after,
        )

    def _refused(self, topic: str, exception: Exception) -> Exception:
        error = exception.args[0] if exception.args else None
        if isinstance(error, KafkaError):
            return self.error(topic, error)
        if isinstance(exception, (TypeError, ValueError)):
            return ProductionError(f"topic {topic!r}: a record cannot be produced: {exception}")
        return exception

    def settle(self) -> KafkaError | None:
        """Give up unsent records and wait for the others; return the fatal error, None if the producer can continue.

        Call it before reading `failed`: a transaction may fail before the delivery report of the refused record
        arrives.
        """
        try:
            self.poll(0)
            if not self.knows_refusal():
                self._producer.purge(in_flight=False)
                self._flush(_SETTLE_SECONDS)
        except KafkaException as fatal:
            return error_of(fatal)
        return None

    def poll(self, seconds: float) -> None:
        """Process delivery reports. Raises KafkaException after a fatal error."""
        with fatal_errors_as_kafka_exceptions():
            self._producer.poll(seconds)

    def _flush(self, seconds: float) -> int:
        with fatal_errors_as_kafka_exceptions():
            return self._producer.flush(seconds)

    def is_lost_by(self, error: KafkaError) -> bool:
        """Return whether the producer is unusable after an error, so that another has to be opened."""
        return is_fenced(error) or error.fatal() or error.code() == KafkaError._FATAL

    def close(self) -> None:
        """Give up undelivered records, and end the producer when it is idle; idempotent."""
        if not self.is_over:
            end(self._take_producer())

    def _take_producer(self) -> Producer:
        """Return the producer, to which this object does not refer any more."""
        producer = self._producer
        self.is_over = True
        del self._producer
        return producer


class SharedOutbox:
    """An outbox for any thread, opened on first use. A failure closes it, and the next call opens another."""

    def __init__(self, clients: Clients, partitions: Callable[[str], int]) -> None:
        self._clients = clients
        self._partitions = partitions
        self._lock = threading.Lock()
        self._outbox: Outbox | None = None

    def deliver(self, batch: OutputBatch) -> None:
        """Produce a batch; it is durable when this returns. Raises as `Outbox.send` and `Outbox.flush`."""
        with self._lock:
            if self._outbox is None:
                self._outbox = Outbox(self._clients, self._partitions)
            try:
                self._outbox.send(batch)
                self._outbox.flush()
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        """End the open producer, if there is one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            outbox.close()


def largest_message(clients: Clients, topic: str) -> int | None:
    """Return a topic's `max.message.bytes`; None when the broker does not return it."""
    return topic_setting(clients, topic, "max.message.bytes")


def topic_setting(clients: Clients, topic: str, name: str) -> int | None:
    """Return a setting of a topic that is a number; None when the broker does not return it."""
    doing, asked = f"asking for {name!r} of topic {topic!r}", [ConfigResource(ResourceType.TOPIC, topic)]
    try:
        config = clients.admin.one(doing, AdminClient.describe_configs, asked)
        return int(config[name].value)
    except (KafkaException, LogError, KeyError, ValueError):
        return None


def _by_hash(
    batch: OutputBatch, hashed: Sequence[bytes | None], count: int, anywhere: Iterator[int]
) -> list[Sequence[int] | None]:
    """Return the partitions of records with partly hashed keys, which librdkafka cannot do.

    `anywhere`: the partitions of the next records that any partition may have.
    """
    parts = list(dict.fromkeys(part for part in hashed if part is not None))
    of_part: dict[bytes | None, Sequence[int]] = {
        part: (partition,) for part, partition in zip(parts, partitions_of(parts, count), strict=True)
    }
    chosen = batch.partitions or [None] * len(hashed)
    found = [of_part.get(part) if given is None else given for given, part in zip(chosen, hashed, strict=True)]
    # librdkafka chooses for what is left, and would hash a key whose part is None.
    return [
        (next(anywhere),) if each is None and key is not None else each
        for each, key in zip(found, batch.keys, strict=True)
    ]


def _check_partitions(batch: OutputBatch, count: int) -> None:
    for targets in batch.partitions or ():
        for partition in targets or ():
            if not 0 <= partition < count:
                raise no_such_partition(batch.topic, partition, count)


def _record_size(batch: OutputBatch) -> int:
    return (about_bytes(batch.keys, _SAMPLED) + about_bytes(batch.values, _SAMPLED)) // len(batch.keys) + 64
