"""Following any log: polls its ends every few milliseconds, and fetches new records."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from penstock import Follower, LogError, LogRecords, RecordBatch, TopicPartition, UnknownTopicError

_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.004
"""Seconds between two polls: the first after new records, then up to the second, because each poll costs processor
time.
"""
_FETCH_BYTES = 1 << 20


class FetchFollower(Follower):
    """Follows partitions by `end_offsets` and `fetch`.

    `changes` returns another value whenever the log may have changed since the last call; without it, every look asks
    for the ends.
    """

    def __init__(self, log: LogRecords, changes: Callable[[], object] = object) -> None:
        self._log = log
        self._changes = changes
        self._seen: object = None
        self._positions: dict[TopicPartition, int] = {}  # those that were read last are the last
        self._ends: Mapping[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._failed: dict[TopicPartition, LogError] = {}
        self._wait = _FIRST_WAIT

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        self._ends = {**self._ends, **self._log.end_offsets(list(positions))}
        self._positions.update(positions)

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._positions.pop(partition, None)
            self._failed.pop(partition, None)
            self._paused.discard(partition)

    def poll(self, seconds: float, most: int) -> list[RecordBatch]:
        deadline = time.monotonic() + seconds
        while True:
            found = [] if self._failed else self._look(most)
            if found:
                self._wait = _FIRST_WAIT
                return found
            for error in self._failed.values():
                raise error
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(self._wait, left))
            self._wait = min(self._wait * 1.5, _LONGEST_WAIT)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.update(partition for partition in partitions if partition in self._positions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def ends(self) -> Mapping[TopicPartition, int]:
        """Return the ends as of the last poll; `add` polls, too."""
        return {each: max(position, self._ends[each]) for each, position in self._positions.items()}

    def close(self) -> None:
        """Forget all partitions: there is nothing to release."""
        self.remove(list(self._positions))

    def _look(self, most: int) -> list[RecordBatch]:
        """Return new records, beginning with the partitions that were read least recently."""
        seen = self._changes()
        if seen != self._seen:
            self._ends = self._end_offsets()
            self._seen = seen
        found: list[RecordBatch] = []
        for partition, position in list(self._positions.items()):
            if most <= 0:
                break
            if position != self._ends[partition] and partition not in self._paused:
                batches = self._fetch(partition, position, most)
                most -= sum(map(len, batches))
                found += batches
        return found

    def _fetch(self, partition: TopicPartition, position: int, most: int) -> list[RecordBatch]:
        # After the end: the log raises the error of a position that it does not have.
        stop = max(min(self._ends[partition], position + most), position + 1)
        try:
            batches = self._log.fetch(partition, position, stop, _FETCH_BYTES)
        except LogError as error:
            error.partition = partition
            self._failed[partition] = error
            return []
        if not batches:
            batches = [RecordBatch(*partition, [], [], [], [], None, stop)]
        del self._positions[partition]
        self._positions[partition] = batches[-1].next_offset
        return batches

    def _end_offsets(self) -> Mapping[TopicPartition, int]:
        try:
            return self._log.end_offsets(list(self._positions))
        except UnknownTopicError:
            return {position: self._end_offset(position) for position in self._positions}

    def _end_offset(self, partition: TopicPartition) -> int:
        try:
            return self._log.end_offsets([partition])[partition]
        except UnknownTopicError as error:
            error.partition = partition
            self._failed[partition] = error
            return self._positions[partition]


def open_follower(log: LogRecords) -> Follower:
    """Return a new follower of a log; its caller closes it."""
    return log.follow() or FetchFollower(log)
