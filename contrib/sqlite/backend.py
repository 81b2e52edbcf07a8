"""The store backend `contrib.sqlite`: one file for each task, which any tool for SQLite can open."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from penstock import Duration, StaleStoreError, StoreBackend, StoreError, StoreView, duration_ms
from penstock.store import Changes

from .connection import Connection, DamagedError

_log = logging.getLogger("penstock.stores")

T = TypeVar("T")

_FILE = "state.sqlite"


class SqliteBackend(StoreBackend):
    """All stores of one task in one SQLite file, a table each.

    `cache_bytes` bounds SQLite's page cache. `lock_timeout` bounds the wait for another process that writes; then
    StoreLockedError makes the engine restore into another directory. A commit is in SQLite's write-ahead log, which is
    not fsynced: a killed process loses nothing, and after a crash of the machine an earlier version is there. A
    `read_only` backend sees the last commit of any process, and a range scan sees one commit throughout.
    """

    open_files = 3
    """The file, its log, and the index of the log."""

    def __init__(
        self,
        directory: Path,
        stores: Sequence[str],
        *,
        read_only: bool = False,
        cache_bytes: int = 8 << 20,
        lock_timeout: Duration = "10s",
    ) -> None:
        self._file = directory / _FILE
        self._stores = tuple(stores)
        self._read_only = read_only
        self._timeout = duration_ms(lock_timeout, "lock_timeout") / 1000
        self._cache_bytes = cache_bytes
        self._tables: dict[str, str] = {}
        self._trusted = True
        if read_only and not self._file.exists():
            raise StoreError(f"{self._file}: nothing to read there yet; start the task that writes it")
        try:
            self._connection = self._open()
        except DamagedError as error:
            if read_only:
                raise
            _log.warning("%s; it is rebuilt", error)
            self._trusted = False
            self._delete()
            self._connection = self._open()
        self._inode = self._file.stat().st_ino

    def version(self) -> str | None:
        return self._read(lambda: self._connection.version())

    def get(self, store: str, key: bytes) -> bytes | None:
        def read() -> bytes | None:
            table = self._tables.get(store) or self._table(store)
            if table is None:
                return None
            rows = self._connection.run(f"SELECT value FROM {table} WHERE key = ?", (key,))
            return rows[0][0] if rows else None

        return self._read(read)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        table = self._read(lambda: self._table(store))
        if table is None:
            return iter(())
        if self._read_only:
            return self._scan_one_commit(table, start, end, reverse)
        return self._connection.scan(table, start, end, reverse)

    def approximate_count(self, store: str) -> int:
        def read() -> int:
            table = self._table(store)
            return 0 if table is None else int(self._connection.run(f"SELECT count(*) FROM {table}")[0][0])

        return self._read(read)

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        if self._read_only:
            raise StoreError(f"{self._file}: opened for reading only; open it without read_only")
        connection = self._connection
        connection.run("BEGIN IMMEDIATE")
        try:
            self._check(previous)
            for store, rows in changes.items():
                table = self._table(store)
                gone = [(key,) for key, value in rows if value is None]
                if gone:
                    connection.run_all(f"DELETE FROM {table} WHERE key = ?", gone)
                puts = [row for row in rows if row[1] is not None] if gone else rows
                connection.run_all(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", puts)
            connection.run("INSERT OR REPLACE INTO version VALUES (1, ?)", (version,))
            connection.run("COMMIT")
        except BaseException:
            connection.rollback()
            raise

    def view(self, stores: Sequence[str]) -> SqliteView:
        tables = self._read(lambda: {store: self._table(store) for store in stores})
        return SqliteView(self._file, tables, self._timeout, self._cache_bytes)

    def close(self) -> None:
        self._connection.close()

    def destroy(self) -> None:
        here = self._is_here()
        self.close()
        if here:
            self._delete()

    def trusted(self) -> bool:
        return self._trusted

    # ------------------------------------------------------------------ helpers

    def _read(self, read: Callable[[], T]) -> T:
        """Return what `read` returns. A reader that finds damage opens the file anew and reads again.

        What it has open may be spoiled while the file is healthy, and nobody is advised to delete that.
        """
        try:
            return read()
        except DamagedError:
            if not self._read_only:
                raise
            self._connection.close()
            self._tables.clear()
            self._connection = self._open()
            return read()

    def _open(self) -> Connection:
        connection = Connection(
            self._file, read_only=self._read_only, timeout=self._timeout, cache_bytes=self._cache_bytes
        )
        try:
            if not self._read_only:
                connection.run("PRAGMA journal_mode = WAL")
                # A crash of the machine may take the last commits and leaves an older version: the changelog has them.
                connection.run("PRAGMA synchronous = NORMAL")
                self._make_tables(connection)
            connection.version()
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_tables(self, connection: Connection) -> None:
        # Also where all tables are there: a process that was stopped while it wrote is to be found now.
        connection.run("BEGIN IMMEDIATE")
        try:
            connection.run("CREATE TABLE IF NOT EXISTS version (one INTEGER PRIMARY KEY, name TEXT NOT NULL)")
            connection.run("CREATE TABLE IF NOT EXISTS stores (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)")
            for store in self._stores:
                connection.run("INSERT OR IGNORE INTO stores (name) VALUES (?)", (store,))
                connection.run(
                    f"CREATE TABLE IF NOT EXISTS {connection.table(store)} "
                    "(key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
                )
            connection.run("COMMIT")
        except BaseException:
            connection.rollback()
            raise

    def _table(self, store: str) -> str | None:
        """Return the table of a store; None when this is a reader and no writer has made it yet."""
        if store not in self._stores:
            raise StoreError(
                f"store {store!r} was not opened in {self._file}; opened: {', '.join(sorted(self._stores)) or 'none'}"
            )
        table = self._tables.get(store) or self._connection.table(store)
        if table is not None:
            self._tables[store] = table
        return table

    def _scan_one_commit(
        self, table: str, start: bytes | None, end: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        view = SqliteView(self._file, {}, self._timeout, self._cache_bytes)
        try:
            yield from view.scan(table, start, end, reverse)
        finally:
            view.close()

    def _check(self, previous: str | None) -> None:
        if not self._is_here():
            raise StaleStoreError(
                f"{self._file}: the file was removed or rebuilt since it was opened: re-open the task"
            )
        found = self.version()
        if found != previous:
            raise StaleStoreError(
                f"{self._file}: expected version {previous}, found {found}; another process wrote it: re-open the task"
            )

    def _is_here(self) -> bool:
        try:
            return self._file.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _delete(self) -> None:
        for name in (_FILE, f"{_FILE}-wal", f"{_FILE}-shm"):
            self._file.with_name(name).unlink(missing_ok=True)


class SqliteView(StoreView):
    """A read transaction in a connection of its own; the backend may be closed, or destroyed, meanwhile."""

    def __init__(self, file: Path, tables: dict[str, str | None], timeout: float, cache_bytes: int) -> None:
        self._tables = tables
        self._connection = Connection(file, read_only=True, timeout=timeout, cache_bytes=cache_bytes)
        self._connection.run("BEGIN")
        self.version = self._connection.version()
        self.scan = self._connection.scan

    def get(self, store: str, key: bytes) -> bytes | None:
        table = self._tables[store]
        rows = [] if table is None else self._connection.run(f"SELECT value FROM {table} WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        table = self._tables[store]
        return iter(()) if table is None else self._connection.scan(table, start, end, reverse)

    def close(self) -> None:
        self._connection.close()
