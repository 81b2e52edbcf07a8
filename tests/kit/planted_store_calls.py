"""Store backends with one wrong line each, which shows where calls of others, or another directory, come between.

Other processes import this module.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock import StoreLockedError
from penstock.contrib.sqlite.backend import SqliteBackend, SqliteView
from penstock.contrib.sqlite.connection import Connection
from penstock.store import Changes
from penstock.stores.lmdb.backend import LmdbBackend

from .planted_backends import FileBackend, Tables

_PORTION = 20_000


class DestroysASuccessor(SqliteBackend):
    """Files are deleted by their names, also those that another process has made since."""

    def destroy(self) -> None:
        self.close()
        self._delete()


class DestroysWhatIsThere(FileBackend):
    """As above; the state only, with its lock."""

    def destroy(self) -> None:
        self._born = None
        super().destroy()


class LockedWhereItIsStale(FileBackend):
    """Whoever was overtaken is told to wait, though nobody has the lock."""

    def _check(self, previous: str | None) -> None:
        if self._read_file()[1] != previous and previous is not None and self._seen == previous:
            raise StoreLockedError(f"{self._file} is in use")
        super()._check(previous)

    _seen: str | None = None

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        self._seen = self.version()
        super().write(changes, previous, version)


class RelativePath(SqliteBackend):
    """The directory is looked up anew with each view, from wherever the program is."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        super().__init__(Path(os.path.relpath(directory)), stores, read_only=read_only)


class RelativeToDestroy(SqliteBackend):
    """The path for the end is relative."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        super().__init__(directory, stores, read_only=read_only)
        self._short = Path(os.path.relpath(self._file))

    def destroy(self) -> None:
        self._file = self._short
        super().destroy()

    def view(self, stores: Sequence[str]) -> SqliteView:
        return super().view(stores)


class RowsInPortions(LmdbBackend):
    """Changes of a store beyond some thousand are written in a step of their own."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        first = {store: rows[:_PORTION] for store, rows in changes.items()}
        rest = {store: rows[_PORTION:] for store, rows in changes.items() if len(rows) > _PORTION}
        if rest and previous is not None:
            super().write(first, previous, previous)
            super().write(rest, previous, version)
        else:
            super().write(changes, previous, version)


class BytesInPortions(LmdbBackend):
    """Stores whose changes have some megabytes are written in a step of their own."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        large = {s: rows for s, rows in changes.items() if sum(len(value or b"") for _, value in rows) > 4 << 20}
        if large and previous is not None:
            super().write(large, previous, previous)
        super().write({s: rows for s, rows in changes.items() if s not in large}, previous, version)


class StoreByStore(LmdbBackend):
    """Two stores with thousands of changes are written one after the other."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        if previous is not None and len(changes) > 1 and all(len(rows) > 4_000 for rows in changes.values()):
            *others, last = changes
            for store in others:
                super().write({store: changes[store]}, previous, previous)
            changes = {last: changes[last]}
        super().write(changes, previous, version)


class NeverSyncs(SqliteBackend):
    """What a crash of the machine leaves is trusted."""

    def _open(self) -> Connection:
        connection = super()._open()
        connection.run("PRAGMA synchronous = OFF")
        return connection


class StateOfTwoFiles(FileBackend):
    """Rows first, then the version, in the files that are there; neither is synced."""

    def _save(self, version: str, tables: Tables) -> None:
        super()._save(version, tables)
        text = b"".join(b"%b %b\n" % (key.hex().encode(), value.hex().encode()) for key, value in self._sorted(tables))
        with open(self._file.with_name("journal"), "r+b" if self._file.with_name("journal").exists() else "w+b") as out:
            out.write(text)
            out.truncate()

    def _sorted(self, tables: Tables) -> list[tuple[bytes, bytes]]:
        return sorted(tables.get("first", {}).items())

    def _state(self) -> tuple[str | None, Tables]:
        version, tables = super()._state()
        if version is None or "first" not in tables:
            return version, tables
        rows = {}
        for line in self._file.with_name("journal").read_bytes().split(b"\n"):
            key, _, value = line.partition(b" ")
            with suppress(ValueError):
                rows[bytes.fromhex(key.decode("ascii", "replace"))] = bytes.fromhex(value.decode("ascii", "replace"))
        rows.pop(b"", None)
        return version, {**tables, "first": rows}


class KeepsWhatIsAsLong(LmdbBackend):
    """A large value stays where it is replaced by one of its length."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        def is_new(store: str, key: bytes, value: bytes | None) -> bool:
            return value is None or len(value) < 4096 or len(self.get(store, key) or b"") != len(value)

        kept = {store: [row for row in rows if is_new(store, *row)] for store, rows in changes.items()}
        super().write(kept, previous, version)


class ReadersMakeAFile(FileBackend):
    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        if read_only:
            (directory / "journal").touch()
        super().__init__(directory, stores, read_only=read_only)
