"""Cut: commits of all tasks, and the records that waited between them, as they were at one moment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct

from msgpack import packb, unpackb

from penstock import Commit, Log, OffsetOutOfRangeError, OutputBatch, StoreError, TopicPartition, World
from penstock.plugins.engine.program.saved_program import ProgramNote, repartition_topics, task_partitions
from penstock.plugins.engine.task.own_topics import LEAD_MS, LONGEST_MS, Pause, ask_for_pause

_THREADS = 8
_FETCHED_BYTES = 4 * 1024 * 1024
_OFFSET = Struct(">Q")
_LOOK_SECONDS = 0.02
_ALONE_SECONDS = 1.0
"""How long a moment without a commit is waited for before a pause is asked for."""
_SHORTEST_PAUSE_MS = 500
_PORTION = 10_000


@dataclass(frozen=True)
class Cut:
    """The last commit of each task, None where there is none, and the stable ends of the topics between them.

    At one moment all of these held together, if there are such topics. `outputs`: the ends that output topics had at
    that moment, as far as nobody was writing there.
    """

    commits: Mapping[str, Commit | None]
    ends: Mapping[TopicPartition, int]
    outputs: Mapping[TopicPartition, int]


class Cuts:
    """Makes cuts of an application while it runs; `note` is of the program that ran last.

    `intermediate`: topics from outside through which its tasks are connected. `outputs`: the others that it writes.
    `follow` is called while a pause is waited for, so that little is to be read in it.
    """

    def __init__(
        self,
        application_id: str,
        note: ProgramNote,
        intermediate: Collection[str],
        outputs: Collection[str],
        log: Log,
        world: World,
        follow: Callable[[], None] = lambda: None,
    ) -> None:
        self._application_id = application_id
        self._log = log
        self._world = world
        self._follow = follow
        self._reads = task_partitions(note)
        self._internal = repartition_topics(application_id, note)
        between = self._internal | {*intermediate}
        self.between = [each for read in self._reads.values() for each in read if each.topic in between]
        """The partitions of repartition topics and intermediate topics."""
        there = log.topics()
        self._outputs = [
            TopicPartition(topic, number)
            for topic in sorted(set(outputs) & set(there))
            for number in range(there[topic].partitions)
        ]
        self._has_made, self._pause_ms = False, 0
        self._threads = world.threads(_THREADS, "backup-cut")

    def close(self) -> None:
        """Release the threads."""
        self._threads.shutdown()

    def make(self, patience_seconds: float) -> Cut:
        """Return a cut. Raises StoreError if there is no moment for one, which is looked for so long.

        Without topics between them tasks do not depend on each other, and any moment is one. With them there has to be
        a moment without a commit or an open transaction. After a second, or where an earlier cut was of no use, all
        tasks are asked to rest for half a second; if that is too short, twice as long the next time.
        """
        deadline = self._world.seconds() + patience_seconds
        if not self._has_made:
            self._has_made = True
            found = self._look_for(min(_ALONE_SECONDS, patience_seconds))
            if found is not None:
                return found
        while self._world.seconds() < deadline:
            self._pause_ms = max(_SHORTEST_PAUSE_MS, min(2 * self._pause_ms, LONGEST_MS))
            begins = self._world.seconds() + LEAD_MS / 1000
            from_ms = self._world.clock.now_ms() + LEAD_MS
            ask_for_pause(self._log, self._application_id, Pause(from_ms, from_ms + self._pause_ms))
            while self._world.seconds() < begins:
                self._follow()
                self._world.sleep(_LOOK_SECONDS)
            found = self._look_for(self._pause_ms / 1000)
            if found is not None:
                return found
        asked = f", not even in pauses of up to {self._pause_ms / 1000:g} s that its tasks were asked for"
        raise StoreError(
            f"application {self._application_id!r}: there was no moment without a commit or an open transaction"
            f"{asked if self._pause_ms else ''}, and only then is it known what the commits of its tasks have written: "
            "give it more time (--patience), let the clocks of its machines agree, or stop the application for the "
            "backup; nothing was written"
        )

    def _look_for(self, seconds: float) -> Cut | None:
        """Return a cut of a moment within so many seconds, None if there is none."""
        until = self._world.seconds() + seconds
        while True:
            before = self._commits()
            partitions = [*self.between, *self._outputs]
            ends = self._log.end_offsets(partitions)
            open_ends = self._log.end_offsets(partitions, stable=False)
            # If nothing was committed between the two looks, and no transaction was open, the ends are of that moment.
            is_one = before == self._commits() and all(ends[each] == open_ends[each] for each in self.between)
            if is_one or not self.between:
                settled = [each for each in self._outputs if is_one and ends[each] == open_ends[each]]
                return Cut(before, {each: ends[each] for each in self.between}, {each: ends[each] for each in settled})
            if self._world.seconds() > until:
                return None
            self._world.sleep(_LOOK_SECONDS)

    def _commits(self) -> Mapping[str, Commit | None]:
        found = {
            task: self._threads.submit(self._log.last_commit, self._application_id, task, read)
            for task, read in self._reads.items()
        }
        self._world.wait(list(found.values()))
        return {task: commit.result() for task, commit in found.items()}

    def in_transit(self, cut: Cut, begin: Mapping[TopicPartition, int]) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield the records that waited between the tasks: the partition's name, the offset and the record.

        `begin`: where tasks without a commit read topics from outside; one that is not there they read from its end.
        Raises OffsetOutOfRangeError if a task has processed them meanwhile, and they are deleted.
        """
        read = {each: at for commit in cut.commits.values() if commit for each, at in commit.positions.items()}
        starts = self._log.start_offsets([each for each in self.between if each.topic in self._internal])
        positions = {**starts, **begin, **read}
        for each in sorted(self.between, key=partition_name):
            if each not in positions:
                continue
            first = positions[each]
            yield from _records(self._log, each, first, cut.ends[each])
            if first < cut.ends[each] and self._log.start_offsets([each])[each] > first:
                raise OffsetOutOfRangeError(f"{each}: records from {first} on were processed and deleted meanwhile")


def partition_name(partition: TopicPartition) -> str:
    """Return the name under which a partition's records are kept."""
    return f"{partition.topic}:{partition.partition}"


def _records(log: Log, partition: TopicPartition, at: int, end: int) -> Iterator[tuple[str, bytes, bytes]]:
    name = partition_name(partition)
    while at < end:
        batches = log.fetch(partition, at, end, _FETCHED_BYTES)
        for batch in batches:
            headers = batch.headers or [()] * len(batch)
            for row in zip(batch.offsets, batch.keys, batch.values, batch.timestamps, headers, strict=True):
                yield name, _OFFSET.pack(row[0]), packb(row[1:])
        at = batches[-1].next_offset if batches else end


def batches_of(rows: Iterator[tuple[str, bytes, bytes]], names: Mapping[str, TopicPartition]) -> Iterator[OutputBatch]:
    """Yield the records that `Cuts.in_transit` kept, for the partitions that `names` gives by their kept names."""
    partition: TopicPartition | None = None
    found: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]] = []
    for name, _, data in rows:
        if found and (names[name] != partition or len(found) >= _PORTION):
            assert partition is not None
            yield _batch(partition, found)
            found = []
        partition = names[name]
        found.append(unpackb(data))
    if partition is not None and found:
        yield _batch(partition, found)


def _batch(
    partition: TopicPartition, rows: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]
) -> OutputBatch:
    keys, values, timestamps, headers = map(list, zip(*rows, strict=True))
    made = [tuple((name, value) for name, value in each) for each in headers]
    targets = [(partition.partition,)] * len(rows)
    return OutputBatch(partition.topic, keys, values, timestamps, made if any(made) else None, list(targets))
