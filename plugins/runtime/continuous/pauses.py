"""Pauses: inputs of which many records wait are not read on for a while, so that memory is bounded."""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.follower import Follower
from penstock.record import RecordBatch, TopicPartition

_MOST, _MOST_BYTES = 100_000, 32 << 20
"""An input with more records, or about so many bytes, that wait is not read on, until it has a fifth of that."""
_SAMPLED, _RECORD_BYTES = 8, 100


class Pauses:
    """The inputs of a loop's tasks that its follower does not read on now."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._few: dict[TopicPartition, int] = {}
        """The inputs, with the number of records below which each is read on."""

    def note(self, partition: TopicPartition, batch: RecordBatch, queued: int) -> None:
        """Begin a pause if too many records wait: `queued`, which are like those of a batch that has just come."""
        some = batch.values[:_SAMPLED]
        if some:
            size = sum(len(value) for value in some if value is not None) // len(some) + _RECORD_BYTES
            most = min(_MOST, _MOST_BYTES // size)
            if queued > most:
                self._few[partition] = most // 5 + 1
                self._follower.pause([partition])

    def end(self, queued: Callable[[TopicPartition], int]) -> None:
        """End the pauses of inputs of which few records wait; `queued` returns how many."""
        if self._few:
            free = [each for each, few in self._few.items() if queued(each) < few]
            if free:
                self.forget(free)
                self._follower.resume(free)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget inputs that are not followed any more."""
        for each in partitions:
            self._few.pop(each, None)
