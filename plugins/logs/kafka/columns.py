"""Messages by column: clients that take batches from librdkafka and queue batches there, compiled or in Python.

`MessageReader` and `RecordProducer` are the specification: they use confluent-kafka alone, with an object for each
message and a call for each record. `ColumnReader` and `ColumnProducer` do the same through `_columns`, in C. `reader`
and `producer` choose, once for the process.
"""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, cimpl

from penstock import OutputBatch, RecordBatch, TopicPartition
from penstock.compiled import fall_back, load

_log = logging.getLogger("penstock.kafka")
Client = TypeVar("Client")

_PART = "kafka"
_TESTED = ((2, 6), (2, 17))
"""The first version of confluent-kafka that `_columns` was tested with, and the first that it was not."""
_milliseconds = itemgetter(1)  # of a message's timestamp, behind its kind


@dataclass(frozen=True, slots=True)
class ReaderEvent:
    """An error of a partition, or its end at `offset`. An error of no partition has an empty topic."""

    partition: TopicPartition
    offset: int
    error: KafkaError


@dataclass(slots=True)
class Taken:
    """Messages taken from librdkafka: records of each partition in offset order, and reported errors and ends."""

    batches: list[RecordBatch]
    events: list[ReaderEvent]

    def __len__(self) -> int:
        return sum(map(len, self.batches)) + len(self.events)


class Logger(Protocol):
    """What confluent-kafka gives librdkafka's log lines to."""

    def log(self, level: int, message: str, *arguments: object) -> None:
        """Log a line."""
        ...


# ------------------------------------------------------------------ consuming


class Reader(Consumer):
    """A consumer whose messages are taken by column. Used by one thread at a time."""

    @abstractmethod
    def take(self, most: int, seconds: float, topics: Collection[str]) -> Taken:
        """Return up to `most` messages; wait up to `seconds` for them. `topics`: the topics that it has or had.

        Raises KafkaException when librdkafka refuses the call.
        """


class MessageReader(Reader):
    """Takes the objects of confluent-kafka apart."""

    def take(self, most: int, seconds: float, topics: Collection[str]) -> Taken:
        messages = self.consume(most, seconds)
        events: list[ReaderEvent] = []
        if any(map(Message.error, messages)):
            events = [_event(message) for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        return Taken([_columns_of(*each) for each in _by_partition(messages, topics)], events)


class ColumnReader(Reader):
    """Takes columns from librdkafka, and calls `error_cb` and `logger` with confluent-kafka's arguments."""

    def __init__(self, properties: Mapping[str, Any], *, logger: Logger) -> None:
        self._handle = _module.expect()
        super().__init__(_with_plugin(properties), logger=logger)
        _check_open(self._handle)
        self._handle.separate()
        # Give the callbacks what was reported before. Without partitions there are no messages.
        self.consume(1, 0)
        self._logger = logger
        self._note_error: Callable[[KafkaError], object] = properties["error_cb"]

    def take(self, most: int, seconds: float, topics: Collection[str]) -> Taken:
        batches, events, reports, code = self._handle.take(most, int(seconds * 1000))
        if code:
            raise KafkaException(KafkaError(code))
        for failed, text in reports:
            if failed:
                self._note_error(KafkaError(failed, text))
            else:
                self._logger.log(logging.DEBUG, "%s", text)
        return Taken(
            [RecordBatch(*batch) for batch in batches],
            [
                ReaderEvent(TopicPartition(topic, max(0, partition)), max(0, offset), KafkaError(code, text))
                for topic, partition, offset, code, text in events
            ],
        )


def _event(message: Message) -> ReaderEvent:
    error = message.error()
    assert error is not None
    return ReaderEvent(TopicPartition(message.topic() or "", message.partition() or 0), message.offset() or 0, error)


def _by_partition(
    messages: Sequence[Message], topics: Collection[str]
) -> Iterable[tuple[TopicPartition, Sequence[Message]]]:
    """Return messages by partition. Most often they are of one: librdkafka returns what it fetched in turn."""
    if not messages:
        return ()
    if len(numbers := set(map(Message.partition, messages))) == 1:
        # Most consumers have one topic: looking at each message's would cost a hundredth of a count.
        of_messages = topics if len(topics) == 1 else set(map(Message.topic, messages))
        if len(of_messages) == 1:
            return [(TopicPartition(*of_messages, *numbers), messages)]
    found: dict[Any, list[Message]] = {}
    for key, message in zip(
        zip(map(Message.topic, messages), map(Message.partition, messages), strict=True), messages, strict=True
    ):
        found.setdefault(key, []).append(message)
    return [(TopicPartition(*each), of_partition) for each, of_partition in found.items()]


def _columns_of(partition: TopicPartition, messages: Sequence[Message]) -> RecordBatch:
    """Return messages of one partition by column."""
    first, last = cast(int, messages[0].offset()), cast(int, messages[-1].offset())
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
        list(map(_milliseconds, map(Message.timestamp, messages))),
        headers,
        last + 1,
    )


def cut(batch: RecordBatch, offset: int) -> tuple[RecordBatch, RecordBatch]:
    """Split records at an offset; either part may be empty."""
    at = bisect_left(batch.offsets, offset)
    before = _part(batch, slice(None, at), min(offset, batch.next_offset))
    return before, _part(batch, slice(at, None), batch.next_offset)


def _part(batch: RecordBatch, part: slice, next_offset: int) -> RecordBatch:
    headers = None if batch.headers is None else batch.headers[part]
    return RecordBatch(
        batch.topic,
        batch.partition,
        batch.offsets[part],
        batch.keys[part],
        batch.values[part],
        batch.timestamps[part],
        headers if headers and any(headers) else None,
        next_offset,
    )


# ------------------------------------------------------------------ producing

PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""The errors of records that were given up because of another record, or of the transaction."""


class DeliveryFailure(NamedTuple):
    """A record that was not delivered, with the bytes of its key and value."""

    topic: str
    error: KafkaError
    bytes: int


class DeliveryFailures(Protocol):
    """The records that a producer did not deliver."""

    def first(self) -> DeliveryFailure | None:
        """Return the first failure; a refused record takes precedence over records that were given up."""
        ...

    def forget(self) -> None:
        """Return None from `first` until another record fails."""
        ...


class QueueingProducer(Producer):
    """A producer that takes records by column. `failures` are its undelivered records, as of the last poll."""

    failures: DeliveryFailures

    @abstractmethod
    def queue(self, batch: OutputBatch, start: int, stop: int) -> None:
        """Queue the records `start` to `stop` of a batch without `hashed`.

        Raises BufferError when the queue is full, KafkaException when librdkafka refuses a record, and TypeError for a
        key or value that is not bytes. The traceback keeps no reference to this producer: somebody may keep the
        exception.
        """


class _Reported:
    """The failures in confluent-kafka's reports of deliveries."""

    def __init__(self) -> None:
        self._first: DeliveryFailure | None = None

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Handle the delivery report of one record."""
        first = self._first
        if error is not None and (first is None or (first.error.code() in PURGED and error.code() not in PURGED)):
            self._first = DeliveryFailure(
                message.topic() or "?", error, len(message.key() or b"") + len(message.value() or b"")
            )

    def first(self) -> DeliveryFailure | None:
        return self._first

    def forget(self) -> None:
        self._first = None


class RecordProducer(QueueingProducer):
    """Calls confluent-kafka's `produce` for each record."""

    def __init__(self, properties: Mapping[str, Any], *, logger: Logger) -> None:
        self.failures = failures = _Reported()
        super().__init__({**properties, "on_delivery": failures.delivered}, logger=logger)

    def queue(self, batch: OutputBatch, start: int, stop: int) -> None:
        try:
            _produce(self.produce, batch, start, stop)
        finally:
            del self


def _produce(produce: Callable[..., None], batch: OutputBatch, start: int, stop: int) -> None:
    """Produce a part of a batch. The frame keeps no reference to the producer after an exception."""
    try:
        keys, values = batch.keys[start:stop], batch.values[start:stop]
        timestamps = batch.timestamps[start:stop]
        if 0 in timestamps:
            # librdkafka takes 0 for "now"; 1 is the closest timestamp that it keeps.
            timestamps = [each or 1 for each in timestamps]
        partitions = None if batch.partitions is None else batch.partitions[start:stop]
        targets = repeat(-1) if partitions is None else _single_targets(partitions)
        topic, none = repeat(batch.topic), repeat(None)
        if batch.headers is None and targets is not None:
            deque(map(produce, topic, values, keys, targets, none, none, timestamps), maxlen=0)
            return
        for index, (key, value, timestamp) in enumerate(zip(keys, values, timestamps, strict=True)):
            chosen = None if partitions is None else partitions[index]
            headers: Any = None if batch.headers is None else list(batch.headers[start + index])
            for partition in (-1,) if chosen is None else chosen:
                produce(batch.topic, value, key, partition, None, None, timestamp, headers)
    finally:
        del produce


class _Acknowledged:
    """The failures that librdkafka has reported to the plugin."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def first(self) -> DeliveryFailure | None:
        if (failure := self._handle.failure()) is None:
            return None
        topic, code, size = failure
        return DeliveryFailure(topic, KafkaError(code), size)

    def forget(self) -> None:
        self._handle.forget_failure()


class ColumnProducer(QueueingProducer):
    """Queues columns in librdkafka."""

    def __init__(self, properties: Mapping[str, Any], *, logger: Logger) -> None:
        self._handle = _module.expect()
        self.failures = _Acknowledged(self._handle)
        super().__init__(_with_plugin(properties), logger=logger)
        _check_open(self._handle)

    def queue(self, batch: OutputBatch, start: int, stop: int) -> None:
        handle = self._handle
        del self
        code = handle.produce(
            batch.topic, batch.keys, batch.values, batch.timestamps, batch.headers, batch.partitions, start, stop
        )
        if code == KafkaError._QUEUE_FULL:
            raise BufferError(KafkaError(code).str())
        if code:
            raise KafkaException(KafkaError(code, f"Unable to produce message: {KafkaError(code).str()}"))


def _single_targets(partitions: Sequence[Sequence[int] | None]) -> Iterator[int] | None:
    """Return the partition of each record, -1 for librdkafka's choice; None if a record goes to none or to several."""
    first = partitions[0]
    # A changelog passes the same tuple for every record, which makes `count` fast.
    if first is not None and len(first) == 1 and partitions.count(first) == len(partitions):
        return repeat(first[0])
    if any(partition is not None and len(partition) != 1 for partition in partitions):
        return None
    return iter([-1 if partition is None else partition[0] for partition in partitions])


# ------------------------------------------------------------------ the choice


def reader(properties: Mapping[str, Any], *, logger: Logger) -> Reader:
    """Return a consumer of the configuration `properties`, which has an `error_cb`. Raises as Consumer does."""
    return _chosen(ColumnReader, MessageReader, properties, logger)


def producer(properties: Mapping[str, Any], *, logger: Logger) -> QueueingProducer:
    """Return a producer of the configuration `properties`. Raises as Producer does."""
    return _chosen(ColumnProducer, RecordProducer, properties, logger)


def _chosen(
    compiled: Callable[..., Client], plain: Callable[..., Client], properties: Mapping[str, Any], logger: Logger
) -> Client:
    if _module is None or any(map(properties.get, _IN_PYTHON)):
        return plain(properties, logger=logger)
    try:
        return compiled(properties, logger=logger)
    except Exception as error:
        made = plain(properties, logger=logger)
        _give_up(str(error))
        return made


_IN_PYTHON = (
    # confluent-kafka looks for the user's plugins by a rule of its own.
    "plugin.library.paths",
    # librdkafka renews these tokens, which are for tests, when confluent-kafka takes messages.
    "enable.sasl.oauthbearer.unsecure.jwt",
    # confluent-kafka calls these when it takes messages itself.
    "oauth_cb",
    "stats_cb",
    "throttle_cb",
)
"""Properties of clients that go the way in Python."""


def _with_plugin(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {**properties, "plugin.library.paths": _module.__file__}


def _check_open(handle: Any) -> None:
    if not handle.is_open:
        raise RuntimeError("librdkafka did not call the plugin")


def _give_up(reason: str) -> None:
    """Let all later clients go the way in Python."""
    global _module
    _module = None
    fall_back(_PART, reason)
    _log.debug("messages of Kafka are handled in Python: %s", reason)


def _refusal(module: Any) -> str | None:
    """Return why the compiled module does not fit the confluent-kafka that is installed; None if it does."""
    found: Any = confluent_kafka.version()
    version = found if isinstance(found, str) else found[0]  # older releases return a pair
    first, after = _TESTED
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is None or not first <= (int(number[1]), int(number[2])) < after:
        return f"not tested with confluent-kafka {version}"
    try:
        linked = module.link(cimpl.__file__)
    except ImportError as error:
        return str(error)
    if linked != confluent_kafka.libversion()[1]:
        return f"another librdkafka is loaded: {linked:#x}"
    if ";" in module.__file__:
        return f"librdkafka takes no plugin from {module.__file__}"
    return None


_module: Any = load("penstock.plugins.logs.kafka._columns", _PART)
if _module is not None and (_reason := _refusal(_module)):
    _give_up(_reason)
