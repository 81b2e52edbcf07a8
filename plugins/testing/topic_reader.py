"""TopicReader: what is in the topics of a test driver, as records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock import (
    Application,
    DeadLetter,
    Log,
    Record,
    Retry,
    Serde,
    SinkNode,
    SourceNode,
    TopicPartition,
    UnknownTopicError,
    fail,
    skip,
)
from penstock.program.checks import nearest
from penstock.program.nodes import decorate
from penstock.program.serdes import SerdeLike, serdes_of_topic
from penstock.settings.dead_letters import dead_letter_topics
from penstock.settings.settings import HANDLERS

from .topics import OutputTopic


class TopicReader:
    """Reads each record once: by partition, as they were produced; from `starts` on, where that has an offset."""

    def __init__(self, application: Application, log: Log, starts: Mapping[TopicPartition, int] | None = None) -> None:
        self._application = application
        self._log = log
        self._next = dict(starts or {})

    def unread(self, topic: str, key_serde: SerdeLike, value_serde: SerdeLike) -> Iterator[Record]:
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


class ReadsTopics:
    """The part of a driver that reads output topics; `_outputs` notes what was read."""

    _outputs: TopicReader

    def output_topic(self, topic: str, *, key_serde: SerdeLike = None, value_serde: SerdeLike = None) -> OutputTopic:
        """Return a handle that reads one topic with the given serdes (None: those of the sink that writes it)."""
        self._outputs.check(topic)
        return OutputTopic(topic, lambda: self._outputs.unread(topic, key_serde, value_serde))

    def read(self, topic: str) -> Record | None:
        """Return the next record of an output topic that was not read yet, or None.

        Raises UnknownTopicError for a topic that the program neither writes nor reads.
        """
        return next(self._outputs.unread(topic, None, None), None)

    def read_all(self, topic: str) -> list[Record]:
        """Return every record of an output topic that was not read yet: by partition, as they were produced.

        Raises UnknownTopicError as `read` does.
        """
        return list(self._outputs.unread(topic, None, None))

    def read_pairs(self, topic: str) -> list[tuple[Any, Any]]:
        """Return key and value of every record that was not read yet, as `read_all` does."""
        return self.output_topic(topic).read_pairs()

    def read_values(self, topic: str) -> list[Any]:
        """Return the value of every record that was not read yet, as `read_all` does."""
        return self.output_topic(topic).read_values()

    def read_table(self, topic: str) -> dict[Any, Any]:
        """Return the last value of each key among the unread records; a tombstone removes its key."""
        return self.output_topic(topic).read_table()
