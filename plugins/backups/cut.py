"""Cut: commits of all tasks, and the records that waited between them, as they were at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from struct import Struct

from msgpack import packb, unpackb

from penstock import Commit, Log, OffsetOutOfRangeError, OutputBatch, StoreError, TopicPartition, World
from penstock.plugins.replicas.saved_tasks import task_partitions
from penstock.plugins.upgrade.saved_program import Note, repartition_topics

_THREADS = 8
_FETCHED_BYTES = 4 * 1024 * 1024
_OFFSET = Struct(">Q")
_PAUSE_SECONDS = 0.02
_PORTION = 10_000


@dataclass(frozen=True)
class Cut:
    """The last commit of each task, None where there is none, and the stable ends of repartition topics between them.

    At one moment all of these held together, if there are repartition topics.
    """

    commits: Mapping[str, Commit | None]
    ends: Mapping[TopicPartition, int]


class Cuts:
    """Makes cuts of an application while it runs; `note` is of the program that ran last."""

    def __init__(self, application_id: str, note: Note, log: Log, world: World) -> None:
        self._application_id = application_id
        self._log = log
        self._world = world
        self._reads = task_partitions(note)
        between = repartition_topics(application_id, note)
        self.between = [each for read in self._reads.values() for each in read if each.topic in between]
        """The partitions of repartition topics."""

    def make(self, patience_seconds: float) -> Cut:
        """Return a cut. Raises StoreError if the tasks commit all the time for so long.

        Without repartition topics, tasks do not depend on each other, and no moment is needed.
        """
        if not self.between:
            return Cut(self._commits(), {})
        deadline = self._world.seconds() + patience_seconds
        while True:
            before = self._commits()
            ends = self._log.end_offsets(self.between)
            open_ends = self._log.end_offsets(self.between, stable=False)
            # Nothing was committed between the two looks, and no transaction was open: the ends are of that moment.
            if ends == open_ends and before == self._commits():
                return Cut(before, ends)
            if self._world.seconds() > deadline:
                raise StoreError(
                    f"application {self._application_id!r}: for {patience_seconds:.0f} s there was no moment without a "
                    "commit or an open transaction, and only then is it known which records of its repartition topics "
                    f"({', '.join(sorted({each.topic for each in self.between}))}) belong to the commits of its tasks: "
                    "try again, commit less often (`commit_interval`), or stop it for the backup; nothing was written"
                )
            self._world.sleep(_PAUSE_SECONDS)

    def _commits(self) -> Mapping[str, Commit | None]:
        def last(item: tuple[str, Sequence[TopicPartition]]) -> Commit | None:
            return self._log.last_commit(self._application_id, *item)

        with ThreadPoolExecutor(_THREADS, "backup-cut") as pool:
            return dict(zip(self._reads, pool.map(last, self._reads.items()), strict=True))

    def in_transit(self, cut: Cut) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield the records that waited in repartition topics: the partition's name, the offset and the record.

        Raises OffsetOutOfRangeError if a task has processed them meanwhile, and they are deleted.
        """
        positions = {each: at for commit in cut.commits.values() if commit for each, at in commit.positions.items()}
        starts = self._log.start_offsets(self.between)
        for each in sorted(self.between, key=partition_name):
            first = positions.get(each, starts[each])
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
