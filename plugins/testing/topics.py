"""The topics of a test: InputTopic, OutputTopic, TopicReader, and records as the bytes that a source reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from penstock import (
    Application,
    ConfigError,
    DeadLetter,
    Duration,
    Headers,
    Log,
    OutputBatch,
    Record,
    Retry,
    Serde,
    Settings,
    SinkNode,
    SourceNode,
    TopicPartition,
    UnknownTopicError,
    duration_ms,
    fail,
    skip,
)
from penstock.plugins.engine.program.topic_records import as_bytes
from penstock.program.checks import nearest
from penstock.program.nodes import decorate
from penstock.program.serdes import SerdeLike, serdes_of_topic
from penstock.settings.dead_letters import dead_letter_topics
from penstock.settings.settings import HANDLERS


class InputTopic:
    """Pipes records to one source topic."""

    def __init__(self, topic: str, pipe: Callable[[str, Any, Any, int | None, Headers], None]) -> None:
        self.topic = topic
        self._pipe = pipe

    def pipe(self, key: Any, value: Any, timestamp: int | None = None, headers: Headers = ()) -> None:
        """Send one record and run everything it causes."""
        self._pipe(self.topic, key, value, timestamp, headers)

    def pipe_values(self, values: Iterable[Any], *, start: int = 0, advance: Duration = "0ms") -> None:
        """Send values without keys, with timestamps from `start` (ms) on, `advance` apart."""
        step = duration_ms(advance, "pipe_values: advance")
        for number, value in enumerate(values):
            self.pipe(None, value, start + number * step)


class OutputTopic:
    """Reads records of one output topic."""

    def __init__(self, topic: str, unread: Callable[[], Iterator[Record]]) -> None:
        self.topic = topic
        self._unread = unread

    def read(self) -> Record | None:
        """Return the next record that was not read yet, or None."""
        return next(self._unread(), None)

    def read_all(self) -> list[Record]:
        """Return every record that was not read yet."""
        return list(self._unread())

    def read_pairs(self) -> list[tuple[Any, Any]]:
        """Return key and value of every record that was not read yet."""
        return [(record.key, record.value) for record in self.read_all()]

    def read_values(self) -> list[Any]:
        """Return the values of every record that was not read yet."""
        return [record.value for record in self.read_all()]

    def read_table(self) -> dict[Any, Any]:
        """Return the last value of each key among the unread records; a tombstone removes its key."""
        table: dict[Any, Any] = {}
        for record in self.read_all():
            if record.value is None:
                table.pop(record.key, None)
            else:
                table[record.key] = record.value
        return table


class TopicReader:
    """Reads each record once: by partition, as they were produced; from `starts` on, where that has an offset."""

    def __init__(self, application: Application, log: Log, starts: Mapping[TopicPartition, int] | None = None) -> None:
        self._application = application
        self._log = log
        self._next = dict(starts or {})

    def again(self) -> TopicReader:
        """Return a reader of the same topics that has read nothing."""
        return TopicReader(self._application, self._log)

    def unread(self, topic: str, key_serde: SerdeLike = None, value_serde: SerdeLike = None) -> Iterator[Record]:
        """Yield the records that were not read yet. A serde that is None is that of the sink that writes the topic."""
        for each in self.by_partition(topic, key_serde, value_serde):
            yield from each

    def by_partition(self, topic: str, key_serde: SerdeLike, value_serde: SerdeLike) -> list[Iterator[Record]]:
        """Return the records that `unread` yields, by partition."""
        self.check(topic)
        info = self._log.topics().get(topic)
        if info is None:
            return []
        sink, settings = self._sink_of(topic), self._application.settings
        if sink is not None:
            key_serde, value_serde = key_serde or sink.key_serde, value_serde or sink.value_serde
        key, value = serdes_of_topic(key_serde, value_serde, settings, f"topic {topic!r}", topic)
        return [self._of_partition(TopicPartition(topic, number), key, value) for number in range(info.partitions)]

    def check(self, topic: str) -> None:
        """Refuse a topic that there is not and that the program does not name. Raises UnknownTopicError."""
        if topic in self._log.topics():
            return
        known = named_topics(self._application)
        if known is not None and topic not in known:
            raise UnknownTopicError(f"no sink writes topic {topic!r}{nearest(topic, known)}")

    def _of_partition(self, partition: TopicPartition, key: Serde[Any], value: Serde[Any]) -> Iterator[Record]:
        while (at := self._next.get(partition, 0)) < self._log.end_offsets([partition])[partition]:
            batches = self._log.fetch(partition, at, at + 1, 1)
            self._next[partition] = batches[-1].next_offset if batches else at + 1  # markers take offsets
            if not batches:
                continue
            [batch] = batches
            raw_key, raw_value = batch.keys[0], batch.values[0]
            yield Record(
                None if raw_key is None else key.deserialize(raw_key),
                None if raw_value is None else value.deserialize(raw_value),
                batch.timestamps[0],
                batch.headers[0] if batch.headers is not None else (),
            )

    def _sink_of(self, topic: str) -> SinkNode | None:
        """Return the sink that names a topic, or else one that chooses its topic for each record."""
        sinks = [node for node in self._application.program.nodes.values() if isinstance(node, SinkNode)]
        named = (sink for sink in sinks if sink.topic == topic)
        return next(named, next((sink for sink in sinks if callable(sink.topic)), None))


def named_topics(application: Application) -> tuple[str, ...] | None:
    """Return every topic that a program may read or write, outputs first; None if functions or patterns choose some."""
    program, settings = application.program, application.settings
    handlers = [getattr(settings, name) for name in HANDLERS]
    topics = [*program.sink_topics(), *dead_letter_topics(handlers), *program.topics()]
    for node in program.nodes.values():
        if (isinstance(node, SinkNode) and callable(node.topic)) or (isinstance(node, SourceNode) and node.pattern):
            return None
    for handler in handlers:
        while isinstance(handler, Retry):
            handler = handler.then
        if handler not in (fail, skip) and not isinstance(handler, DeadLetter):
            return None
    topics += (decorate(application.id, each, program.internal_topics) for each in program.internal_topics)
    return tuple(dict.fromkeys(topics))


def find_source(application: Application, topic: str) -> SourceNode | None:
    """Return the source that names a topic."""
    nodes = (node for node in application.program.nodes.values() if isinstance(node, SourceNode))
    return next((node for node in nodes if topic in node.topics), None)


class ReadsTopics(ABC):
    """The part of a driver that reads topics; `_outputs` notes what was read. It is closed at the end of a block."""

    _outputs: TopicReader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""

    @abstractmethod
    def _source(self, topic: str) -> SourceNode: ...

    def sent(self, topic: str) -> list[list[Record]]:
        """Return every record of a source topic, by partition, as its source reads them."""
        source, reader = self._source(topic), self._outputs.again()
        return list(map(list, reader.by_partition(topic, source.key_serde, source.value_serde)))

    def output_topic(self, topic: str, *, key_serde: SerdeLike = None, value_serde: SerdeLike = None) -> OutputTopic:
        """Return a handle that reads one topic with the given serdes (None: those of the sink that writes it)."""
        self._outputs.check(topic)
        return OutputTopic(topic, lambda: self._outputs.unread(topic, key_serde, value_serde))

    def read(self, topic: str) -> Record | None:
        """Return the next record of an output topic that was not read yet, or None.

        Raises UnknownTopicError for a topic that the program neither writes nor reads.
        """
        return next(self._outputs.unread(topic), None)

    def read_all(self, topic: str) -> list[Record]:
        """Return every record of an output topic that was not read yet: by partition, as they were produced.

        Raises UnknownTopicError as `read` does.
        """
        return list(self._outputs.unread(topic))

    def read_pairs(self, topic: str) -> list[tuple[Any, Any]]:
        """Return key and value of every record that was not read yet, as `read_all` does."""
        return self.output_topic(topic).read_pairs()

    def read_values(self, topic: str) -> list[Any]:
        """Return the value of every record that was not read yet, as `read_all` does."""
        return self.output_topic(topic).read_values()

    def read_table(self, topic: str) -> dict[Any, Any]:
        """Return the last value of each key among the unread records; a tombstone removes its key."""
        return self.output_topic(topic).read_table()


def serialized(
    topic: str,
    source: SourceNode,
    settings: Settings,
    records: Iterable[Record | tuple[Any, ...]],
    partition: int | None,
    partitions: int,
    now_ms: int,
) -> OutputBatch:
    """Return records as bytes, as `source` will read them from a topic with `partitions` partitions.

    A record without a timestamp gets `now_ms`. Raises ConfigError or SerdeError for a record that cannot be one.
    """
    what = f"source {source.name!r}"
    key_serde, value_serde = serdes_of_topic(source.key_serde, source.value_serde, settings, what, topic)
    return as_bytes(topic, key_serde, value_serde, records, partition, partitions, now_ms, what=f"{what}, ")


def check_partitions(partitions: object, known: Sequence[str] | None) -> None:
    """Check a number of partitions, or numbers by topic. `known`: the program's topics, if all are named."""
    if isinstance(partitions, Mapping):
        for topic in partitions:
            if known is not None and topic not in known:
                raise ConfigError(
                    f"partitions: the program has no topic {topic!r}; its topics: {', '.join(map(repr, known))}"
                )
    elif type(partitions) is not int:
        raise ConfigError(f"partitions: expected a number, or numbers by topic, found {partitions!r}")
