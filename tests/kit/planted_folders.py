"""A right changelog with a file for each delta and snapshot, and copies of it with one wrong line each.

Most of these lines are wrong only beside other processes, after a crash of the machine, or after a long run. Other
processes import this module.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO
from zlib import crc32

from penstock import ChangelogError, Commit, DeltaChangelog, Restore, version_counter
from penstock.changelog import RESTORING
from penstock.plugins.changelogs.chain import Delta, latest_of, route_to
from penstock.store import Changes

_FLOOR, _CHUNK = 64 * 1024, 1 << 20
_DELTA, _SNAPSHOT, _ASIDE = ".delta", ".snapshot", ".aside"


class FolderChangelog(DeltaChangelog):
    """Right: files are written aside, synced and renamed; each part of a file has a checksum."""

    def __init__(self, location: str, application_id: str, task_id: str) -> None:
        self._folder = Path(location).absolute() / application_id / task_id
        self._last: str | None = None

    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        rows = {store: list(each) for store, each in changes.items() if each}
        self._write(f"{version}{_DELTA}", iter([(previous, commit, rows)]))
        self._last = version

    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        self._write(f"{version}{_SNAPSHOT}", chain([(None, commit, {})], self._chunks(changes), [None]))
        self._last = max(self._last or version, version, key=version_counter)

    def restore(self, target: str, have: str | None) -> Restore:
        self._last = target
        if have == target:
            return Restore(have, iter(()))
        deltas, snapshots = self._deltas(), self._versions(_SNAPSHOT)
        if have is not None:
            route = route_to(target, deltas.get, [have])
            if route.start == have:
                return Restore(have, self._steps(route.deltas))
        route = route_to(target, deltas.get, snapshots)
        if route.missing is not None:
            raise ChangelogError(f"{self._folder}: no way to version {target}: missing: the delta {route.missing}")
        steps = self._steps(route.deltas)
        return Restore(None, steps if route.start is None else chain(self._snapshot_steps(route.start), steps))

    def proven(self) -> set[str]:
        deltas = self._deltas()
        return ({each.previous or "" for each in deltas.values()} & deltas.keys()) | set(self._versions(_SNAPSHOT))

    def beginnings(self) -> set[str]:
        return {each.version for each in self._deltas().values() if each.previous is None}

    def kept(self, version: str) -> Commit | None:
        heads = [next(self._parts(file.name))[1] for file in self._files() if file.suffix != _ASIDE]
        return latest_of((each for each in heads if each is not None), version)

    def wants_snapshot(self) -> bool:
        if self._last is None:
            return False
        route = route_to(self._last, self._deltas().get, self._versions(_SNAPSHOT))
        size = 0 if route.start is None else (self._folder / f"{route.start}{_SNAPSHOT}").stat().st_size
        return route.missing is not None or sum(each.size for each in route.deltas) > max(_FLOOR, size)

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        route = route_to(version, self._deltas().get, self._versions(_SNAPSHOT))
        if route.missing is not None:
            return
        needed = {f"{each.version}{_DELTA}" for each in route.deltas} | {f"{route.start}{_SNAPSHOT}"}
        needless = [
            file
            for file in self._files()
            if file.name not in needed
            and file.stat().st_mtime_ns // 1_000_000 < now_ms - grace_ms
            and (file.suffix == _ASIDE or version_counter(file.stem) < version_counter(version))
        ]
        if is_current():
            for file in needless:
                file.unlink(missing_ok=True)

    def destroy(self) -> None:
        try:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._folder)
        except OSError as error:
            raise ChangelogError(f"{self._folder}: {error}") from error
        self._last = None

    def close(self) -> None:
        pass

    # ------------------------------------------------------------------ steps, which planted bugs change

    def _files(self) -> list[Path]:
        with suppress(FileNotFoundError):
            return [each for each in self._folder.iterdir() if each.suffix in (_DELTA, _SNAPSHOT, _ASIDE)]
        return []

    def _versions(self, suffix: str) -> list[str]:
        return [each.stem for each in self._files() if each.suffix == suffix]

    def _deltas(self) -> dict[str, Delta]:
        found = {}
        for version in self._versions(_DELTA):
            with suppress(FileNotFoundError):
                size = (self._folder / f"{version}{_DELTA}").stat().st_size
                found[version] = Delta(version, next(self._parts(f"{version}{_DELTA}"))[0], size)
        return found

    def _aside(self, name: str) -> Path:
        return self._folder / f"{name}.{token_hex(4)}{_ASIDE}"

    def _write(self, name: str, parts: Iterator[Any]) -> None:
        aside = self._aside(name)
        try:
            self._make()
            with open(aside, "xb") as file:
                for part in parts:
                    file.write(self._framed(part))
                file.flush()
                self._publish(file, self._folder / name)
            self._sync_folder(self._folder)
        except OSError as error:
            self._give_up(aside)
            raise ChangelogError(f"{self._folder / name}: {error}") from error
        except BaseException:
            self._give_up(aside)
            raise

    def _make(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for above in self._folder.parents[:3]:
            self._sync_folder(above)

    def _publish(self, file: BinaryIO, path: Path) -> None:
        self._sync(file)
        os.replace(file.name, path)

    def _sync(self, file: BinaryIO) -> None:
        os.fsync(file.fileno())

    def _sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    def _give_up(self, aside: Path) -> None:
        aside.unlink(missing_ok=True)

    def _framed(self, part: Any) -> bytes:
        body = pickle.dumps(part)
        return len(body).to_bytes(8, "big") + crc32(body, 1).to_bytes(4, "big") + body

    def _parts(self, name: str) -> Iterator[Any]:
        path = self._folder / name
        with open(path, "rb") as file:
            while len(header := file.read(12)) == 12:
                size = int.from_bytes(header[:8], "big")
                body = file.read(min(size, 1 << 40)) if size <= path.stat().st_size else b""
                if len(body) < size or crc32(body, 1) != int.from_bytes(header[8:], "big"):
                    raise self._damaged(name)
                yield pickle.loads(body)
            if header or not file.tell():
                raise self._damaged(name)

    def _damaged(self, name: str) -> ChangelogError:
        return ChangelogError(f"{self._folder / name}: damaged")

    def _chunks(self, changes: Iterable[tuple[str, bytes, bytes]]) -> Iterator[Any]:
        chunk: dict[str, list[tuple[bytes, bytes]]] = {}
        size = 0
        for store, key, value in changes:
            chunk.setdefault(store, []).append((key, value))
            size += len(key) + len(value)
            if size > _CHUNK:
                yield chunk
                chunk, size = {}, 0
        yield chunk

    def _steps(self, deltas: Iterable[Delta]) -> Iterator[tuple[Changes, str]]:
        for each in deltas:
            try:
                *_, (_, _, rows) = self._parts(f"{each.version}{_DELTA}")
            except FileNotFoundError as error:
                raise ChangelogError(f"{self._folder}: {each.version} was deleted") from error
            yield rows, each.version

    def _snapshot_steps(self, version: str) -> Iterator[tuple[Changes, str]]:
        parts = self._parts(f"{version}{_SNAPSHOT}")
        waiting = None
        is_whole = False
        for number, part in enumerate(parts):
            if number == 0:
                continue
            if waiting is not None:
                yield waiting, version if part is None else f"{RESTORING}{version}:{number}"
            waiting, is_whole = part, part is None
        if not is_whole:
            raise self._damaged(f"{version}{_SNAPSHOT}")


# ---------------------------------------------------------------- a crash of the machine


class RenamesBeforeItSyncs(FolderChangelog):
    def _publish(self, file: BinaryIO, path: Path) -> None:
        os.replace(file.name, path)
        self._sync(file)


class SyncsNoFolder(FolderChangelog):
    def _sync_folder(self, folder: Path) -> None:
        pass


class SyncsItsOwnFolderOnly(FolderChangelog):
    """The names above it are lost with the machine."""

    def _make(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)


class SyncsDeltasOnly(FolderChangelog):
    """What `clean` deletes was needed if the machine crashes: the snapshot is in memory alone."""

    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        self._sync = lambda file: None  # type: ignore[method-assign]
        super().snapshot(version, changes, commit)
        del self._sync


# ---------------------------------------------------------------- other processes


class ListsOnce(FolderChangelog):
    """What others write after the first look is not there."""

    known: list[Path] | None = None

    def _files(self) -> list[Path]:
        self.known = super()._files() if self.known is None else self.known
        return self.known

    def _write(self, name: str, parts: Iterator[Any]) -> None:
        super()._write(name, parts)
        self.known = None


class WeighsWhatItWrote(FolderChangelog):
    written = 0

    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        super().append(changes, previous, version, commit)
        self.written += sum(len(key) + len(value or b"") for rows in changes.values() for key, value in rows)

    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        super().snapshot(version, changes, commit)
        self.written = 0

    def wants_snapshot(self) -> bool:
        return super().wants_snapshot() and (self.written > 2 * _FLOOR or not self.written)


class OneReaderAtATime(FolderChangelog):
    """Two plans read one file by one handle."""

    handles: dict[str, Any] = {}

    def _snapshot_steps(self, version: str) -> Iterator[tuple[Changes, str]]:
        if version not in self.handles:
            self.handles[version] = super()._snapshot_steps(version)
        yield from self.handles[version]
        self.handles.pop(version, None)


class TripsOverOtherFiles(FolderChangelog):
    def _files(self) -> list[Path]:
        with suppress(FileNotFoundError):
            found = list(self._folder.iterdir())
            return [each for each in found if version_counter(each.name) >= 0]
        return []


# ---------------------------------------------------------------- what is left behind


class NeverCleansWhatOthersLeft(FolderChangelog):
    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        kept = [(each, each.read_bytes()) for each in self._files() if each.suffix == _ASIDE]
        super().clean(version, grace_ms, now_ms, is_current)
        for each, data in kept:
            each.write_bytes(data)


class WritesInTheTemporaryDirectory(FolderChangelog):
    def _aside(self, name: str) -> Path:
        return Path(tempfile.mkdtemp()) / name


class DestroysByMovingAway(FolderChangelog):
    def destroy(self) -> None:
        if self._folder.exists():
            self._folder.rename(self._folder.with_name(f".{self._folder.name}-{token_hex(4)}"))
        self._last = None


class DestroysDeltasAndSnapshots(FolderChangelog):
    """What a killed process left stays for ever."""

    def destroy(self) -> None:
        for each in self._files():
            if each.suffix != _ASIDE:
                each.unlink()
        self._last = None


class MeasuresAndLeaves(FolderChangelog):
    def least_commit_interval(self) -> float:
        (self._folder.parent / f"probe-{token_hex(4)}").write_bytes(b"probe")
        return 0.0


class OpensForEachFailure(FolderChangelog):
    def _give_up(self, aside: Path) -> None:
        super()._give_up(aside)
        OPENED.append(os.open(self._folder, os.O_RDONLY))


OPENED: list[int] = []


class HoldsItsSnapshot(FolderChangelog):
    def _chunks(self, changes: Iterable[tuple[str, bytes, bytes]]) -> Iterator[Any]:
        yield from super()._chunks(list(changes))


class ReadsTheWholeFile(FolderChangelog):
    def _parts(self, name: str) -> Iterator[Any]:
        yield from list(super()._parts(name))


# ---------------------------------------------------------------- damage, and ends of ranges


class NamesNothing(FolderChangelog):
    def _damaged(self, name: str) -> ChangelogError:
        return ChangelogError("a file is damaged")


class DestroysWhatItCanRead(FolderChangelog):
    def destroy(self) -> None:
        self._deltas()
        super().destroy()


class EndsAtAnEmptyRow(FolderChangelog):
    def _chunks(self, changes: Iterable[tuple[str, bytes, bytes]]) -> Iterator[Any]:
        yield from super()._chunks(row for row in changes if row[1:] != (b"", b""))


class CutsLongKeys(FolderChangelog):
    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        cut = {store: [(key[:65_535], value) for key, value in rows] for store, rows in changes.items()}
        super().append(cut, previous, version, commit)
