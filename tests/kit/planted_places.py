"""Store backends with a wrong line each that only other surroundings show: processes, files, ends of ranges, clocks.

Other processes import this module.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock import StoreError, StoreView
from penstock.store import Changes
from penstock.stores.memory import MemoryBackend
from penstock.support.file_lock import lock_open_file

from .planted_backends import FileBackend, Tables

# ---------------------------------------------------------------- another process at the same place


class DestroysWhatItOpened(FileBackend):
    """The stores of a program that names more stay."""

    def destroy(self) -> None:
        left = {store: rows for store, rows in self._state()[1].items() if store not in self._stores}
        if left:
            self._save("", left)
            self.close()
        else:
            super().destroy()


class ReadersOfTheFirstLook(FileBackend):
    """Of a store that was not there they find nothing later either."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        super().__init__(directory, stores, read_only=read_only)
        self._there = set(self._state()[1]) if read_only else set(stores)

    def _rows(self, store: str) -> dict[bytes, bytes]:
        return super()._rows(store) if store in self._there or store not in self._stores else {}


class ReadersByPosition(FileBackend):
    """The first store that they name is the first one that was written."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        super().__init__(directory, stores, read_only=read_only)
        self._order = list(stores)

    def _rows(self, store: str) -> dict[bytes, bytes]:
        if not self._read_only or store not in self._stores:
            return super()._rows(store)
        found = list(self._state()[1].values())
        place = self._order.index(store)
        return found[place] if place < len(found) else {}


class ReadersUntilTheNextVersion(FileBackend):
    """What was written at the same version is not seen."""

    def _state(self) -> tuple[str | None, Tables]:
        found = super()._state()
        seen: list[tuple[str | None, Tables]] = self.__dict__.setdefault("_seen", [])
        if self._read_only and seen and seen[0][0] == found[0]:
            return seen[0]
        seen[:] = [found]
        return found


class ReadersLockWhileTheyScan(FileBackend):
    def range(self, *args: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        rows = super().range(*args, **options)
        if not self._read_only:
            yield from rows
            return
        lock = os.open(self._file.with_name("lock"), os.O_RDWR | os.O_CREAT)
        try:
            lock_open_file(lock)
            yield from rows
        finally:
            os.close(lock)


class ReadersLookUpWhatTheyYield(FileBackend):
    def range(self, store: str, *args: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        for key in [key for key, _ in super().range(store, *args, **options)]:
            yield key, self._rows(store)[key]


class ReadersLeaveAFile(FileBackend):
    """That says who reads, until it is closed."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        super().__init__(directory, stores, read_only=read_only)
        if read_only:
            (directory / f"reader-{os.getpid()}").touch()

    def close(self) -> None:
        if self._read_only:
            self._file.with_name(f"reader-{os.getpid()}").unlink(missing_ok=True)
        super().close()


class OpensBehindALock(FileBackend):
    """For which it waits as long as it takes."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT)
        try:
            lock_open_file(lock, wait=True)
            super().__init__(directory, stores, read_only=read_only)
        finally:
            os.close(lock)


class AFileOfEachProcess(FileBackend):
    """A killed one's stays for ever."""

    def _save(self, version: str, tables: Tables) -> None:
        aside = self._file.with_name(f"state.{os.getpid()}")
        self._put(aside, (version, tables))
        os.replace(aside, self._file)


class WritesWhatWasRemoved(FileBackend):
    """It has read the file once, and knows its content."""

    def _read_file(self) -> tuple[int, str | None, Tables]:
        known = self._known
        found = super()._read_file()
        if found[0] == -1 and known[0] != -1:
            self._known = found = (-2, *known[1:])
        return found


class _FileView(StoreView):
    def __init__(self, version: str | None, tables: Tables) -> None:
        self.version, self._tables = version, tables

    def get(self, store: str, key: bytes) -> bytes | None:
        return self._tables.get(store, {}).get(key)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in sorted(self._tables.get(store, {}).items(), reverse=reverse):
            if (start is None or start <= key) and (end is None or key < end):
                yield key, value

    def close(self) -> None:
        pass


class WithViews(FileBackend):
    """Right: saved states are never changed in place."""

    def view(self, stores: Sequence[str]) -> _FileView | None:
        for store in stores:
            self._rows(store)
        return _FileView(*self._state())


class ViewsUntilItWritesItself(WithViews):
    """A view is taken where this object writes; another process's writes change it."""

    class _Live(_FileView):
        def __init__(self, backend: FileBackend) -> None:
            self._backend = backend

        version = property(lambda self: self._backend._state()[0])
        _tables = property(lambda self: self._backend._state()[1])

    def view(self, stores: Sequence[str]) -> _FileView | None:
        return self._Live(self) if self._read_only else super().view(stores)


# ---------------------------------------------------------------- what is left


class DestroyKeepsADescriptor(FileBackend):
    def destroy(self) -> None:
        OPENED.append(os.open(self._file.parent, os.O_RDONLY))
        super().destroy()


class ReadersOfNothingKeepADescriptor(FileBackend):
    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        if read_only:
            OPENED.append(os.open(directory, os.O_RDONLY))
        super().__init__(directory, stores, read_only=read_only)
        if read_only:
            os.close(OPENED.pop())


OPENED: list[int] = []


class SortsInATemporaryFile(FileBackend):
    def range(self, *args: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            pickle.dump(list(super().range(*args, **options)), file)
        yield from pickle.loads(Path(file.name).read_bytes())


class WritesInTheWorkingDirectory(FileBackend):
    def _save(self, version: str, tables: Tables) -> None:
        self._put(Path("state.new"), (version, tables))
        self._put(self._file.with_name("state.new"), (version, tables))
        os.replace(self._file.with_name("state.new"), self._file)


class LocksBesideItsDirectory(FileBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        self._file.parent.with_suffix(".lock").touch()
        super().write(changes, previous, version)


class KeepsAThread(MemoryBackend):
    """That would sync now and then."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        threading.Thread(target=lambda: STOP.wait(60), daemon=True).start()


STOP = threading.Event()


class NotesEachOpening(FileBackend):
    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        super().__init__(directory, stores, read_only=read_only)
        if not read_only:
            (directory / f"journal-{time.time_ns()}").touch()

    def destroy(self) -> None:
        super().destroy()
        for file in self._file.parent.glob("journal-*"):
            file.unlink()


class KeepsWhatIsNotThere(FileBackend):
    """Keys that were asked for, so that it need not look again until the next write."""

    def get(self, store: str, key: bytes) -> bytes | None:
        absent = self.__dict__.setdefault("_absent", {})
        found = super().get(store, key)
        if found is None:
            absent[store, key] = None
        return found


class KeepsEachState(MemoryBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        super().write(changes, previous, version)
        self.__dict__.setdefault("_states", []).append({store: list(self.range(store)) for store in changes})


# ---------------------------------------------------------------- ends of ranges


class CutsLongKeys(MemoryBackend):
    """At 32 KiB."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        cut = {store: [(key[:32_768], value) for key, value in rows] for store, rows in changes.items()}
        super().write(cut, previous, version)

    def get(self, store: str, key: bytes) -> bytes | None:
        return super().get(store, key[:32_768])


class LengthsInThreeBytes(MemoryBackend):
    def get(self, store: str, key: bytes) -> bytes | None:
        value = super().get(store, key)
        return value and value[: (1 << 24) - 1]


class FewerThan32768Rows(MemoryBackend):
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        super().write({store: rows[:32_767] for store, rows in changes.items()}, previous, version)


class NumbersForKeysOfEightBytes(FileBackend):
    """With a sign."""

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = list(super().range(store, start, end))
        if rows and all(len(key) == 8 for key, _ in rows):
            rows.sort(key=lambda row: int.from_bytes(row[0], "big", signed=True))
        yield from rows[::-1] if reverse else rows


class TextForKeys(FileBackend):
    """The order of text is that of its UTF-8; bytes that are none are somewhere."""

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = sorted(super().range(store, start, end), key=lambda row: row[0].decode("utf-8", "surrogateescape"))
        yield from rows[::-1] if reverse else rows


# ---------------------------------------------------------------- clocks and damage


class TheNewestByTheClock(FileBackend):
    """Each state in a file of its own, whose name has the time; a clock may be set back."""

    def _save(self, version: str, tables: Tables) -> None:
        at = self._file.with_name(f"state-{time.time_ns():020d}")
        self._put(self._file.with_name("state.new"), (version, tables))
        os.replace(self._file.with_name("state.new"), at)
        newest = max(self._file.parent.glob("state-*"))
        with suppress(FileNotFoundError):
            self._file.unlink()
        os.link(newest, self._file)
        for file in self._file.parent.glob("state-*"):
            if file != newest:
                file.unlink()

    def destroy(self) -> None:
        super().destroy()
        for file in self._file.parent.glob("state-*"):
            file.unlink()


class ReadsAsFarAsItGoes(FileBackend):
    """The version first, then a store after the other; what a damaged file lacks is empty."""

    def _put(self, file: Path, state: Any) -> None:
        version, tables = state
        try:
            with open(file, "wb") as out:
                for part in (version, *tables.items()):
                    pickle.dump(part, out)
        except OSError as error:
            raise StoreError(f"{file}: {error}") from error

    def _loaded(self, data: bytes) -> tuple[str | None, Tables]:
        from io import BytesIO

        parts, file = [], BytesIO(data)
        with suppress(EOFError, pickle.UnpicklingError):
            while True:
                parts.append(pickle.load(file))
        return (parts[0], dict(parts[1:])) if parts else (None, {})


class RaisesWhatPickleRaises(FileBackend):
    def _loaded(self, data: bytes) -> tuple[str | None, Tables]:
        found: tuple[str | None, Tables] = pickle.loads(data)
        return found
