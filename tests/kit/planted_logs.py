"""Logs with one wrong line each, which `LogContract` has to find: in memory, and on `local` for other processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import lmdb
import pytest

from penstock import (
    Clock,
    Commit,
    Log,
    LogError,
    ManualClock,
    OffsetOutOfRangeError,
    OutputBatch,
    ProductionError,
    RecordBatch,
    TaskCommitter,
    TopicPartition,
)
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.local.committer import LocalCommitter
from penstock.plugins.logs.local.layout import number_row
from penstock.plugins.logs.memory import MemoryLog, _MemoryCommitter, _MemoryLease, _TaskCommit
from penstock.plugins.testing.contracts.log import LogContract
from penstock.world import World


class InMemory(LogContract):
    """The suite for a log that ends with its object."""

    in_one_process = True
    log_class: type[MemoryLog] = MemoryLog

    def open_log(self, directory: Path, clock: ManualClock) -> Log:
        return self.log_class(world=World(clock=clock))

    def reopen_log(self, log: Log, directory: Path, clock: ManualClock) -> Log:
        return log


class OnDisk(LogContract):
    """The suite for a log in a directory."""

    log_class: type[LocalLog] = LocalLog

    def open_log(self, directory: Path, clock: ManualClock) -> Log:
        return self.log_class(str(directory / "log"), clock=clock)


# ---------------------------------------------------------------- commits in memory


class _Committing(MemoryLog):
    """Opens committers whose `commit` goes through `_commit` of the log."""

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        inner = super().open_committer(application_id, task_id, partitions)
        assert isinstance(inner, _MemoryCommitter)
        log, right = self, inner.commit

        class Committer(_MemoryCommitter):
            def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
                log._commit(self, right, commit, outputs)

        inner.__class__ = Committer
        return inner

    def _commit(self, committer: Any, right: Any, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        right(commit, outputs)


class ZombiesMoveThePositions(_Committing):
    def _commit(self, committer: Any, right: Any, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        if not committer._closed:
            self._positions |= {(committer._application_id, each): at for each, at in commit.positions.items()}
        right(commit, outputs)


class ZombiesProduce(_Committing):
    def _commit(self, committer: Any, right: Any, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        for each in outputs:
            with suppress(LogError):
                self.append(each)
        right(commit, [])


class ProducesUntilAnError(_Committing):
    def _commit(self, committer: Any, right: Any, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        if committer.is_current():
            try:
                for each in outputs:
                    self.append(each)
            except LogError as error:
                raise ProductionError(str(error)) from error
            outputs = []
        right(commit, outputs)


class CommitsAgainAfterClose(_Committing):
    def _commit(self, committer: Any, right: Any, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        committer._closed = False
        right(commit, outputs)


class KeepsItsFirstCommit(_Committing):
    def _commit(self, committer: Any, right: Any, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        before = committer._committed
        right(commit, outputs)
        committer._committed = before


class FencesToReadACommit(MemoryLog):
    def last_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        with closing(super().open_committer(application_id, task_id, partitions)) as committer:
            return committer.committed


class LastingCommitsEndWithTheirTool(MemoryLog):
    def open_lasting_committer(
        self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]
    ) -> TaskCommitter:
        super().open_committer(application_id, task_id, partitions).close()
        return super().open_committer(f"{application_id}-tool", task_id, partitions)


class FencesAtTheFirstCommit(MemoryLog):
    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        old = self._commits.get((application_id, task_id))
        committer = super().open_committer(application_id, task_id, partitions)
        if old is not None and old.version is not None:
            self._commits[application_id, task_id] = old
            committer._epoch = old.epoch  # type: ignore[attr-defined]
        return committer


class FencesTheTasksOfOthers(MemoryLog):
    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        committer = super().open_committer(application_id, task_id, partitions)
        for (application, task), old in list(self._commits.items()):
            if task == task_id and application != application_id:
                self._commits[application, task] = _TaskCommit(0, old.version, old.engine_state)
        return committer


class _Stored(_Committing):
    def _commit(self, committer: Any, right: Any, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        right(self._changed(commit), outputs)
        committer._committed = commit

    def _changed(self, commit: Commit) -> Commit:
        return commit


class CutsEngineStates(_Stored):
    def _changed(self, commit: Commit) -> Commit:
        return replace(commit, engine_state=commit.engine_state[:1024])


class EngineStatesAreText(_Stored):
    def _changed(self, commit: Commit) -> Commit:
        return replace(commit, engine_state=commit.engine_state.decode("utf-8", "ignore").encode())


class PositionsInFourBytes(_Stored):
    def _changed(self, commit: Commit) -> Commit:
        return replace(commit, positions={each: at & 0xFFFFFFFF for each, at in commit.positions.items()})


class SomePositionsAtMost(_Stored):
    def _changed(self, commit: Commit) -> Commit:
        return replace(commit, positions=dict(list(commit.positions.items())[:100]))


class CutsVersions(_Stored):
    def _changed(self, commit: Commit) -> Commit:
        return replace(commit, version=commit.version[:32])


class ForgetsWithoutAFence(MemoryLog):
    def delete_commits(self, application_id: str) -> None:
        epochs = {key: each.epoch for key, each in self._commits.items() if key[0] == application_id}
        super().delete_commits(application_id)
        self._commits |= {key: _TaskCommit(epoch, None, b"") for key, epoch in epochs.items()}


class ForgetsNoNotes(MemoryLog):
    def delete_commits(self, application_id: str) -> None:
        notes = dict(self._meta)
        super().delete_commits(application_id)
        self._meta = notes


class AddsPositionsToThoseBefore(MemoryLog):
    def set_positions(
        self, application_id: str, positions: Mapping[TopicPartition, int], to_end: Collection[TopicPartition] = ()
    ) -> None:
        before = {key: at for key, at in self._positions.items() if key[0] == application_id}
        super().set_positions(application_id, positions, to_end)
        self._positions = before | self._positions


class BeginsBeforeTheEnd(MemoryLog):
    def set_positions(
        self, application_id: str, positions: Mapping[TopicPartition, int], to_end: Collection[TopicPartition] = ()
    ) -> None:
        starts = self.start_offsets(list(to_end))
        super().set_positions(application_id, {**positions, **starts})


class NotesOfAllApplications(MemoryLog):
    def get_meta(self, application_id: str, key: str) -> bytes | None:
        return next((value for (_, name), value in self._meta.items() if name == key), None)


class ChangesNotesInTwoSteps(MemoryLog):
    def change_meta(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        self.put_meta(application_id, key, change(self.get_meta(application_id, key)))


# ---------------------------------------------------------------- records in memory


class _Fetching(MemoryLog):
    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        return [self._changed(each) for each in super().fetch(partition, offset, end, max_bytes)]

    def _changed(self, batch: RecordBatch) -> RecordBatch:
        return batch


class TombstonesAreEmpty(_Fetching):
    def _changed(self, batch: RecordBatch) -> RecordBatch:
        batch.values = [each or b"" for each in batch.values]
        return batch


class HeadersOfTheFirst(_Fetching):
    def _changed(self, batch: RecordBatch) -> RecordBatch:
        if batch.headers is not None:
            batch.headers = [batch.headers[0]] * len(batch)
        return batch


class HeadersIfTheFirstHasSome(_Fetching):
    def _changed(self, batch: RecordBatch) -> RecordBatch:
        if batch.headers is not None and not batch.headers[0]:
            batch.headers = None
        return batch


class FetchesBeyondTheEnd(MemoryLog):
    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        return super().fetch(partition, offset, end + 1, max_bytes)


class FetchesNothingThatIsTooLarge(MemoryLog):
    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        return super().fetch(partition, offset, end, max_bytes) if max_bytes > 10 else []


class NothingOutOfRange(MemoryLog):
    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        try:
            return super().fetch(partition, offset, end, max_bytes)
        except OffsetOutOfRangeError:
            return []


class OffsetsAfterATime(MemoryLog):
    def offsets_for_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        return super().offsets_for_time(partitions, timestamp_ms + 1)


class PurgesWhatWasMadeAgain(MemoryLog):
    def purge(self, partition: TopicPartition, before: int, topic_id: str = "") -> None:
        super().purge(partition, before)


class NullKeysToOnePartition(MemoryLog):
    def append(self, batch: OutputBatch) -> None:
        targets = batch.partitions or [None] * len(batch)
        batch.partitions = [
            [0] if key is None and target is None else target for key, target in zip(batch.keys, targets, strict=True)
        ]
        super().append(batch)


# ---------------------------------------------------------------- on disk


class _OnDisk(LocalLog):
    committer: type[LocalCommitter] = LocalCommitter

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        made = super().open_committer(application_id, task_id, partitions)
        made.__class__ = self.committer
        made.log = self  # type: ignore[attr-defined]
        return made


class _Committer(LocalCommitter):
    log: LocalLog


class _OutputsFirst(_Committer):
    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        for each in outputs:
            self.log.append(each)
        super().commit(commit, [])


class OutputsBeforePositions(_OnDisk):
    committer = _OutputsFirst


class _PositionsFirst(_Committer):
    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        super().commit(commit, [])
        for each in outputs:
            self.log.append(each)


class PositionsBeforeOutputs(_OnDisk):
    committer = _PositionsFirst


class _TopicByTopic(_Committer):
    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        for each in outputs[1:]:
            self.log.append(each)
        super().commit(commit, outputs[:1])


class OneTopicInACommit(_OnDisk):
    committer = _TopicByTopic


class _StateApart(_Committer):
    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        super().commit(replace(commit, engine_state=b""), outputs)
        super().commit(commit, [])


class EngineStateInASecondStep(_OnDisk):
    committer = _StateApart


class _Swallowing(_Committer):
    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        try:
            super().commit(commit, outputs)
        except LogError as error:
            if "re-open" in str(error) or type(error) is not LogError:
                raise


class IgnoresAFullDisk(_OnDisk):
    committer = _Swallowing


class _Raising(_Committer):
    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        try:
            super().commit(commit, outputs)
        except LogError as error:
            if isinstance(error.__cause__, lmdb.Error | OSError):
                raise error.__cause__ from None
            raise


class RaisesWhatTheSystemRaises(_OnDisk):
    committer = _Raising


class NeverSyncs(LocalLog):
    def __init__(self, location: str, settings: Mapping[str, str] | None = None, *, clock: Clock | None = None) -> None:
        right = lmdb.open

        def unsafe(*args: Any, **options: Any) -> Any:
            return right(*args, **{**options, "sync": False, "metasync": False})

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lmdb, "open", unsafe)
            super().__init__(location, settings, clock=clock)
            self.topics()


class AppendsWithTheNext(LocalLog):
    """Records are in the log once others are, or it is closed or read."""

    waiting: OutputBatch | None = None

    def append(self, batch: OutputBatch) -> None:
        self._flush()
        self.waiting = batch

    def _flush(self) -> None:
        batch, self.waiting = self.waiting, None
        if batch is not None:
            super().append(batch)

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        self._flush()
        return super().end_offsets(partitions, stable=stable)

    def close(self) -> None:
        self._flush()
        super().close()


class AppendsInPortions(LocalLog):
    def append(self, batch: OutputBatch) -> None:
        for at in range(0, len(batch), 20):
            part = slice(at, at + 20)
            super().append(OutputBatch(batch.topic, batch.keys[part], batch.values[part], batch.timestamps[part]))


class PositionsInTwoSteps(LocalLog):
    def set_positions(
        self, application_id: str, positions: Mapping[TopicPartition, int], to_end: Collection[TopicPartition] = ()
    ) -> None:
        self.delete_commits(application_id)
        super().set_positions(application_id, positions, to_end)


class _EpochOfItsProcess(_Committer):
    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        with self._storage.environment.read() as transaction:
            row = bytes(transaction.get("commits", self._key) or b"")
        if row.startswith(self._epoch):
            self._row = row
        super().commit(commit, outputs)


class EpochsEndWithTheProcess(_OnDisk):
    """They are counted from 1 in each process."""

    committer = _EpochOfItsProcess
    epochs = count(1)

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        made: Any = super().open_committer(application_id, task_id, partitions)
        made._epoch = number_row(next(self.epochs))
        made._row = made._epoch + made._row[8:]
        with made._storage.write("count") as (transaction, _):
            transaction.put("commits", made._key, made._row)
        return made  # type: ignore[no-any-return]


class _Leasing(MemoryLog):
    lease_class: type[_MemoryLease]

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Any:
        right = super().lease(application_id, owner, ttl_ms)
        right.__class__ = self.lease_class
        return right


class LeasesByName(_Leasing):
    class lease_class(_MemoryLease):
        def release(self) -> None:
            holder = self._log._leases.get(self._application_id)
            if holder is not None and holder.owner == self.owner:
                del self._log._leases[self._application_id]


class LeasesAddUp(_Leasing):
    class lease_class(_MemoryLease):
        def renew(self) -> None:
            expires_ms = self.expires_ms
            super().renew()
            self.expires_ms = expires_ms + self._ttl_ms


class LeasesWriteLate(_Leasing):
    class lease_class(_MemoryLease):
        def put_meta(self, application_id: str, key: str, value: bytes) -> None:
            self._log.put_meta(application_id, key, value)


class LeasesEndWithTheProcess(LocalLog):
    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Any:
        return _LEASES.lease(application_id, owner, ttl_ms)


_LEASES = MemoryLog()


def suite_of(log: type[Log]) -> type[LogContract]:
    """Return a suite for a log of this module, which other processes can import by its name."""
    return SUITES[log.__name__]


SUITES: dict[str, type[LogContract]] = {}
for _name, _log in list(globals().items()):
    if isinstance(_log, type) and issubclass(_log, MemoryLog | LocalLog) and not _name.startswith("_"):
        _base = InMemory if issubclass(_log, MemoryLog) else OnDisk
        SUITES[_name] = type(f"Test{_name}", (_base,), {"log_class": _log, "__module__": __name__})
        globals()[f"Test{_name}"] = SUITES[_name]
        SUITES[_name].__test__ = False  # type: ignore[attr-defined]
