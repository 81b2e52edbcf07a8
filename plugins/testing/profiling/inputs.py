"""Inputs of a profile: real records, copied from the topics of an application, or given."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock import (
    Application,
    ConfigError,
    Log,
    OutputBatch,
    Record,
    SourceNode,
    SystemClock,
    TopicInfo,
    TopicPartition,
    UnknownTopicError,
)
from penstock.plugins.engine.task.locations import read_up_to
from penstock.program.checks import nearest
from penstock.program.nodes import reads

from ..topics import check_partitions, serialized

Records = Mapping[str, Iterable[Record | tuple[Any, ...]]]


@dataclass
class TopicInput:
    """The records of one topic, as batches to append. `is_table`: it is read whole."""

    partitions: int = 1
    batches: list[OutputBatch] = field(default_factory=list)
    is_table: bool = False

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def add(self, batch: OutputBatch, most: int) -> None:
        """Add up to `most` records of a batch."""
        columns = (batch.keys, batch.values, batch.timestamps, batch.headers, batch.partitions, batch.hashed)
        cut = (None if column is None else list(column[:most]) for column in columns)
        self.batches.append(OutputBatch(batch.topic, *cut))  # type: ignore[arg-type]

    def first(self, most: int) -> TopicInput:
        """Return the input with up to `most` records; a table stays whole."""
        if self.is_table:
            return self
        cut = TopicInput(self.partitions)
        for batch in self.batches:
            if len(cut) < most:
                cut.add(batch, most - len(cut))
        return cut


Inputs = Mapping[str, TopicInput]


def source_topics(application: Application, known: Collection[str] = ()) -> list[str]:
    """Return the topics outside that a program reads: those it names, and those of `known` that its patterns match."""
    program = application.program
    sources = [node for node in program.nodes.values() if isinstance(node, SourceNode) and node.pattern is not None]
    matched = (
        topic
        for topic in sorted(known)
        for source in sources
        if reads(source, topic, application.id, program.internal_topics)
    )
    return list(dict.fromkeys([*program.topics(), *matched]))


def source_of(application: Application, topic: str) -> SourceNode:
    """Return the source that reads a topic; that of a global store, if no task reads it."""
    sources = [node for node in application.program.nodes.values() if isinstance(node, SourceNode)]
    matching = (source for source in sources if source.pattern is not None and source.pattern.fullmatch(topic))
    return next((source for source in sources if topic in source.topics), next(matching, sources[0]))


def tables_of(application: Application) -> set[str]:
    """Return the topics that fill global and read-only stores."""
    program = application.program
    read_only = (store.source for part in program.subtopologies for store in part.read_only_stores)
    return {
        topic for source in (*(store.source for store in program.global_stores), *read_only) for topic in source.topics
    }


def serialized_inputs(application: Application, records: Records, partitions: int | Mapping[str, int]) -> Inputs:
    """Return records by topic as bytes. Raises UnknownTopicError for a topic that no source reads."""
    topics = source_topics(application, records)
    check_partitions(partitions, None)
    counts = {topic: partitions if isinstance(partitions, int) else partitions.get(topic, 1) for topic in topics}
    inputs = {topic: TopicInput(counts[topic]) for topic in topics}
    now_ms = SystemClock().now_ms()
    for topic, some in records.items():
        if topic not in inputs:
            raise UnknownTopicError(
                f"no source reads topic {topic!r}{nearest(topic, topics)}; the sources read: {', '.join(topics)}"
            )
        source = source_of(application, topic)
        inputs[topic].batches.append(serialized(topic, source, application.settings, some, None, counts[topic], now_ms))
    return inputs


def read_inputs(application: Application, log: Log, limit: int, from_beginning: bool, since_ms: int | None) -> Inputs:
    """Return up to `limit` committed records of each source topic; nothing is written, and no group is joined.

    They are the newest, the oldest (`from_beginning`) or the first since a time. Topics that are compacted, or that
    fill a global or read-only store, are read whole. Raises UnknownTopicError for a topic that the log does not have.
    """
    topics, tables = log.topics(), tables_of(application)
    inputs: dict[str, TopicInput] = {}
    for topic in source_topics(application, topics):
        info = topics.get(topic)
        if info is None:
            raise UnknownTopicError(
                f"the program reads topic {topic!r}, which the log {application.settings.shown('log')!r} does not "
                f"have{nearest(topic, [each for each, of in topics.items() if not of.internal])}: name the "
                f"application's log with --log, make the topic (penstock topics create {topic}), or give records with "
                "--file"
            )
        if topic in tables or "compact" in info.config.get("cleanup.policy", ""):
            inputs[topic] = _read_topic(log, info, None, True, None)
            inputs[topic].is_table = True
        else:
            inputs[topic] = _read_topic(log, info, limit, from_beginning, since_ms)
    return inputs


def check_inputs(application: Application, inputs: Inputs) -> None:
    """Raise ConfigError if there are no records to process."""
    tables = tables_of(application)
    if not any(len(each) for topic, each in inputs.items() if topic not in tables):
        topics = ", ".join(map(repr, inputs)) or "none"
        raise ConfigError(
            f"application {application.id!r}: there is nothing to profile: no records in its source topics ({topics}). "
            "Write some (penstock produce), take them from an earlier time (--from-beginning, --since), or give them "
            "with --file"
        )


def _read_topic(log: Log, info: TopicInfo, limit: int | None, from_beginning: bool, since_ms: int | None) -> TopicInput:
    partitions = [TopicPartition(info.name, number) for number in range(info.partitions)]
    starts, ends = dict(log.start_offsets(partitions)), log.end_offsets(partitions)
    if since_ms is not None:
        starts |= log.offsets_for_time(partitions, since_ms)
    lengths = {each: max(0, ends[each] - starts[each]) for each in partitions}
    shares = lengths if limit is None else divide(limit, lengths)
    topic = TopicInput(info.partitions)
    for partition, left in shares.items():
        start = starts[partition] if from_beginning or since_ms is not None else ends[partition] - left
        for read in read_up_to(log, partition, start, ends[partition]):
            if left <= 0:
                break
            batch = OutputBatch(read.topic, read.keys, read.values, read.timestamps, read.headers)  # type: ignore[arg-type]
            batch.partitions = [(partition.partition,)] * len(read)
            topic.add(batch, left)
            left -= len(read)
    return topic


def divide(records: int, lengths: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the number of records to take from each partition: equal numbers, where available.

    >>> divide(10, {TopicPartition("t", 0): 2, TopicPartition("t", 1): 90})[TopicPartition("t", 1)]
    8
    """
    shares: dict[TopicPartition, int] = {}
    left = records
    for number, (partition, length) in enumerate(sorted(lengths.items(), key=lambda item: item[1])):
        shares[partition] = min(length, left // (len(lengths) - number))
        left -= shares[partition]
    return shares
