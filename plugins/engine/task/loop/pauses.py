"""Pauses: inputs of which many records wait are not read on for a while, so that memory is bounded."""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock import RecordBatch, TopicPartition
from penstock.log.follower import Follower

_MOST, _MOST_BYTES = 100_000, 32 << 20
"""An input with more records, or about so many bytes, that wait is not read on, until it has a fifth of that."""
_SAMPLED, _RECORD_BYTES = 8, 100


class Pauses:
    """The inputs of a loop's tasks that its follower does not read on now.

    `queued` returns how many records of an input wait. `most_bytes`: about how many bytes may wait in all inputs
    together. Where it is more, no input is read on of which any record waits: a task that waits for another input gets
    that one's records in any case.
    """

    def __init__(self, follower: Follower, queued: Callable[[TopicPartition], int], most_bytes: int) -> None:
        self._follower = follower
        self._queued = queued
        self._most_bytes = most_bytes
        self._few: dict[TopicPartition, int] = {}
        """The inputs that are paused, with the number of records below which each is read on."""
        self._sizes: dict[TopicPartition, int] = {}
        """About how many bytes a record of each input takes."""
        self._total = 0
        """At most so many bytes wait in all inputs."""

    def note(self, partition: TopicPartition, batch: RecordBatch) -> None:
        """Begin pauses if too many records wait, those of a batch that has just come included."""
        some = batch.values[:_SAMPLED]
        if not some:
            return
        size = sum(len(value) for value in some if value is not None) // len(some) + _RECORD_BYTES
        self._sizes[partition] = size
        most = min(_MOST, _MOST_BYTES // size)
        if self._queued(partition) > most:
            self._pause(partition, most // 5 + 1)
        self._total += len(batch) * size
        if self._total > self._most_bytes and self._count() > self._most_bytes:
            for each in self._sizes:
                if each not in self._few and self._queued(each):
                    self._pause(each, 1)

    def _pause(self, partition: TopicPartition, few: int) -> None:
        self._few[partition] = few
        self._follower.pause([partition])

    def _count(self) -> int:
        self._total = sum(self._queued(each) * size for each, size in self._sizes.items())
        return self._total

    def end(self) -> None:
        """End the pauses of inputs of which few records wait, if all of them together are not too many."""
        if self._few:
            is_little = self._count() < self._most_bytes // 2
            free = [each for each, few in self._few.items() if (queued := self._queued(each)) < few or not queued]
            free += [each for each, few in self._few.items() if few == 1 and is_little and each not in free]
            if free:
                for each in free:
                    del self._few[each]
                self._follower.resume(free)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget inputs that are not followed any more."""
        for each in partitions:
            self._few.pop(each, None)
            self._sizes.pop(each, None)
