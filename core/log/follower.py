"""The interface by which a task host reads records as they come: `LogRecords.follow` returns a `Follower`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from ..record import RecordBatch, TopicPartition


class Follower(ABC):
    """Reads the committed records of some partitions as they come. Used by one thread.

    It returns each committed record once, from the offset on that the partition was added with, in offset order
    within the partition. A log that cannot be reached has no records for now: `poll` raises LogError only when that
    lasts longer than the log waits (Kafka: `task_timeout`).
    """

    @abstractmethod
    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions, too, from these offsets on.

        A partition may be added again after `remove`, at any offset, also an earlier one: a task that was opened again
        begins at its last commit. Raises UnknownTopicError or LogError where there is no such partition; then none is
        added. An offset that the log does not have is an error of `poll`.
        """

    @abstractmethod
    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions no more; their polled records stay valid. Ignores partitions that are not read."""

    @abstractmethod
    def poll(self, seconds: float, most: int) -> list[RecordBatch]:
        """Return the records that have arrived, about `most`, by column; `[]` if there are none.

        Waits at most about `seconds` for the first record, and returns at once when there is one. A batch without
        records moves the position past offsets without records: control records, aborted or compacted records.

        Raises OffsetOutOfRangeError, UnknownTopicError or LogError. Its `partition` names the partition if only one is
        affected.
        """

    @abstractmethod
    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Let `poll` return nothing of these partitions until `resume`. Ignores partitions that are not read."""

    @abstractmethod
    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """End a pause: `poll` continues where it stopped. Ignores partitions that are not paused."""

    @abstractmethod
    def ends(self) -> Mapping[TopicPartition, int | None]:
        """Return the end offset of each partition as far as known from what was read; sends no request.

        None: the log has not said yet where the partition ends, as after `add`. Unknown is not empty: a task waits for
        the answer, as for an input with more records (KIP-695). It comes soon, also where there are no records, or
        `poll` raises LogError.

        An end is never before what was read, and never before the stable end offset that the partition had when it was
        added. It is the stable end offset when the last record was read and the log said so. Before, it may include
        records of open transactions.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""
