"""Dead letters read again: what is in a dead-letter topic, and which of it is meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from penstock.errors import ConfigError, UnknownTopicError
from penstock.log import Log
from penstock.plugins.runtime.reading import read_up_to
from penstock.record import Headers, RecordBatch, TopicPartition
from penstock.task.dead_letter import FailureNote, split_headers


@dataclass(frozen=True)
class Letter:
    """A record of a dead-letter topic: what it is, and what is said about its failure (None: it is no dead letter).

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
    """Which letters are meant: those that fit in every point; None or empty: any.

    `exceptions` are names of types, with their modules or without. `first` and `last` are offsets, both included.
    `since_ms` is about timestamps, which are the source records'.
    """

    exceptions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    since_ms: int | None = None

    def has(self, letter: Letter) -> bool:
        """Return whether a letter is meant."""
        exception = letter.exception or ""
        return (
            (not self.exceptions or exception in self.exceptions or exception.rpartition(".")[2] in self.exceptions)
            and (not self.sources or letter.source in self.sources)
            and (self.first is None or letter.offset >= self.first)
            and (self.last is None or letter.offset <= self.last)
            and (self.since_ms is None or letter.timestamp >= self.since_ms)
        )

    @property
    def by_kind(self) -> bool:
        """Whether it leaves out some kinds of letters."""
        return bool(self.exceptions or self.sources)

    @property
    def by_place(self) -> bool:
        """Whether it leaves out letters of a kind, so that what it meant cannot be told by a position."""
        return self.first is not None or self.last is not None or self.since_ms is not None


def read_letters(log: Log, topic: str, selection: Selection | None = None) -> Iterator[Letter]:
    """Yield the selected letters of a topic, up to where it ends now, one partition after the other."""
    selection = selection or Selection()
    for partition in partitions_of(log, topic, selection):
        for batch in batches_from(log, partition, selection.first or 0):
            yield from (each for each in letters_in(batch) if selection.has(each))


def partitions_of(log: Log, topic: str, selection: Selection) -> list[TopicPartition]:
    """Return the partitions in which selected letters can be. Raises UnknownTopicError, or ConfigError for one that is not there."""
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


def batches_from(log: Log, partition: TopicPartition, start: int) -> Iterator[RecordBatch]:
    """Return the batches of a partition from `start` on, up to its present end."""
    end = log.end_offsets([partition])[partition]
    return read_up_to(log, partition, max(start, log.start_offsets([partition])[partition]), end)


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
