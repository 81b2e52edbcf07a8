"""Logs with one wrong line each, which shows where another call comes between two steps of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgpack

from penstock import Commit, Lease, LeaseTakenError, OutputBatch, TaskCommitter, TopicPartition
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.local.catalogue import Topic
from penstock.plugins.logs.local.committer import (
    LocalCommitter,
    append_packed,
    pack_outputs,
    put_positions,
    read_commit,
)
from penstock.plugins.logs.local.layout import named_key
from penstock.plugins.logs.local.leases import LocalLease
from penstock.plugins.logs.local.storage import LogStorage
from penstock.plugins.logs.messages import fenced
from penstock.plugins.logs.topics import check_new_topic


class _ReadsFirst(LocalCommitter):
    def __init__(
        self, storage: LogStorage, application_id: str, task_id: str, partitions: Sequence[TopicPartition]
    ) -> None:
        with storage.read() as (transaction, topics):
            found = read_commit(transaction, topics, application_id, task_id, partitions)
        super().__init__(storage, application_id, task_id, partitions)
        self._committed = found


class ReadsBeforeFence(LocalLog):
    """The last commit is read, and then the fence is taken."""

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        return _ReadsFirst(self._storage, application_id, task_id, partitions)


class _ChecksFirst(LocalCommitter):
    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        storage = self._storage
        if not self.is_current():
            raise fenced(self._application_id, self._task_id)
        packed = pack_outputs(storage, outputs)
        with storage.write("commit") as (transaction, topics):
            put_positions(transaction, topics, self._application_id, commit.positions)
            append_packed(transaction, packed)
            transaction.put("commits", self._key, self._epoch + msgpack.packb((commit.version, commit.engine_state)))
        self._committed = commit


class ChecksBeforeItCommits(LocalLog):
    """The fence is checked in a transaction of its own, before that of the commit."""

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        return _ChecksFirst(self._storage, application_id, task_id, partitions)


class _OutputsFirst(LocalCommitter):
    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        packed = pack_outputs(self._storage, outputs)
        with self._storage.write("outputs") as (transaction, _):
            if bytes(transaction.get("commits", self._key) or b"") != self._row:
                raise fenced(self._application_id, self._task_id)
            append_packed(transaction, packed)
        super().commit(commit, [])


class CommitsAfterItsOutputs(LocalLog):
    """Outputs are in a transaction of their own, before that of the commit; the fence is checked in both."""

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        return _OutputsFirst(self._storage, application_id, task_id, partitions)


class PositionsAfterForgetting(LocalLog):
    """Commits are deleted, and then the positions are set."""

    def set_positions(
        self, application_id: str, positions: Mapping[TopicPartition, int], to_end: Collection[TopicPartition] = ()
    ) -> None:
        self.delete_commits(application_id)
        with self._storage.write("set positions") as (transaction, topics):
            put_positions(transaction, topics, application_id, positions)


class CountsInTwoSteps(LocalLog):
    """A note is read and written in two transactions."""

    def change_meta(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        self.put_meta(application_id, key, change(self.get_meta(application_id, key)))


class CreatesWhatItSawMissing(LocalLog):
    """A topic is looked for before the transaction that makes it."""

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, internal: bool = False
    ) -> None:
        storage = self._storage
        with storage.read() as (_, topics):
            info = check_new_topic(name, partitions, config or {}, topics, internal=internal)
        with storage.write("create") as (transaction, _):
            storage.catalogue.put(transaction, Topic.make(storage.catalogue.next_id(transaction), info))


class EnsuresOnce(LocalLog):
    """A topic that another one makes at the same time is an error."""

    def ensure_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        if name not in self.topics():
            self.create_topic(name, partitions, config, internal=True)


class HandsOverInAField(LocalLog):
    """What is appended is kept in the object, which other threads use."""

    def append(self, batch: OutputBatch) -> None:
        self._batch = batch
        self.topic(batch.topic)
        super().append(self._batch)


class _SeesFree(LocalLease):
    def __init__(self, storage: LogStorage, application_id: str, owner: str, ttl_ms: int) -> None:
        self._storage, self._application_id = storage, application_id
        with storage.read() as (transaction, _):
            holder = self._holder(transaction)
            if holder is not None and holder.expires_ms > storage.clock.now_ms():
                raise LeaseTakenError(f"it is run by {holder.owner}")
        with storage.write("forget the holder") as (transaction, _):
            transaction.delete("leases", self._key())
        super().__init__(storage, application_id, owner, ttl_ms)


class TakesWhatItSawFree(LocalLog):
    """The lease of a driver is looked at before the transaction that takes it."""

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        return _SeesFree(self._storage, application_id, owner, ttl_ms)


class _RenewsFirst(LocalLease):
    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        self.renew()
        with self._storage.write("note") as (transaction, _):
            transaction.put("meta", named_key(application_id, key.encode()), value)


class RenewsBeforeItNotes(LocalLog):
    """A note under a lease is written in a transaction after that which has checked the lease."""

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        return _RenewsFirst(self._storage, application_id, owner, ttl_ms)


class _LooksFirst(LocalLease):
    def release(self) -> None:
        with self._storage.read() as (transaction, _):
            holder = self._holder(transaction)
        if holder is not None and holder.token == self._token:
            with self._storage.write("release") as (transaction, _):
                transaction.delete("leases", self._key())
        self._unlock()


class ReleasesWhatItHad(LocalLog):
    """A lease is looked at before the transaction that gives it up."""

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        return _LooksFirst(self._storage, application_id, owner, ttl_ms)
