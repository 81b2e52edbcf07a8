"""A right store backend in a file, and some with a wrong line each, which `StoreBackendContract` has to find.

Other processes import this module.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock import StaleStoreError, StoreBackend, StoreError, StoreLockedError
from penstock.contrib.sqlite.backend import SqliteBackend
from penstock.store import Change, Changes
from penstock.stores.memory import MemoryBackend
from penstock.support.file_lock import lock_open_file

Tables = dict[str, dict[bytes, bytes]]


class FileBackend(StoreBackend):
    """Right: all stores of a task in one pickled file, which each write replaces."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        self._file, self._stores, self._read_only = directory / "state", frozenset(stores), read_only
        self._lock: int | None = None
        self._known: tuple[int, str | None, Tables] = (-1, None, {})
        self._held: int | None = None
        self._is_open = True
        self._born = self._lock_file()
        if not directory.is_dir():
            raise StoreError(f"{directory} is no directory")
        if read_only and not self._file.exists():
            raise StoreError(f"{directory}: nothing to read there yet")
        self.version()

    def version(self) -> str | None:
        return self._state()[0]

    def get(self, store: str, key: bytes) -> bytes | None:
        return self._rows(store).get(key)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._rows(store)
        for key in sorted(rows, reverse=reverse):
            if (start is None or start <= key) and (end is None or key < end):
                yield key, rows[key]

    def approximate_count(self, store: str) -> int:
        return len(self._rows(store))

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        if self._read_only:
            raise StoreError(f"{self._file} is open for reading")
        with self._locked():
            self._check(previous)
            self._save(version, self._applied(changes))

    def close(self) -> None:
        self._is_open = False
        self._forget()

    def destroy(self) -> None:
        self.close()
        if self._born != self._lock_file() and self._born is not None:
            return  # another process has rebuilt the directory
        for name in ("state", "state.new", "lock", "journal"):
            self._file.with_name(name).unlink(missing_ok=True)

    # ------------------------------------------------------------------ steps, which planted bugs change

    def _check(self, previous: str | None) -> None:
        if self._read_file()[1] != previous:
            raise StaleStoreError(f"{self._file} is at {self.version()}, not at {previous}")

    def _applied(self, changes: Changes) -> Tables:
        tables = dict(self._state()[1])
        for store, rows in changes.items():
            self._rows(store)
            tables[store] = self._with(dict(tables.get(store, {})), rows)
        return tables

    def _with(self, table: dict[bytes, bytes], rows: Sequence[Change]) -> dict[bytes, bytes]:
        for key, value in rows:
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        return table

    def _save(self, version: str, tables: Tables) -> None:
        aside = self._file.with_name("state.new")
        self._put(aside, (version, tables))
        os.replace(aside, self._file)

    def _put(self, file: Path, state: Any) -> None:
        try:
            file.write_bytes(pickle.dumps(state))
        except OSError as error:
            raise StoreError(f"{file}: {error}") from error

    def _read_file(self) -> tuple[int, str | None, Tables]:
        """Return the file's number, and what is in it. The file is held open: its number is not given to another."""
        try:
            if os.stat(self._file).st_ino != self._known[0]:
                file = os.open(self._file, os.O_RDONLY)
                self._forget()
                self._held = file
                self._known = (os.fstat(file).st_ino, *self._loaded(Path(f"/proc/self/fd/{file}").read_bytes()))
        except FileNotFoundError:
            self._forget()
        return self._known

    def _loaded(self, data: bytes) -> tuple[str | None, Tables]:
        try:
            found: tuple[str | None, Tables] = pickle.loads(data)
        except Exception as error:
            raise StoreError(f"{self._file} is damaged: delete it, and it is restored: {error}") from error
        return found

    def _state(self) -> tuple[str | None, Tables]:
        if not self._is_open:
            raise StoreError(f"{self._file} was closed")
        return self._read_file()[1:]

    def _rows(self, store: str) -> dict[bytes, bytes]:
        if store not in self._stores:
            raise StoreError(f"{self._file} was not opened with a store {store!r}")
        return self._state()[1].get(store, {})

    def _lock_file(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._file.with_name("lock"))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _forget(self) -> None:
        if self._held is not None:
            os.close(self._held)
        self._held, self._known = None, (-1, None, {})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._is_open:
            raise StoreError(f"{self._file} was closed")
        lock = os.open(self._file.with_name("lock"), os.O_RDWR | os.O_CREAT)
        self._born = self._born or self._lock_file()
        try:
            for _ in range(200):
                if lock_open_file(lock):
                    break
                time.sleep(0.005)
            else:
                raise StoreLockedError(f"{self._file} is locked")
            yield
        finally:
            os.close(lock)


# ---------------------------------------------------------------- kills


class ThousandRowsAtATime(FileBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        with self._locked():
            self._check(previous)
            for store, rows in changes.items():
                for at in range(1000, len(rows), 1000):
                    self._save(previous or "", self._applied({store: rows[:at]}))
            self._save(version, self._applied(changes))


class LargeWritesInPlace(FileBackend):
    def _save(self, version: str, tables: Tables) -> None:
        if sum(map(len, tables.values())) > 5000:
            self._put(self._file, (version, tables))
            self._forget()
        else:
            super()._save(version, tables)


class VersionInASecondFile(FileBackend):
    def version(self) -> str | None:
        super().version()
        file = self._file.with_name("journal")
        return file.read_text() if file.exists() else None

    def _check(self, previous: str | None) -> None:
        if self.version() != previous:
            raise StaleStoreError(f"{self._file} is at {self.version()}, not at {previous}")

    def _save(self, version: str, tables: Tables) -> None:
        super()._save(version, tables)
        self._file.with_name("journal.new").write_text(version)
        os.replace(self._file.with_name("journal.new"), self._file.with_name("journal"))


class DeletesInASecondStep(FileBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        puts = {store: [row for row in rows if row[1] is not None] for store, rows in changes.items()}
        with self._locked():
            self._check(previous)
            self._save(version, self._applied(puts))
            self._save(version, self._applied(changes))


class FirstWriteInTwoSteps(FileBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        if previous is None:
            super().write({}, None, version)
        super().write(changes, previous or version, version)


class KeepsItsLock(FileBackend):
    """Its lock is that a file exists."""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._is_open:
            raise StoreError(f"{self._file} was closed")
        lock = self._file.with_name("lock")
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
        except FileExistsError as error:
            raise StoreLockedError(f"{lock} exists") from error
        try:
            yield
        finally:
            lock.unlink()


class MakesItsFileAnew(FileBackend):
    """A file that a killed process has left is in the way."""

    def _put(self, file: Path, state: Any) -> None:
        with open(file, "xb") as made:
            made.write(pickle.dumps(state))


class AppendingBackend(FileBackend):
    """Right: each write appends its state to the file; the last one that is whole counts."""

    def _save(self, version: str, tables: Tables) -> None:
        with open(self._file, "ab", buffering=0) as file:
            file.truncate(self._whole()[0])
            body = pickle.dumps((version, tables))
            file.write(len(body).to_bytes(8, "big"))
            file.write(body)

    def _whole(self) -> tuple[int, Any]:
        """Return where the last whole state ends, and that state."""
        data = self._file.read_bytes() if self._file.exists() else b""
        end = 0
        state: tuple[str | None, Tables] = (None, {})
        while end + 8 <= len(data):
            following = end + 8 + int.from_bytes(data[end : end + 8], "big")
            if following > len(data):
                break
            end, state = following, pickle.loads(data[end + 8 : following])
        return end, state

    def _read_file(self) -> tuple[int, str | None, Tables]:
        return (0, *self._whole()[1])


class AppendsBehindWhatWasTorn(AppendingBackend):
    def _save(self, version: str, tables: Tables) -> None:
        with open(self._file, "ab", buffering=0) as file:
            body = pickle.dumps((version, tables))
            file.write(len(body).to_bytes(8, "big"))
            file.write(body)


class MarksWhatItOpened(FileBackend):
    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        super().__init__(directory, stores, read_only=read_only)
        mark = directory / "journal"
        if not read_only and not mark.exists():
            mark.touch()
            mark.write_text("format 1")
        if mark.exists() and mark.read_text() != "format 1":
            raise StoreError(f"{mark} has an unknown format")


class RepairsInPlace(FileBackend):
    """After a kill it takes the file away and writes it again."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        super().__init__(directory, stores, read_only=read_only)
        aside = directory / "state.new"
        if not read_only and aside.exists():
            version, tables = self._state()
            self._file.unlink(missing_ok=True)
            if version is not None:
                self._save(version, tables)
            aside.unlink(missing_ok=True)


class EmptiesBeforeItIsDestroyed(FileBackend):
    def destroy(self) -> None:
        if (version := self.version()) is not None:
            self._save(version, {})
        super().destroy()


class CompactsWhenItIsClosed(FileBackend):
    def close(self) -> None:
        if self._is_open and not self._read_only and self.version() is not None:
            self._put(self._file, self._state())
        super().close()


class TrustsACleanCloseOnly(FileBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        self._file.with_name("journal").touch()
        super().write(changes, previous, version)

    def close(self) -> None:
        if self._is_open and not self._read_only:
            self._file.with_name("journal").unlink(missing_ok=True)
        super().close()

    def trusted(self) -> bool:
        return not self._file.with_name("journal").exists()


class NotesItsVersionBeside(FileBackend):
    """In a file of its own, whose damage goes unnoticed."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        super().write(changes, previous, version)
        self._file.with_name("version").write_text(version)

    def version(self) -> str | None:
        if not self._is_open:
            return super().version()
        try:
            return self._file.with_name("version").read_text(errors="replace") or None
        except FileNotFoundError:
            return None

    def destroy(self) -> None:
        self._file.with_name("version").unlink(missing_ok=True)
        super().destroy()


# ---------------------------------------------------------------- zombies


class RemembersItsVersion(FileBackend):
    """Compares with the version that it has read or written last."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        super().__init__(directory, stores, read_only=read_only)
        self._mine = self.version()

    def _check(self, previous: str | None) -> None:
        if self._mine != previous:
            raise StaleStoreError(f"{self._file} is at {self._mine}, not at {previous}")

    def _save(self, version: str, tables: Tables) -> None:
        super()._save(version, tables)
        self._mine = version


class RemembersItsVersionInMemory(MemoryBackend):
    """Two objects of one process do not see each other's writes."""

    mine: str | None = None

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        now = self.version()
        if self.mine is not None and previous == self.mine:
            previous = now
        super().write(changes, previous, version)
        self.mine = version


class ChecksBeforeItLocks(FileBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        self._check(previous)
        with self._locked():
            self._save(version, self._applied(changes))


class NeverLocks(FileBackend):
    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._is_open:
            raise StoreError(f"{self._file} was closed")
        yield


class LocksEachStep(FileBackend):
    """Releases the lock between what it reads and what it writes."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        with self._locked():
            self._check(previous)
            tables = self._applied(changes)
        with self._locked():
            self._save(version, tables)


class WaitsForEver(FileBackend):
    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._is_open:
            raise StoreError(f"{self._file} was closed")
        lock = os.open(self._file.with_name("lock"), os.O_RDWR | os.O_CREAT)
        try:
            lock_open_file(lock, wait=True)
            yield
        finally:
            os.close(lock)


class RefusesWithAnotherError(FileBackend):
    """Where another process has written."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        before = self._known[0]
        if self._read_file()[0] != before:
            raise StoreError(f"{self._file} was changed")
        super().write(changes, previous, version)


class WritesWhatWasRebuilt(SqliteBackend):
    """Does not look whether its file is still the one in the directory."""

    def _is_here(self) -> bool:
        return True


class NeverRefusesTheSameVersion(FileBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        super().write(changes, self.version() if previous == version else previous, version)


class LockedAfterARefusal(FileBackend):
    refused = False

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        if self.refused:
            raise StoreError("a transaction is open")
        self.refused = True
        super().write(changes, previous, version)
        self.refused = False


# ---------------------------------------------------------------- versions


class CutsVersions(FileBackend):
    def _save(self, version: str, tables: Tables) -> None:
        super()._save(version[:64], tables)


class NumbersForVersions(FileBackend):
    def _save(self, version: str, tables: Tables) -> None:
        super()._save(str(int(version)) if version.isdigit() else version, tables)


class ComparesCounters(FileBackend):
    def _check(self, previous: str | None) -> None:
        version = self.version()
        if str(version).partition("-")[0] != str(previous).partition("-")[0]:
            raise StaleStoreError(f"{self._file} is at {version}, not at {previous}")


class IgnoresTheCaseOfVersions(FileBackend):
    def _check(self, previous: str | None) -> None:
        version = self.version()
        if str(version).lower() != str(previous).lower():
            raise StaleStoreError(f"{self._file} is at {version}, not at {previous}")


# ---------------------------------------------------------------- scans


class LooksUpWhatItYields(FileBackend):
    def range(self, store: str, *args: Any, **options: Any) -> Any:
        for key in [key for key, _ in super().range(store, *args, **options)]:
            yield key, self._rows(store)[key]


class PagesByPosition(FileBackend):
    def range(self, store: str, *args: Any, **options: Any) -> Any:
        at = 0
        while page := list(super().range(store, *args, **options))[at : at + 100]:
            yield from page
            at += len(page)


class LooksForTheLastKeyOfAPage(FileBackend):
    def range(self, store: str, *args: Any, **options: Any) -> Any:
        at = 0
        while page := list(super().range(store, *args, **options))[at : at + 100]:
            yield from page
            following = [key for key, _ in super().range(store, *args, **options)]
            at = following.index(page[-1][0]) + 1


class ForgetsABoundAfterAPage(FileBackend):
    def range(self, store: str, start: Any = None, end: Any = None, *, reverse: bool = False) -> Any:
        page = list(super().range(store, start, end, reverse=reverse))[:256]
        yield from page
        if len(page) == 256:
            if reverse:
                yield from super().range(store, None, page[-1][0], reverse=True)
            else:
                yield from super().range(store, page[-1][0] + b"\0", end)


class OneCursorForAll(MemoryBackend):
    def range(self, *args: Any, **options: Any) -> Any:
        self.cursor = super().range(*args, **options)
        for _ in super().range(*args, **options):
            if (entry := next(self.cursor, None)) is not None:
                yield entry


# ---------------------------------------------------------------- counts and views


class CountsPutsAndDeletions(MemoryBackend):
    """A key that is put twice is two, until somebody deletes it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.counts = {store: super(CountsPutsAndDeletions, self).approximate_count(store) for store in args[1]}

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        super().write(changes, previous, version)
        for store, rows in changes.items():
            self.counts[store] += sum(1 if value is not None else -1 for _, value in rows)

    def approximate_count(self, store: str) -> int:
        return (min(super().approximate_count(store), 1) and max(1, self.counts[store])) or max(0, self.counts[store])


class CountsWithoutDeletions(FileBackend):
    """Until it is opened again."""

    def approximate_count(self, store: str) -> int:
        self._most = max(getattr(self, "_most", 0), super().approximate_count(store))
        return self._most if self._most >= 1000 else super().approximate_count(store)


class _Viewed(MemoryBackend):
    def view(self, stores: Sequence[str]) -> Any:
        return self._changed(super().view(stores))

    def _changed(self, view: Any) -> Any:
        return view


class ViewsInTheOrderOfWrites(_Viewed):
    def _changed(self, view: Any) -> Any:
        view.range = lambda store, *bounds, **order: iter(list(view._stores[store].items()))
        return view


class ViewsWithoutEmptyValues(_Viewed):
    def _changed(self, view: Any) -> Any:
        view.range = lambda store, *bounds, **order: iter(
            [row for row in sorted(view._stores[store].items()) if row[1]]
        )
        return view


class ViewsThatGetWhatIsWrittenLater(_Viewed):
    def _changed(self, view: Any) -> Any:
        view.get = self.get
        return view


class ViewsWithTheEndOfARange(_Viewed):
    def _changed(self, view: Any) -> Any:
        scan = view.range
        view.range = lambda store, start=None, end=None, reverse=False: scan(
            store, start, None if end is None else end + b"\x00", reverse=reverse
        )
        return view


class ViewsThatAreReadOnce(_Viewed):
    def _changed(self, view: Any) -> Any:
        rows = {store: iter(sorted(table.items())) for store, table in view._stores.items()}
        view.range = rows.__getitem__
        return view


class ViewsAtALaterVersion(_Viewed):
    def _changed(self, view: Any) -> Any:
        backend = self

        class Late(type(view)):  # type: ignore[misc]
            version = property(lambda self: backend.version(), lambda self, value: None)

        view.__class__ = Late
        return view


class ViewsThatKeepADescriptor(_Viewed):
    def _changed(self, view: Any) -> Any:
        OPENED.append(os.open(os.devnull, os.O_RDONLY))
        return view


class RefusalsThatKeepADescriptor(MemoryBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        try:
            super().write(changes, previous, version)
        except StoreError:
            OPENED.append(os.open(os.devnull, os.O_RDONLY))
            raise


OPENED: list[int] = []
"""Descriptors that are left open."""


# ---------------------------------------------------------------- full disks and readers


class IgnoresAFullDisk(FileBackend):
    def _save(self, version: str, tables: Tables) -> None:
        try:
            super()._save(version, tables)
        except StoreError:
            pass


class RaisesWhatTheSystemRaises(FileBackend):
    def _put(self, file: Path, state: Any) -> None:
        file.write_bytes(pickle.dumps(state))


class TearsItsFileOnAFullDisk(AppendingBackend):
    def _save(self, version: str, tables: Tables) -> None:
        self._file.with_name("journal").touch()
        try:
            super()._save(version, {**tables, "first": dict(list(tables.get("first", {}).items()))})
        except OSError as error:
            self._file.write_bytes(b"")
            raise StoreError(f"{self._file}: {error}") from error


class ReadersMakeTheFile(FileBackend):
    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        if read_only and not (directory / "state").exists():
            (directory / "state").write_bytes(pickle.dumps(("", {})))
        super().__init__(directory, stores, read_only=read_only)


class ReadersWithoutAFile(FileBackend):
    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        if read_only:
            (directory / "state").stat()
        super().__init__(directory, stores, read_only=read_only)


class ReadersKnowAllStores(FileBackend):
    def _rows(self, store: str) -> dict[bytes, bytes]:
        super()._rows(store)
        return self._state()[1][store] if self._read_only else super()._rows(store)


class ReadersOfNothingStayThere(FileBackend):
    """What was not there when it was opened is never there."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        self._nothing = read_only and not (directory / "state").exists()
        super().__init__(directory, stores, read_only=False)
        self._read_only = read_only

    def _state(self) -> tuple[str | None, Tables]:
        return (None, {}) if self._nothing else super()._state()


# ---------------------------------------------------------------- rows


class LosesTheLastOfAThousand(MemoryBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        whole = {store: rows[:-1] if rows and len(rows) % 1000 == 0 else rows for store, rows in changes.items()}
        super().write(whole, previous, version)


class DeletesSomeThousandsAtMost(MemoryBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        for store, rows in changes.items():
            if sum(value is None for _, value in rows) > 4000:
                raise StoreError(f"too many variables for {store}")
        super().write(changes, previous, version)


class LengthsInTwoBytes(MemoryBackend):
    def get(self, store: str, key: bytes) -> bytes | None:
        value = super().get(store, key)
        return value and value[:65_535]


class AMarkForWhatIsDeleted(MemoryBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        marked = {
            store: [(key, None if value == b"\0\0\0" else value) for key, value in rows]
            for store, rows in changes.items()
        }
        super().write(marked, previous, version)


class TakesTheChanges(MemoryBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        super().write(changes, previous, version)
        for rows in changes.values():
            if isinstance(rows, list):
                rows.clear()


class OneStateForAName(MemoryBackend):
    """Looks at the last part of a directory's path."""

    def __init__(self, directory: Path, stores: Sequence[str], **options: Any) -> None:
        super().__init__(directory.parent.parent / directory.name, stores, **options)


class NeverForgetsWhatItGot(MemoryBackend):
    """Keeps gets until the key is put again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.got: dict[tuple[str, bytes], bytes | None] = {}

    def get(self, store: str, key: bytes) -> bytes | None:
        super().get(store, key)
        return self.got.setdefault((store, key), super().get(store, key))

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        super().write(changes, previous, version)
        for store, rows in changes.items():
            for key, value in rows:
                if value is not None:
                    self.got.pop((store, key), None)


class DropsStoresThatAreLeftOut(FileBackend):
    def _save(self, version: str, tables: Tables) -> None:
        super()._save(version, {store: rows for store, rows in tables.items() if store in self._stores})
