"""Sink and StagedSink: targets outside of the log that get each record of a topic exactly once.

A database has transactions, and is a Sink; a directory of files has none, and is a StagedSink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .record import Headers
from .store.kinds.key_value import KeyValueStore

__all__ = ["AnySink", "Sink", "SinkPlace", "SinkPosition", "SinkRecord", "SinkWriter", "StagedSink", "StagedWriter"]


class SinkRecord(NamedTuple):
    """A record for a target. `offset` is its place in the partition of `SinkPlace`; `timestamp` is in ms."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers
    offset: int


@dataclass(frozen=True)
class SinkPlace:
    """The partition whose records a writer writes: the key of its position in the target.

    `sink` is the name of the node; `topic` the topic's name in the log.
    """

    application_id: str
    sink: str
    topic: str
    partition: int


@dataclass(frozen=True)
class SinkPosition:
    """How far a target is in a partition: it has every record below `next_offset`, but those that were dropped.

    `topic_id`: the id of the topic, "" where the log has none. A topic that is made again has another one.
    """

    topic_id: str
    next_offset: int


class SinkWriter(ABC):
    """The open connection of one task to a target, for one partition.

    Another thread may call each method, but one at a time. After any error the engine calls `close`, and opens another
    writer. Errors: SinkUnavailableError for a target that is away or too slow; the engine waits and tries again.
    SinkError for what a person must repair, such as a missing column; the run ends.
    """

    @property
    @abstractmethod
    def position(self) -> SinkPosition | None:
        """The position as of the opening; None: the target has nothing of this place."""

    @abstractmethod
    def write(self, records: Sequence[SinkRecord], follows: SinkPosition | None, ends: SinkPosition) -> None:
        """Write records and the position `ends` in one transaction, if the target's position is `follows`.

        The offsets rise, and there is at least one record. It returns when target and position are durable. A reader of
        the target sees all of it or nothing. `follows` None: the target must have no position of this place.

        Raises SinkMovedError if the position is another, and SinkRefusedError if the target refuses a record by what
        is in it; in both cases nothing was changed. After SinkUnavailableError it may have been written or not: the
        next opening reads the position.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent, and it raises nothing for a target that is away."""


class Sink(ABC):
    """A target as a program names it: where it is and how records become rows. It is pickled, and has no connection.

    `str(sink)` names the target in messages, without a password. A mistake that needs no connection, such as a missing
    package, is raised when it is made.
    """

    @abstractmethod
    def open(self, place: SinkPlace) -> SinkWriter:
        """Connect, check that the target can take the records, and read the position of `place`.

        Any number of writers are open at a time, in many processes, but only one of a place is meant to write: an older
        one may continue after its process was frozen, and must find that the position has moved.
        """


class StagedWriter(ABC):
    """The open target of one task for one partition, with a store of the task, in which records wait.

    The task's thread calls `begin` once, then `stage` just before each commit, and reads `due`. What the store has is
    part of these commits. Errors: as those of a SinkWriter, which `begin` may raise, too.

    Records wait under any keys but "state", which is for all else. `penstock reshard` refuses a store in which records
    wait, and gives each new task the "state" of an old one: it is of another place, which that has to say.
    """

    @abstractmethod
    def begin(self, store: KeyValueStore[str, bytes], topic_id: str) -> None:
        """Take the store, with its content as of the last commit, and compare it with the target.

        `topic_id`: the id of the topic now, "" where the log has none.
        """

    @abstractmethod
    def stage(self, records: Sequence[SinkRecord], now_ms: int) -> Callable[[], None] | None:
        """Put records into the store, and decide there what is to be written next. Return the function that writes.

        `records` are those since the last call, of rising offsets; there may be none. `now_ms` is the task's wall
        clock. The function is called before the commit counts, perhaps by another thread, while the task rests, and
        again after a crash. So it writes only what the commit *before* this one has decided, and each time alike. When
        it returns, that is durable; this commit may delete it from the store. None: there is nothing to write.

        Raises SinkRefusedError with the `refusals` of all records that do not fit, before anything was changed.
        """

    @property
    @abstractmethod
    def due(self) -> int | None:
        """The wall clock (ms) at which `stage` has something to do without a record: 0 for at once, None for never."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent, and it raises nothing for a target that is away."""


class StagedSink(ABC):
    """A target without transactions, such as a directory of files, as a program names it.

    Its node has a store, `NAME-staged`: records wait there. A commit of the log decides what is written next, and only
    after that commit it is written, by whoever has the task, any number of times alike. So a process that was frozen
    writes nothing but what was decided before. It is pickled, and has no connection; `str(sink)` names the target.
    """

    @abstractmethod
    def open(self, place: SinkPlace) -> StagedWriter:
        """Connect, and check that the target can be written. Another thread than the task's may call it."""


AnySink = Sink | StagedSink
"""What an external sink writes to."""
