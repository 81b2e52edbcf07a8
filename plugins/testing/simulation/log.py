"""SimulatedLog: a log with open transactions, late markers and lost records; and HostLog, a host's way to it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from penstock import (
    Commit,
    FencedError,
    Lease,
    Log,
    LogError,
    OutputBatch,
    RecordBatch,
    TaskCommitter,
    TopicInfo,
    TopicPartition,
    World,
)
from penstock.plugins.logs.memory import MemoryLog, MemoryPartition
from penstock.plugins.logs.messages import fenced, unknown_topics_as_production_errors
from penstock.plugins.logs.partitioner import Partitioner

_MARKER_SECONDS = 5.0
"""So long after a commit at most its records cannot be read."""
TRANSACTION_SECONDS = 60.0
"""How long a transaction may last before the log gives it up."""


@dataclass
class _Transaction:
    """Outputs that were sent and not committed; from `firsts` on, nobody reads the partitions that they go to."""

    committer: TaskCommitter
    until: float
    outputs: list[OutputBatch] = field(default_factory=list)
    firsts: dict[TopicPartition, int] = field(default_factory=dict)


class SimulatedLog(MemoryLog):
    """Topics and commits of a simulation, as on Kafka: a commit's records are hidden until its markers are written.

    A marker takes an offset in each partition that a commit wrote to. Outputs are sent ahead of their commit: into a
    transaction, which the log gives up after `TRANSACTION_SECONDS`, or with `sends_at_once` to be read at once.
    """

    commit_markers = 1
    sends_at_once = False

    def __init__(self, world: World) -> None:
        super().__init__(world=world)
        self.seconds = world.seconds
        self._open: dict[str, tuple[float, dict[TopicPartition, int]]] = {}
        """By transactional id: until when at the latest a commit's markers are not written, and its first offsets."""
        self._sent: dict[str, _Transaction] = {}
        """By transactional id: the uncommitted outputs."""
        self.went_back: list[str] = []
        """Positions that a commit has set back."""
        self.versions: set[str] = set()
        """The versions that were committed."""
        self.resets = 0
        """How often positions were set."""
        self.lossy_topics: set[str] = set()
        """Topics that have lost records, or were deleted and made again."""

    # ------------------------------------------------------------------ transactions

    @property
    def has_open(self) -> bool:
        """Whether a commit's markers are not written."""
        return bool(self._open)

    def write_markers(self, transactional_id: str | None = None) -> None:
        """Let the records of a task's commit (None: of all) be read."""
        for each in list(self._open) if transactional_id is None else [transactional_id]:
            self._open.pop(each, None)

    def commit_of(
        self, committer: TaskCommitter, application_id: str, task_id: str, commit: Commit,
        outputs: Sequence[OutputBatch],
    ) -> None:  # fmt: skip
        """Make a task's commit; its records cannot be read before `write_markers`."""
        transactional_id = _id(application_id, task_id)
        self.write_markers(transactional_id)
        outputs = [*self._end_transaction(committer, application_id, task_id), *outputs]
        partitions = self._partitions_of(outputs)
        before, positions = self._ends(partitions), self.committed(application_id, list(commit.positions))
        committer.commit(commit, outputs)
        self.versions.add(commit.version)
        changed = {each: before[each] for each, end in self._ends(partitions).items() if end > before[each]}
        for each in changed:
            self._partition(each).end += self.commit_markers
        if changed:
            self._open[transactional_id] = self.seconds() + _MARKER_SECONDS, changed
        self.went_back += [
            f"task {task_id} set its position in {each} back from {old} to {commit.positions[each]}"
            for each, old in positions.items()
            if old is not None and commit.positions[each] < old and each.topic not in self.lossy_topics
        ]

    def send_of(
        self, committer: TaskCommitter, application_id: str, task_id: str, outputs: Sequence[OutputBatch]
    ) -> None:
        """Send outputs of a task ahead of its commit."""
        if not committer.is_current():
            raise fenced(application_id, task_id)
        with unknown_topics_as_production_errors():
            for output in outputs:
                self._split(output)
        if self.sends_at_once:
            for output in outputs:
                self.append(output)
            return
        transactional_id = _id(application_id, task_id)
        sent = self._sent.get(transactional_id)
        if sent is None or sent.committer is not committer:
            sent = self._sent[transactional_id] = _Transaction(committer, self.seconds() + TRANSACTION_SECONDS)
        sent.outputs += outputs
        for partition, end in self._ends(self._partitions_of(outputs)).items():
            sent.firsts.setdefault(partition, end)

    def _end_transaction(self, committer: TaskCommitter, application_id: str, task_id: str) -> list[OutputBatch]:
        """Return the outputs that a task has sent for its commit."""
        transactional_id = _id(application_id, task_id)
        sent = self._sent.get(transactional_id)
        if sent is None or sent.committer is not committer:
            return []
        del self._sent[transactional_id]
        if self.seconds() >= sent.until:
            raise FencedError(f"application {application_id!r}, task {task_id}: its transaction was given up")
        return sent.outputs

    def drop(self, committer: TaskCommitter) -> None:
        """Drop a task's uncommitted outputs."""
        self._sent = {key: each for key, each in self._sent.items() if each.committer is not committer}

    def has_sent(self, committer: TaskCommitter) -> bool:
        """Return whether a task has uncommitted outputs."""
        return any(each.committer is committer for each in self._sent.values())

    def _partitions_of(self, outputs: Sequence[OutputBatch]) -> list[TopicPartition]:
        topics = sorted({output.topic for output in outputs} & set(self.topics()))  # the commit refuses others
        return [TopicPartition(name, number) for name in topics for number in range(self.topic(name).partitions)]

    # ------------------------------------------------------------------ what a log loses

    def make_again(self, name: str) -> None:
        """Delete a topic, and make it again: it is empty, and has another id."""
        info = self.topic(name)
        self.delete_topic(name)
        self.create_topic(name, info.partitions, info.config)
        self.lossy_topics.add(name)

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions; its records stay where they are."""
        found = self._topics[name]
        found.partitions += [MemoryPartition() for _ in range(partitions - found.info.partitions)]
        found.info, found.partitioner = replace(found.info, partitions=partitions), Partitioner(partitions)

    def lose_end(self, partition: TopicPartition) -> int:
        """Lose the last record of a partition, as after an election of a leader that lacks it; return the new end."""
        found = self._partition(partition)
        found.end = max(found.start, found.end - 1)
        kept = bisect_left(found.offsets, found.end)
        for column in (found.offsets, found.keys, found.values, found.timestamps, found.headers, found.appended):
            if column:
                del column[kept:]
        self.lossy_topics.add(partition.topic)
        return found.end

    def lose_start(self, partition: TopicPartition, before: int) -> None:
        """Delete the records of a partition before an offset, read or not."""
        self.purge(partition, before)
        self.lossy_topics.add(partition.topic)

    def set_positions(
        self, application_id: str, positions: Mapping[TopicPartition, int], to_end: Collection[TopicPartition] = ()
    ) -> None:
        super().set_positions(application_id, positions, to_end)
        self.resets += 1

    @contextmanager
    def without_commits(self, application_id: str) -> Iterator[None]:
        """Have no commits of an application, for a while, as when its positions have expired."""
        positions, commits = self._positions, self._commits
        self._positions = {key: each for key, each in positions.items() if key[0] != application_id}
        self._commits = {key: each for key, each in commits.items() if key[0] != application_id}
        try:
            yield
        finally:
            self._positions, self._commits = positions, commits

    @contextmanager
    def without_transactions(self) -> Iterator[None]:
        """Have no open transactions, for a while: all that was committed can be read."""
        sent, self._sent = self._sent, {}
        try:
            yield
        finally:
            self._sent = sent

    def _ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {partition: self._partition(partition).end for partition in partitions}

    def _stable_end(self, partition: TopicPartition) -> int:
        now = self.seconds()
        waiting = [*self._open.values(), *((each.until, each.firsts) for each in self._sent.values())]
        open_from = [firsts[partition] for until, firsts in waiting if now < until and partition in firsts]
        return min([*open_from, self._partition(partition).end])

    # ------------------------------------------------------------------ reading

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        return (
            {partition: self._stable_end(partition) for partition in partitions} if stable else self._ends(partitions)
        )

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        return super().fetch(partition, offset, min(end, max(offset, self._stable_end(partition))), max_bytes)

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        transactional_id = _id(application_id, task_id)
        self.write_markers(transactional_id)  # a producer of this id waits for them
        self._sent.pop(transactional_id, None)  # and gives up what its predecessor had sent
        return super().open_committer(application_id, task_id, partitions)


def _id(application_id: str, task_id: str) -> str:
    """Return the transactional id of a task: a layout of an application that was resharded has ids of its own."""
    return f"{application_id}-{task_id}"


T = TypeVar("T")
Edge = Callable[[str, Callable[[], Any], bool], Any]
"""Called with the name of an operation, what does it, and whether it changes the log: does it, or a fault strikes."""

_EXPIRING_SECONDS = 400.0
"""After so long a commit has to be repeated, as if the log kept it for some minutes more."""


class HostLog(Log):
    """A host's way to the log of the simulation: at each operation a fault of this host may strike (`edge`)."""

    commit_markers = SimulatedLog.commit_markers

    def __init__(self, shared: SimulatedLog, edge: Edge) -> None:
        self.shared = shared
        self._edge = edge

    def do(self, what: str, call: Callable[[], T], changes: bool = False) -> T:
        """Run an operation of the log, unless a fault strikes. `changes`: the operation changes the log."""
        result: T = self._edge(what, call, changes)
        return result

    def _write(self, what: str, call: Callable[[], T]) -> T:
        return self.do(what, call, True)

    def topics(self) -> Mapping[str, TopicInfo]:
        return self.shared.topics()

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, internal: bool = False
    ) -> None:
        self.shared.create_topic(name, partitions, config, internal=internal)

    def delete_topic(self, name: str) -> None:
        self._write(f"removes topic {name}", lambda: self.shared.delete_topic(name))

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.do("asks for start offsets", lambda: self.shared.start_offsets(partitions))

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        return self.do("asks for end offsets", lambda: self.shared.end_offsets(partitions, stable=stable))

    def offsets_for_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        return self.do("asks for offsets", lambda: self.shared.offsets_for_time(partitions, timestamp_ms))

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        return self.do(f"fetches {partition}", lambda: self.shared.fetch(partition, offset, end, max_bytes))

    def append(self, batch: OutputBatch) -> None:
        self._write(f"produces to {batch.topic}", lambda: self.shared.append(batch))

    def purge(self, partition: TopicPartition, before: int, topic_id: str = "") -> None:
        self._write(f"purges {partition}", lambda: self.shared.purge(partition, before, topic_id))

    def committed(
        self, application_id: str, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        return self.do("asks for positions", lambda: self.shared.committed(application_id, partitions))

    def last_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        what = f"asks for the commit of task {task_id}"
        return self.do(what, lambda: self.shared.last_commit(application_id, task_id, partitions))

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        what = f"takes the fence of task {task_id}"
        inner = self._write(what, lambda: self.shared.open_committer(application_id, task_id, partitions))
        return _HostCommitter(inner, self.shared, application_id, task_id, self._edge)

    def delete_commits(self, application_id: str) -> None:
        self.shared.delete_commits(application_id)

    def set_positions(
        self, application_id: str, positions: Mapping[TopicPartition, int], to_end: Collection[TopicPartition] = ()
    ) -> None:
        self._write("sets positions", lambda: self.shared.set_positions(application_id, positions, to_end))

    def get_meta(self, application_id: str, key: str) -> bytes | None:
        return self.shared.get_meta(application_id, key)

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        self._write(f"notes the {key.partition('-')[0]}", lambda: self.shared.put_meta(application_id, key, value))

    def change_meta(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        what = f"notes the {key.partition('-')[0]}"
        self._write(what, lambda: self.shared.change_meta(application_id, key, change))

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        return _HostLease(self.shared.lease(application_id, owner, ttl_ms), self._write)

    def maintain(self, now_ms: int) -> None:
        self.shared.maintain(now_ms)

    def close(self) -> None:
        """Do nothing: the log is the simulation's."""


class _HostLease(Lease):
    def __init__(self, inner: Lease, write: Callable[[str, Callable[[], None]], None]) -> None:
        self._inner = inner
        self._write = write

    def renew(self) -> None:
        self._inner.renew()

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        what = f"notes the {key.partition('-')[0]}"
        self._write(what, lambda: self._inner.put_meta(application_id, key, value))

    def release(self) -> None:
        self._inner.release()


class _HostCommitter(TaskCommitter):
    streams_outputs = True

    def __init__(self, inner: TaskCommitter, log: SimulatedLog, application_id: str, task_id: str, edge: Edge) -> None:
        self._inner, self._log, self._edge, self._task_id = inner, log, edge, task_id
        self._writer = inner, application_id, task_id
        self._committed_at = log.seconds()

    @property
    def committed(self) -> Commit | None:
        return self._inner.committed

    def is_current(self) -> bool:
        result: bool = self._edge(f"asks whether task {self._task_id} is its own", self._inner.is_current, False)
        return result

    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        counter, records = commit.version.partition("-")[0].lstrip("0") or "0", sum(map(len, outputs))
        what = f"commits task {self._task_id}: version {counter}, {records} records"
        self._edge(what, lambda: self._log.commit_of(*self._writer, commit, outputs), True)
        self._committed_at = self._log.seconds()

    def expires(self) -> bool:
        return self._log.seconds() - self._committed_at > _EXPIRING_SECONDS

    @property
    def commit_within(self) -> float:
        return TRANSACTION_SECONDS / 2

    def send(self, outputs: Sequence[OutputBatch]) -> None:
        what = f"sends {sum(map(len, outputs))} records of task {self._task_id}"
        self._edge(what, lambda: self._log.send_of(*self._writer, outputs), True)

    def close(self) -> None:
        # A process that has died, or that the log does not hear, leaves its transaction open.
        if self._log.has_sent(self._inner):
            with suppress(LogError):
                self._edge(f"ends the transaction of task {self._task_id}", lambda: self._log.drop(self._inner), True)
        self._inner.close()
