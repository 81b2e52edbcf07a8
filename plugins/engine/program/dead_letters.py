"""Reading dead letters: the records of a dead-letter topic, and selecting some of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from penstock import ConfigError, Headers, Log, RecordBatch, TopicPartition, UnknownTopicError
from penstock.plugins.engine.task.reading import read_up_to
from penstock.task.dead_letter import FailureNote, split_headers


@dataclass(frozen=True)
class Letter:
    """A record of a dead-letter topic, and the note about its failure (None: the record is no dead letter).

    `key`, `value`, `timestamp` and `headers` are the source record's.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    note: FailureNote | None

    @property
    def exception(self) -> str | None:
        """The name of the exception's type, without the message that Kafka Streams writes behind it."""
        return self.note.exception.partition(":")[0] if self.note is not None and self.note.exception else None

    @property
    def source(self) -> str | None:
        """The topic that it was read from; None for a failure in a punctuator."""
        return self.note.topic if self.note is not None else None

    @property
    def kind(self) -> str:
        """A short name for all letters with this exception and source topic."""
        return blake2b(f"{self.exception}\0{self.source}".encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class Selection:
    """Which letters to take: those that match every criterion; None or empty matches all.

    `exceptions` are names of types, with their modules or without. `first` and `last` are offsets, both included.
    `since_ms` compares timestamps, which are the source records'.
    """

    exceptions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    since_ms: int | None = None

    def has(self, letter: Letter) -> bool:
        """Return whether a letter matches."""
        exception = letter.exception or ""
        return (
            (not self.exceptions or exception in self.exceptions or exception.rpartition(".")[2] in self.exceptions)
            and (not self.sources or letter.source in self.sources)
            and (self.first is None or letter.offset >= self.first)
            and (self.last is None or letter.offset <= self.last)
            and (self.since_ms is None or letter.timestamp >= self.since_ms)
        )

    @property
    def end(self) -> int | None:
        """The offset after the last one that can match; None: all may."""
        return None if self.last is None else self.last + 1

    @property
    def by_kind(self) -> bool:
        """Whether it selects some kinds of letters only."""
        return bool(self.exceptions or self.sources)

    @property
    def by_place(self) -> bool:
        """Whether it selects some letters of a kind only, so that a position cannot say which were taken."""
        return self.first is not None or self.last is not None or self.since_ms is not None


def read_letters(log: Log, topic: str, selection: Selection | None = None) -> Iterator[Letter]:
    """Yield the selected letters of a topic, up to where it ends now, one partition after the other."""
    selection = selection or Selection()
    for partition in partitions_of(log, topic, selection):
        for batch in batches_from(log, partition, selection.first or 0, selection.end):
            yield from (each for each in letters_in(batch) if selection.has(each))


def partitions_of(log: Log, topic: str, selection: Selection) -> list[TopicPartition]:
    """Return the partitions that can have selected letters.

    Raises UnknownTopicError, or ConfigError for a partition that does not exist.
    """
    try:
        info = log.topic(topic)
    except UnknownTopicError as error:
        raise UnknownTopicError(f"there is no dead-letter topic {topic!r}") from error
    if selection.partition is None:
        return [TopicPartition(topic, number) for number in range(info.partitions)]
    if selection.partition >= info.partitions:
        raise ConfigError(
            f"topic {topic!r} has no partition {selection.partition}: it has {info.partitions}, numbered from 0"
        )
    return [TopicPartition(topic, selection.partition)]


def batches_from(log: Log, partition: TopicPartition, start: int, end: int | None = None) -> Iterator[RecordBatch]:
    """Return the batches of a partition from offset `start` to `end` (None: to its present end)."""
    last = log.end_offsets([partition])[partition]
    first = max(start, log.start_offsets([partition])[partition])
    return read_up_to(log, partition, first, last if end is None else min(end, last))


def letters_in(batch: RecordBatch) -> Iterator[Letter]:
    """Yield the letters of a batch."""
    for index, offset in enumerate(batch.offsets):
        headers, note = split_headers(batch.headers[index] if batch.headers is not None else ())
        yield Letter(
            batch.topic,
            batch.partition,
            offset,
            batch.keys[index],
            batch.values[index],
            batch.timestamps[index],
            headers,
            note,
        )
