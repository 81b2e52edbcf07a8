"""HostLog: the way of a host to the log of a simulation, on which faults strike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from penstock import (
    Commit,
    Lease,
    Log,
    LogError,
    OutputBatch,
    RecordBatch,
    TaskCommitter,
    TopicInfo,
    TopicPartition,
)

from .log import TRANSACTION_SECONDS, SimulatedLog

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

    def do(self, what: str, call: Callable[[], T], changes: bool) -> T:
        """Do an operation, unless a fault strikes; `changes`: it changes the log."""
        found: T = self._edge(what, call, changes)
        return found

    def _read(self, what: str, call: Callable[[], T]) -> T:
        return self.do(what, call, False)

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
        self._inner = inner
        self._log = log
        self._application_id = application_id
        self._task_id = task_id
        self._edge = edge
        self._seconds = log.seconds
        self._committed_at = self._seconds()

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
        self._committed_at = self._seconds()

    def expires(self) -> bool:
        return self._seconds() - self._committed_at > _EXPIRING_SECONDS

    @property
    def commit_within(self) -> float:
        return TRANSACTION_SECONDS / 2

    def send(self, outputs: Sequence[OutputBatch]) -> None:
        self._edge(
            f"sends {sum(map(len, outputs))} records of task {self._task_id}",
            lambda: self._log.send_of(self._inner, self._application_id, self._task_id, outputs),
            True,
        )

    def close(self) -> None:
        # A process that has died, or that the log does not hear, leaves its transaction open.
        if self._log.has_sent(self._inner):
            with suppress(LogError):
                self._edge(
                    f"ends the transaction of task {self._task_id}",
                    lambda: self._log.drop(self._inner),
                    True,
                )
        self._inner.close()
