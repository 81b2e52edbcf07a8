"""Records, keys with windows, and batches of raw records by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .compiled import records

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class RecordMetadata(NamedTuple):
    """Where the record being processed was read."""

    topic: str
    partition: int
    offset: int


class Record(NamedTuple):
    """One record. It is immutable; a value that can be changed, such as a dict, is its processor's own copy.

    `timestamp` is milliseconds since the epoch. `headers` is a tuple of (name, bytes or None) pairs
    in which names may repeat. A `value` of None is a tombstone.
    """

    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()

    def with_key(self, key: Any) -> Record:
        """Return this record with another key."""
        return _new(Record, (key, self[1], self[2], self[3]))

    def with_value(self, value: Any) -> Record:
        """Return this record with another value."""
        return _new(Record, (self[0], value, self[2], self[3]))

    def with_timestamp(self, timestamp: int) -> Record:
        """Return this record with another timestamp, in milliseconds since the epoch."""
        return _new(Record, (self[0], self[1], timestamp, self[3]))

    def with_headers(self, headers: Headers) -> Record:
        """Return this record with other headers. Raises TypeError for a dict, which has one value of each name."""
        if isinstance(headers, Mapping):
            raise TypeError("headers are pairs of a name and bytes, found a dict; write tuple(HEADERS.items())")
        return _new(Record, (self[0], self[1], self[2], tuple(headers)))


if records is not None:
    for _index, _name in enumerate(("key", "value", "timestamp")):
        _method = getattr(Record, f"with_{_name}")
        setattr(Record, f"with_{_name}", records.with_part(_method, Record, _index))


def as_record(parts: tuple[Any, Any, int, Headers]) -> Record:
    """Return a record that may be a plain tuple of its four parts as a Record."""
    return parts if type(parts) is Record else _new(Record, parts)


# A NamedTuple's own constructor is a Python function; this builds the same tuple in half the time.
_new = tuple.__new__


class Windowed(NamedTuple):
    """A key and a window: `start` and `end` in ms since the epoch.

    The end of a tumbling or hopping window is the first ms after it, that of a session the time of its last record.
    """

    key: Any
    start: int
    end: int

    def __str__(self) -> str:
        """Return `[key@start/end]`, as Kafka Streams prints it."""
        return f"[{self.key}@{self.start}/{self.end}]"


Windowed.__module__ = "penstock"  # pickled values name it, so it does not follow the file


@dataclass(slots=True)
class RecordBatch:
    """Raw records of one partition in offset order, by column: the input of a task from a log.

    All columns have one length. `offsets` ascends, with gaps where a log compacts or keeps transaction markers.
    `headers` is None when no record has any. `next_offset` is the position after this batch: at least the last offset +
    1.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    headers: Sequence[Headers] | None
    next_offset: int

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(slots=True)
class OutputBatch:
    """Raw records that a task produced for one topic, by column, in the order they were forwarded.

    `partitions` is None, or for each record the partitions it goes to (None: by the default partitioner). That one
    hashes the record's entry in `hashed`, or its key where `hashed` is None. `headers` is None when no record has any.
    """

    topic: str
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int]
    headers: list[Headers] | None = None
    partitions: list[Sequence[int] | None] | None = None
    hashed: list[bytes | None] | None = None

    def __len__(self) -> int:
        return len(self.keys)
