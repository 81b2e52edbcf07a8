"""Inputs of a profile: real records, copied from the topics of an application, or given."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock import (
    Application,
    ConfigError,
    Log,
    OutputBatch,
    RecordBatch,
    SourceNode,
    TopicInfo,
    TopicPartition,
    UnknownTopicError,
)
from penstock.plugins.engine.task.locations import read_up_to
from penstock.program.checks import nearest
from penstock.program.nodes import reads

MOST_RECORDS = 50_000
"""How many records of each source topic a profile takes."""
_BATCH = 5_000


@dataclass(frozen=True)
class Chosen:
    """Which records: up to `records` of each topic, the newest, or the oldest `from_beginning` or from a time (ms)."""

    records: int = MOST_RECORDS
    from_beginning: bool = False
    since_ms: int | None = None


@dataclass
class TopicInput:
    """The records of one topic, as batches to append. `is_table`: it is read whole."""

    partitions: int = 1
    batches: list[OutputBatch] = field(default_factory=list)
    is_table: bool = False

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def first(self, most: int) -> TopicInput:
        """Return the input with up to `most` records; a table stays whole."""
        if self.is_table or len(self) <= most:
            return self
        made, left = TopicInput(self.partitions), most
        for each in self.batches:
            if left > 0:
                made.batches.append(cut(each, 0, left))
                left -= len(each)
        return made


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


def tables_of(application: Application) -> set[str]:
    """Return the topics that fill global and read-only stores."""
    program = application.program
    read_only = (each.source for part in program.subtopologies for each in part.read_only_stores)
    return {
        topic for source in (*(each.source for each in program.global_stores), *read_only) for topic in source.topics
    }


def read_inputs(application: Application, log: Log, chosen: Chosen) -> Inputs:
    """Return committed records of the source topics; nothing is written, and no group is joined.

    Topics that are compacted, or that fill a global or read-only store, are read whole. Raises UnknownTopicError for a
    topic that the log does not have, ConfigError if there are no records.
    """
    topics = log.topics()
    found: dict[str, TopicInput] = {}
    for topic in source_topics(application, topics):
        info = topics.get(topic)
        if info is None:
            raise UnknownTopicError(
                f"the program reads topic {topic!r}, which the log {application.settings.shown('log')!r} does not "
                f"have{nearest(topic, [each for each, of in topics.items() if not of.internal])}: name the "
                f"application's log with --log, make the topic (penstock topics create {topic}), or give records with "
                "--file"
            )
        is_table = topic in tables_of(application) or "compact" in info.config.get("cleanup.policy", "")
        found[topic] = _read_topic(log, info, chosen, is_table=is_table)
    check_inputs(application, found)
    return found


def check_inputs(application: Application, inputs: Inputs) -> None:
    """Raise ConfigError if there are no records to process."""
    if not any(len(each) for topic, each in inputs.items() if topic not in tables_of(application)):
        topics = ", ".join(map(repr, inputs)) or "none"
        raise ConfigError(
            f"application {application.id!r}: there is nothing to profile: no records in its source topics ({topics}). "
            "Write some (penstock produce), take them from an earlier time (--from-beginning, --since), or give them "
            "with --file"
        )


def _read_topic(log: Log, info: TopicInfo, chosen: Chosen, *, is_table: bool) -> TopicInput:
    partitions = [TopicPartition(info.name, each) for each in range(info.partitions)]
    starts, ends = dict(log.start_offsets(partitions)), dict(log.end_offsets(partitions))
    made = TopicInput(info.partitions, is_table=is_table)
    if chosen.since_ms is not None and not is_table:
        starts |= log.offsets_for_time(partitions, chosen.since_ms)
    lengths = {each: max(0, ends[each] - starts[each]) for each in partitions}
    shares = lengths if is_table else divide(chosen.records, lengths)
    is_newest = not (is_table or chosen.from_beginning or chosen.since_ms is not None)
    for each in partitions:
        start = ends[each] - shares[each] if is_newest else starts[each]
        left = None if is_table else shares[each]
        for batch in read_up_to(log, each, start, ends[each]):
            for cut in _cut(batch, left):
                made.batches.append(cut)
            left = None if left is None else left - len(batch.keys)
            if left is not None and left <= 0:
                break
    return made


def divide(records: int, lengths: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return how many records to take from each partition: as many from each, where they have them.

    >>> divide(10, {TopicPartition("t", 0): 2, TopicPartition("t", 1): 90})[TopicPartition("t", 1)]
    8
    """
    shares: dict[TopicPartition, int] = {}
    left = records
    for number, (each, length) in enumerate(sorted(lengths.items(), key=lambda item: item[1])):
        shares[each] = min(length, left // (len(lengths) - number))
        left -= shares[each]
    return shares


def _cut(batch: RecordBatch, most: int | None) -> Iterator[OutputBatch]:
    """Yield the first records of a batch, each for the partition that it was read from."""
    end = len(batch.keys) if most is None else min(most, len(batch.keys))
    if end > 0:
        yield OutputBatch(
            batch.topic,
            list(batch.keys[:end]),
            list(batch.values[:end]),
            list(batch.timestamps[:end]),
            None if batch.headers is None else list(batch.headers[:end]),
            [(batch.partition,)] * end,
        )


def cut(batch: OutputBatch, start: int, end: int) -> OutputBatch:
    """Return the records of a batch from index `start` to `end`."""

    def part(column: Sequence[object] | None) -> list[object] | None:
        return None if column is None else list(column[start:end])

    columns = (batch.keys, batch.values, batch.timestamps, batch.headers, batch.partitions, batch.hashed)
    return OutputBatch(batch.topic, *map(part, columns))  # type: ignore[arg-type]
