"""A right changelog in one file, and changelogs with one wrong line each, which `ChangelogContract` has to find.

Other processes import this module.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

from penstock import ChangelogError, Commit, OutputBatch, Restore, TopicPartition, version_counter
from penstock.plugins.changelogs.chain import route_to
from penstock.plugins.changelogs.memory import MemoryChangelog, _histories, _History
from penstock.plugins.changelogs.topic import TopicChangelog
from penstock.store import Changes

_HEADER = 12


class FileChangelog(MemoryChangelog):
    """Right: one file of records with checksums, each a change of a history in memory."""

    def __init__(self, location: str, application_id: str, task_id: str) -> None:
        super().__init__(location, application_id, task_id)
        self._history = _History()
        self._file = Path(location) / application_id / task_id
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._end = 0
        self._generation = b""
        self._lock = threading.RLock()

    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        self._record("append", {store: list(rows) for store, rows in changes.items()}, previous, version, commit)

    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        self._record("snapshot", version, list(changes), commit)

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        self._read()
        history = self._history
        before = set(history.deltas), set(history.snapshots)
        super().clean(version, grace_ms, now_ms, is_current)
        deltas, snapshots = before[0] - set(history.deltas), before[1] - set(history.snapshots)
        if deltas or snapshots:
            self._record("delete", deltas, snapshots)

    def destroy(self) -> None:
        with self._lock, self._locked() as file:
            os.ftruncate(file, 0)
            self._end = 0
        self._record("destroy", os.urandom(8))

    def restore(self, target: str, have: str | None) -> Restore:
        self._read()
        return super().restore(target, have)

    def proven(self) -> set[str]:
        self._read()
        return super().proven()

    def beginnings(self) -> set[str]:
        self._read()
        return super().beginnings()

    def kept(self, version: str) -> Commit | None:
        self._read()
        return super().kept(version)

    # ------------------------------------------------------------------ steps, which planted bugs change

    def _record(self, method: str, *arguments: Any) -> None:
        body = pickle.dumps((method, arguments))
        with self._lock, self._locked() as file:
            self._read()
            if os.fstat(file).st_size < self._end:
                raise ChangelogError(f"{self._file}: damaged: it is shorter than it was")
            try:
                os.ftruncate(file, self._end)
                self._write(file, body)
                self._sync(file)
                self._sync_names()
            except OSError as error:
                raise ChangelogError(f"{self._file}: {error}") from error
            self._read()

    def _write(self, file: int, body: bytes) -> None:
        for part in (len(body).to_bytes(8, "big") + crc32(body, 1).to_bytes(4, "big"), body):
            view = memoryview(part)
            while view:
                view = view[os.write(file, view) :]

    def _sync(self, file: int) -> None:
        os.fsync(file)

    def _sync_names(self) -> None:
        for folder in self._file.parents[:3]:
            handle = os.open(folder, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)

    def _read(self) -> None:
        """Read what was recorded since the last time."""
        with self._lock, suppress(FileNotFoundError), open(self._file, "rb") as file:
            if (generation := file.read(_HEADER)) != self._generation:
                self._history, self._end, self._generation = _History(), 0, generation
            file.seek(self._end)
            while len(header := file.read(_HEADER)) == _HEADER:
                size = int.from_bytes(header[:8], "big")
                if size > os.fstat(file.fileno()).st_size:
                    return
                body = file.read(size)
                if len(body) < size:
                    return  # of a process that was killed
                self._check(body, header[8:])
                method, arguments = pickle.loads(body)
                self._end = file.tell()
                self._apply(method, arguments)

    def _check(self, body: bytes, checksum: bytes) -> None:
        if crc32(body, 1) != int.from_bytes(checksum, "big"):
            raise ChangelogError(f"{self._file}: damaged at byte {self._end}")

    def _apply(self, method: str, arguments: Any) -> None:
        if method == "destroy":
            self._history.clear()
            return
        if method != "delete":
            getattr(MemoryChangelog, method)(self, *arguments)
            return
        deltas, snapshots = arguments
        for version in deltas:
            self._history.deltas.pop(version, None)
            self._history.changes.pop(version, None)
        for version in snapshots:
            self._history.snapshots.pop(version, None)
        for kind, versions in zip(("delta", "snapshot"), arguments, strict=True):
            for version in versions:
                self._history.commits.pop((kind, version), None)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)


# ---------------------------------------------------------------- kills, disks and damage


class AppendsBehindWhatWasTorn(FileChangelog):
    def _record(self, method: str, *arguments: Any) -> None:
        with self._lock, self._locked() as file:
            self._write(file, pickle.dumps((method, arguments)))
            self._sync(file)
            self._read()


class ChecksNothing(FileChangelog):
    def _check(self, body: bytes, checksum: bytes) -> None:
        pass


class NeverSyncs(FileChangelog):
    def _sync(self, file: int) -> None:
        pass


class SyncsSnapshotsOnly(FileChangelog):
    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        self._sync = lambda file: None  # type: ignore[method-assign]
        super().append(changes, previous, version, commit)
        del self._sync


class WritesWithTheNext(FileChangelog):
    """A delta is in the file once the next one is, or this is closed."""

    waiting: tuple[Any, ...] | None = None

    def append(self, *given: Any) -> None:
        self._flush()
        self.waiting = given

    def _flush(self) -> None:
        if self.waiting is not None:
            given, self.waiting = self.waiting, None
            super().append(*given)

    def _read(self) -> None:
        if self.waiting is not None:
            self._flush()
        super()._read()

    def close(self) -> None:
        self._flush()


class ForgetsDeltasBeforeItsSnapshot(FileChangelog):
    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        rows = list(changes)
        self._read()
        old = {each for each in self._history.deltas if version_counter(each) <= version_counter(version)}
        self._record("delete", old, set())
        super().snapshot(version, iter(rows), commit)


class CleansInPlace(FileChangelog):
    """Writes what is needed anew, over what was there."""

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        super().clean(version, grace_ms, now_ms, is_current)
        with self._lock, self._locked() as file:
            data = self._file.read_bytes()
            os.ftruncate(file, 0)
            os.write(file, data)


class TearsItsFileOnAFullDisk(FileChangelog):
    """Keeps what was written of a delta for which there was no room, and goes on behind it."""

    torn = False

    def _record(self, method: str, *arguments: Any) -> None:
        if not self.torn:
            try:
                super()._record(method, *arguments)
            except ChangelogError:
                self.torn = True
                with self._locked() as file:
                    os.write(file, b"torn")
                raise
        else:
            with self._lock, self._locked() as file:
                self._write(file, pickle.dumps((method, arguments)))


class IgnoresAFullDisk(FileChangelog):
    def append(self, *given: Any) -> None:
        with suppress(ChangelogError):
            super().append(*given)


class RaisesWhatTheSystemRaises(FileChangelog):
    def append(self, *given: Any) -> None:
        try:
            super().append(*given)
        except ChangelogError as error:
            raise error.__cause__ or error from None


class BeginsWithoutAFile(FileChangelog):
    """A chain whose beginning is lost begins where it can."""

    def restore(self, target: str, have: str | None) -> Restore:
        try:
            return super().restore(target, have)
        except ChangelogError:
            route = route_to(target, self._history.deltas.get, [])
            if not route.deltas:
                raise
            return Restore(None, self._steps(route.deltas))


# ---------------------------------------------------------------- content


class KeepsTheCallersRows(MemoryChangelog):
    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        super().append(changes, previous, version, commit)
        self._history.changes[version] = changes  # type: ignore[assignment]


class EmptyValuesAreDeletions(MemoryChangelog):
    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        kept = {store: [(key, value or None) for key, value in rows] for store, rows in changes.items()}
        super().append(kept, previous, version, commit)


class IgnoresTheCaseOfStores(MemoryChangelog):
    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        super().append({store.lower(): rows for store, rows in changes.items()}, previous, version, commit)


class SomeThousandRowsAtMost(MemoryChangelog):
    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        super().append({store: rows[:8192] for store, rows in changes.items()}, previous, version, commit)


class _Keeping(MemoryChangelog):
    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        super().append(changes, previous, version, None if commit is None else self._changed(commit))

    def _changed(self, commit: Commit) -> Commit:
        return commit


class CutsEngineStates(_Keeping):
    def _changed(self, commit: Commit) -> Commit:
        return replace(commit, engine_state=commit.engine_state[:65_535])


class PositionsInFourBytes(_Keeping):
    def _changed(self, commit: Commit) -> Commit:
        return replace(commit, positions={each: at & 0xFFFFFFFF for each, at in commit.positions.items()})


class SplitsNamesOfPartitions(_Keeping):
    def _changed(self, commit: Commit) -> Commit:
        names = {f"{each.topic}-{each.partition}": at for each, at in commit.positions.items()}
        positions = {TopicPartition(name.split("-")[0], int(name.split("-")[-1])): at for name, at in names.items()}
        return replace(commit, positions=positions)


class ComparesPositionsAsText(MemoryChangelog):
    def kept(self, version: str) -> Commit | None:
        commits = [each for each in self._history.commits.values() if each is not None and each.version == version]
        return max(commits, key=lambda each: str(sum(each.positions.values())), default=None)


class ComparesTheHighestPosition(MemoryChangelog):
    def kept(self, version: str) -> Commit | None:
        commits = [each for each in self._history.commits.values() if each is not None and each.version == version]
        return max(commits, key=lambda each: max(each.positions.values()), default=None)


class KeepsTheCommitBeforeTheSnapshot(MemoryChangelog):
    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        super().snapshot(version, changes, self.kept(version) or commit)


class KeepsTheFirstCommit(MemoryChangelog):
    def kept(self, version: str) -> Commit | None:
        return next((each for each in self._history.commits.values() if each and each.version == version), None)


class ProvesTheNewest(MemoryChangelog):
    def proven(self) -> set[str]:
        return super().proven() | set(self._history.deltas)


class ProvesWhatIsNotThere(MemoryChangelog):
    def proven(self) -> set[str]:
        return super().proven() | {each.previous for each in self._history.deltas.values() if each.previous}


class OneDeltaForEachCounter(MemoryChangelog):
    """What is appended later replaces what was appended with the same counter."""

    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        for each in [each for each in self._history.deltas if version_counter(each) == version_counter(version)]:
            del self._history.deltas[each]
        super().append(changes, previous, version, commit)


class TakesAnyLowerCopy(MemoryChangelog):
    def restore(self, target: str, have: str | None) -> Restore:
        plan = super().restore(target, have)
        if have is not None and plan.base is None and have[0].isdigit() and have < target:
            after = [each for each in self._history.deltas.values() if have < each.version <= target]
            return Restore(have, self._steps(after))
        return plan


class CleansWithoutGrace(MemoryChangelog):
    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        for _ in range(2):
            super().clean(version, -1, now_ms, is_current)


class DestroysByPrefix(MemoryChangelog):
    def __init__(self, location: str, application_id: str, task_id: str) -> None:
        super().__init__(location, application_id, task_id)
        self.place = location, application_id

    def destroy(self) -> None:
        for (location, application_id, _), history in _histories.items():
            if location == self.place[0] and application_id.startswith(self.place[1]):
                history.clear()


class KeepsADescriptor(MemoryChangelog):
    def __init__(self, location: str, application_id: str, task_id: str) -> None:
        super().__init__(location, application_id, task_id)
        OPENED.append(os.open(os.devnull, os.O_RDONLY))


OPENED: list[int] = []


# ---------------------------------------------------------------- cleaning beside a successor


class DeletesWhateverItDoesNotNeed(MemoryChangelog):
    """A snapshot that is written late counts as the newest file."""

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        history = self._history
        route = route_to(version, history.deltas.get, history.snapshots)
        if route.missing is None and is_current():
            for each in set(history.deltas) - {delta.version for delta in route.deltas}:
                del history.deltas[each], history.changes[each]
            for each in set(history.snapshots) - {route.start}:
                del history.snapshots[each]


class NeverAsks(MemoryChangelog):
    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        super().clean(version, grace_ms, now_ms, lambda: True)


# ---------------------------------------------------------------- in topics of the log


class _Recording(TopicChangelog):
    def records(self, changes: Changes) -> list[OutputBatch]:
        batches = super().records(changes)
        for each in batches:
            self._change(each)
        return batches

    def _change(self, batch: OutputBatch) -> None:
        """Change what goes to the log."""


class TombstonesAreEmpty(_Recording):
    def _change(self, batch: OutputBatch) -> None:
        batch.values = [each or b"" for each in batch.values]


class GoesWhereKeysGo(_Recording):
    def _change(self, batch: OutputBatch) -> None:
        batch.partitions = None


class SomeThousandRecordsAtMost(_Recording):
    def _change(self, batch: OutputBatch) -> None:
        for column in ("keys", "values", "timestamps", "partitions"):
            setattr(batch, column, (getattr(batch, column) or [])[:4096] or None)


class LargeValuesAreCut(_Recording):
    def _change(self, batch: OutputBatch) -> None:
        batch.values = [each and each[:100_000] for each in batch.values]


class CatchesUpWhateverWasSeen(TopicChangelog):
    """A copy of an earlier history, too."""

    def _can_catch_up(self, have: str, wanted: Any) -> bool:
        return (self.last_seen is not None and self.last_seen(have) == 0) or super()._can_catch_up(have, wanted)
