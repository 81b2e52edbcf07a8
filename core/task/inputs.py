"""Inputs: all input partitions of a task, and the choice of the next record.

Comes in: batches of any input. Goes out: the queue whose record is next, as Kafka Streams chooses it: the lowest
timestamp first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..record import RecordBatch, TopicPartition
from .input_queue import InputQueue
from .progress import Front, TaskProgress
from .schedules import NEVER


class Want(NamedTuple):
    """Records that a task needs before it can continue: offsets from `start` up to, not including, `end`."""

    partition: TopicPartition
    start: int
    end: int


class Inputs:
    """The queues of one task, in the order of its sources.

    `max_idle_ms`: time to wait for an empty input while others have records. 0: only for what the log already has, and
    until the log has said what that is; None: never. A front that `is_last` ends the wait.
    """

    def __init__(
        self, task_id: str, queues: Sequence[InputQueue], max_idle_ms: int | None, progress: TaskProgress
    ) -> None:
        self._task_id = task_id
        self._queues = queues
        self._by_partition = {queue.partition: queue for queue in queues}
        self._max_idle = max_idle_ms
        self._progress = progress
        self._idle_since: int | None = None
        self._has_idled = False
        self._ends_waits = False
        self._mark: tuple[Front, Mapping[TopicPartition, int], bool] | None = None

    def __len__(self) -> int:
        return len(self._queues)

    # ------------------------------------------------------------------ what the driver asks

    def plan(self, ends: Mapping[TopicPartition, int | None]) -> None:
        """Set up to which offset the log has records to process; None: it has not said yet.

        An input that is not named has no more records than the queued ones.
        """
        for queue in self._queues:
            queue.end = ends.get(queue.partition, 0)

    def mark(self, front: Front, ends: Mapping[TopicPartition, int] | None = None) -> None:
        """Note that `front`, by the driver's clock, will be reached once the inputs are read up to `ends`.

        None: up to where the log has records as of `plan`. With `ends` an input has to be read up to there, also where
        what follows its position cannot be read yet. A mark that is not reached yet stays, but goes back where the log
        ends earlier now: it has lost the records between.
        """
        if self._mark is not None and ends is not None and front.time >= 0:
            marked, up_to, is_strict = self._mark
            self._mark = marked, {each: min(end, ends.get(each, end)) for each, end in up_to.items()}, is_strict
        self._ends_waits = front.is_last
        self.settle()
        front = self._progress.own_front(front)
        if self._mark is None and front.time > self._progress.front.time:
            known = {
                queue.partition: end
                for queue in self._queues
                if (end := queue.end if ends is None else ends.get(queue.partition)) is not None
            }
            if len(known) == len(self._queues):
                self._mark = front, known, ends is not None

    @property
    def are_settling(self) -> bool:
        """Whether there is a mark that the inputs have not reached yet."""
        self.settle()
        return self._mark is not None

    def settle(self) -> None:
        """Move `TaskProgress.front` where the inputs have been read up to the mark."""
        if self._mark is None:
            return
        front, ends, is_strict = self._mark
        if all(
            queue.position >= ends[queue.partition] or (queue.is_at_end and not is_strict) for queue in self._queues
        ):
            self._progress.front, self._mark = front, None

    def wants(self) -> list[Want]:
        """Return the next offset to fetch of every empty input that has more records."""
        return [
            Want(queue.partition, queue.fetched, queue.end)
            for queue in self._queues
            if queue.end is not None and queue.fetched < queue.end and queue.is_empty()
        ]

    def feed(self, batch: RecordBatch) -> None:
        """Queue records of one input; batches of an input arrive in offset order."""
        queue = self._by_partition.get(TopicPartition(batch.topic, batch.partition))
        if queue is None:
            raise ConfigError(
                f"task {self._task_id} does not read {batch.topic}-{batch.partition}; it reads "
                + ", ".join(map(str, self._by_partition))
            )
        queue.feed(batch)

    def rewind(self) -> None:
        """Forget queued records: while the task rests, they would only take memory."""
        for queue in self._queues:
            if not queue.is_empty():
                queue.begin_at(queue.position)

    def positions(self) -> dict[TopicPartition, int]:
        """Return for each input the offset of the first record that is not processed."""
        return {queue.partition: queue.position for queue in self._queues}

    def fetched(self) -> dict[TopicPartition, int]:
        """Return for each input the offset after the last record that was fed."""
        return {queue.partition: queue.fetched for queue in self._queues}

    def queued(self, partition: TopicPartition | None = None) -> int:
        """Return the number of queued records of an input, or of all inputs."""
        if partition is not None:
            return self._by_partition[partition].queued()
        return sum(queue.queued() for queue in self._queues)

    def waiting(self) -> int:
        """Return about how many records wait to be processed, including those that the log is known to have."""
        return self.queued() + sum(max(0, (queue.end or 0) - queue.fetched) for queue in self._queues)

    def are_empty(self) -> bool:
        """Return whether every record that was fed is processed."""
        return all(queue.is_empty() for queue in self._queues)

    def decode_seconds(self) -> float:
        """Return how long decoding took since the task was opened."""
        return sum(queue.decode_seconds for queue in self._queues)

    def decode_seconds_by_source(self) -> dict[str, float]:
        """Return how long decoding took since the task was opened, by source."""
        taken = dict.fromkeys((queue.source.name for queue in self._queues), 0.0)
        for queue in self._queues:
            taken[queue.source.name] += queue.decode_seconds
        return taken

    # ------------------------------------------------------------------ the choice

    def choose(self, may_wait: bool) -> tuple[InputQueue, int] | None:
        """Return the queue with the next record, and the highest timestamp up to which that queue remains the choice.

        None: there is no record, or the task waits for an empty input.
        """
        if len(self._queues) == 1:
            queue = self._queues[0]
            return (queue, NEVER) if queue.fill() else None
        heads: list[tuple[int, int]] = []
        some_empty = False
        for order, queue in enumerate(self._queues):
            if queue.fill():
                heads.append((queue.records[queue.index][2], order))
            elif self._max_idle is not None and queue.has_more:
                return None
            else:
                some_empty = True
        if not heads:
            # After a reopen, records that the task waited with may simply not be fetched yet: they end no wait.
            if self._has_idled:
                self._idle_since, self._has_idled = None, False
            return None
        if not some_empty:
            self._idle_since, self._has_idled = None, False
        elif self._max_idle and may_wait and not self._ends_waits and self._waits(self._max_idle):
            return None
        # Of equal timestamps the input that was added first is next.
        _, chosen = min(heads)
        bound = NEVER
        for time, order in heads:
            if order != chosen:
                bound = min(bound, time if order > chosen else time - 1)
        return self._queues[chosen], bound

    def _waits(self, max_idle: int) -> bool:
        """Return whether the task continues to wait for an empty input.

        The start of the wait is committed, so a re-opened task keeps it.
        """
        if self._idle_since is None:
            self._idle_since = self._progress.wall_clock
            self._progress.has_changed = True
        if self._progress.wall_clock - self._idle_since < max_idle:
            return True
        self._has_idled = True
        return False

    def idle_ms(self) -> int:
        """Return `max_idle_ms` while the task waits, with records, for an empty input; 0 while it does not."""
        is_waiting = self._idle_since is not None and not self._has_idled
        return (self._max_idle or 0) if is_waiting else 0

    # ------------------------------------------------------------------ saving

    def to_data(self) -> dict[str, Any]:
        """Return the state that the next opening needs: partition times, and since when the task waits."""
        state: dict[str, Any] = {}
        times = {f"{queue.partition.topic}:{queue.partition.partition}": queue.partition_time for queue in self._queues}
        if any(time >= 0 for time in times.values()):
            state["partitions"] = times
        if self._idle_since is not None:
            state["idle"] = self._idle_since
        return state

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from the data that `to_data` returned at the last commit."""
        self._idle_since = saved.get("idle")
        times = saved.get("partitions", {})
        for queue in self._queues:
            topic, partition = queue.partition
            queue.partition_time = times.get(f"{topic}:{partition}", -1)
