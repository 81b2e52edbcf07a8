"""SimulatedLog: a log whose transactions end later than their commits return; and HostLog, the way of a host to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from penstock import Commit, Lease, Log, OutputBatch, RecordBatch, TaskCommitter, TopicInfo, TopicPartition, World
from penstock.plugins.logs.memory import MemoryLog

T = TypeVar("T")
Edge = Callable[[str, Callable[[], Any], bool], Any]
"""Called with the name of an operation, what does it, and whether it changes the log: does it, or a fault strikes."""


class SimulatedLog(MemoryLog):
    """Topics and commits of a simulation, as on Kafka: a commit's records are hidden until its markers are written.

    A marker takes an offset in each partition that a commit wrote to.
    """

    commit_markers = 1

    def __init__(self, world: World) -> None:
        super().__init__(world=world)
        self._open: dict[str, dict[TopicPartition, int]] = {}
        """By task: the partitions of a commit whose markers are not written, and its first offset there."""
        self.went_back: list[str] = []
        """Positions that a commit has set back."""

    # ------------------------------------------------------------------ transactions

    @property
    def has_open(self) -> bool:
        """Whether a commit's markers are not written."""
        return bool(self._open)

    def write_markers(self, task_id: str | None = None) -> None:
        """Let the records of a task's commit (None: of all) be read."""
        for each in list(self._open) if task_id is None else [task_id]:
            self._open.pop(each, None)

    def commit_of(
        self,
        committer: TaskCommitter,
        application_id: str,
        task_id: str,
        commit: Commit,
        outputs: Sequence[OutputBatch],
    ) -> None:
        """Make a task's commit; its records cannot be read before `write_markers`."""
        self.write_markers(task_id)
        topics = sorted({each.topic for each in outputs} & set(self.topics()))  # the commit refuses others
        partitions = [TopicPartition(name, number) for name in topics for number in range(self.topic(name).partitions)]
        before, positions = self._ends(partitions), self.committed(application_id, list(commit.positions))
        committer.commit(commit, outputs)
        changed = {each: before[each] for each, end in self._ends(partitions).items() if end > before[each]}
        for each in changed:
            self._partition(each).end += self.commit_markers
        if changed:
            self._open[task_id] = changed
        self.went_back += [
            f"task {task_id} set its position in {each} back from {old} to {commit.positions[each]}"
            for each, old in positions.items()
            if old is not None and commit.positions[each] < old
        ]

    def _ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {each: self._partition(each).end for each in partitions}

    def _stable_end(self, partition: TopicPartition) -> int:
        open_from = [firsts[partition] for firsts in self._open.values() if partition in firsts]
        return min([*open_from, self._partition(partition).end])

    # ------------------------------------------------------------------ reading

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        return {each: self._stable_end(each) for each in partitions} if stable else self._ends(partitions)

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        return super().fetch(partition, offset, min(end, max(offset, self._stable_end(partition))), max_bytes)

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        self.write_markers(task_id)  # a producer of the same transactional id waits for them
        return super().open_committer(application_id, task_id, partitions)


class HostLog(Log):
    """A host's way to the log of the simulation: at each operation a fault of this host may strike (`edge`)."""

    commit_markers = SimulatedLog.commit_markers

    def __init__(self, shared: SimulatedLog, edge: Edge) -> None:
        self.shared = shared
        self._edge = edge

    def _read(self, what: str, call: Callable[[], T]) -> T:
        found: T = self._edge(what, call, False)
        return found

    def _write(self, what: str, call: Callable[[], T]) -> T:
        found: T = self._edge(what, call, True)
        return found

    def topics(self) -> Mapping[str, TopicInfo]:
        return self.shared.topics()

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, internal: bool = False
    ) -> None:
        self.shared.create_topic(name, partitions, config, internal=internal)

    def delete_topic(self, name: str) -> None:
        self.shared.delete_topic(name)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._read("asks for start offsets", lambda: self.shared.start_offsets(partitions))

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        return self._read("asks for end offsets", lambda: self.shared.end_offsets(partitions, stable=stable))

    def offsets_for_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        return self._read("asks for offsets", lambda: self.shared.offsets_for_time(partitions, timestamp_ms))

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        return self._read(f"fetches {partition}", lambda: self.shared.fetch(partition, offset, end, max_bytes))

    def append(self, batch: OutputBatch) -> None:
        self._write(f"produces to {batch.topic}", lambda: self.shared.append(batch))

    def purge(self, partition: TopicPartition, before: int, topic_id: str = "") -> None:
        self._write(f"purges {partition}", lambda: self.shared.purge(partition, before, topic_id))

    def committed(
        self, application_id: str, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        return self._read("asks for positions", lambda: self.shared.committed(application_id, partitions))

    def last_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        return self._read(
            f"asks for the commit of task {task_id}",
            lambda: self.shared.last_commit(application_id, task_id, partitions),
        )

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        inner = self._write(
            f"takes the fence of task {task_id}",
            lambda: self.shared.open_committer(application_id, task_id, partitions),
        )
        return _HostCommitter(inner, self.shared, application_id, task_id, self._edge)

    def delete_commits(self, application_id: str) -> None:
        self.shared.delete_commits(application_id)

    def set_positions(self, application_id: str, positions: Mapping[TopicPartition, int]) -> None:
        self.shared.set_positions(application_id, positions)

    def get_meta(self, application_id: str, key: str) -> bytes | None:
        return self.shared.get_meta(application_id, key)

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        self.shared.put_meta(application_id, key, value)

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        return self.shared.lease(application_id, owner, ttl_ms)

    def maintain(self, now_ms: int) -> None:
        self.shared.maintain(now_ms)

    def close(self) -> None:
        """Do nothing: the log is the simulation's."""


class _HostCommitter(TaskCommitter):
    def __init__(self, inner: TaskCommitter, log: SimulatedLog, application_id: str, task_id: str, edge: Edge) -> None:
        self._inner = inner
        self._log = log
        self._application_id = application_id
        self._task_id = task_id
        self._edge = edge

    @property
    def committed(self) -> Commit | None:
        return self._inner.committed

    def is_current(self) -> bool:
        found: bool = self._edge(f"asks whether task {self._task_id} is its own", self._inner.is_current, False)
        return found

    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        counter, records = commit.version.partition("-")[0].lstrip("0") or "0", sum(map(len, outputs))
        self._edge(
            f"commits task {self._task_id}: version {counter}, {records} records",
            lambda: self._log.commit_of(self._inner, self._application_id, self._task_id, commit, outputs),
            True,
        )

    def close(self) -> None:
        self._inner.close()
