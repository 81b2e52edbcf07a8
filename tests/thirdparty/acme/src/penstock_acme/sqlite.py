"""The store backend `acme.sqlite`, on the library that comes with Python."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock import StaleStoreError, StoreBackend, StoreError, StoreLockedError
from penstock.store import Changes

_PAGE = 256


class SqliteBackend(StoreBackend):
    """All stores of a task in one table of one file."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        self._file = directory / "state.sqlite"
        self._stores = frozenset(stores)
        mode = "ro" if read_only else "rwc"
        try:
            self._database = sqlite3.connect(
                f"{self._file.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StoreError(f"{self._file} cannot be opened: {error}") from error
        self._inode = self._file.stat().st_ino
        if not read_only:
            self._run("PRAGMA journal_mode = WAL")
            # What a power failure takes back is an older version, and the changelog has the rest.
            self._run("PRAGMA synchronous = NORMAL")
            self._run("CREATE TABLE IF NOT EXISTS version (name TEXT)")
            self._run(
                "CREATE TABLE IF NOT EXISTS entries "
                "(store TEXT, key BLOB, value BLOB NOT NULL, PRIMARY KEY (store, key)) WITHOUT ROWID"
            )

    def version(self) -> str | None:
        """Return the version."""
        rows = self._run("SELECT name FROM version")
        return rows[0][0] if rows else None

    def get(self, store: str, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        rows = self._run("SELECT value FROM entries WHERE store = ? AND key = ?", self._known(store), key)
        return rows[0][0] if rows else None

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Read page by page: the engine may write between two steps."""
        beyond, order = ("<", "DESC") if reverse else (">", "ASC")
        bounds: dict[str, Any] = {"store = ?": self._known(store), "key >= ?": start, "key < ?": end}
        while True:
            given = {condition: value for condition, value in bounds.items() if value is not None}
            page = self._run(
                f"SELECT key, value FROM entries WHERE {' AND '.join(given)} ORDER BY key {order} LIMIT {_PAGE}",
                *given.values(),
            )
            yield from page
            if len(page) < _PAGE:
                return
            bounds[f"key {beyond} ?"] = page[-1][0]

    def approximate_count(self, store: str) -> int:
        """Count."""
        return int(self._run("SELECT count(*) FROM entries WHERE store = ?", self._known(store))[0][0])

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        """Apply everything in one transaction."""
        self._run("BEGIN IMMEDIATE")
        try:
            if not self._is_here() or self.version() != previous:
                raise StaleStoreError(f"{self._file} is not at version {previous} any more: re-open the task")
            for store, rows in changes.items():
                self._known(store)
                for key, value in rows:
                    if value is None:
                        self._run("DELETE FROM entries WHERE store = ? AND key = ?", store, key)
                    else:
                        self._run("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", store, key, value)
            self._run("DELETE FROM version")
            self._run("INSERT INTO version VALUES (?)", version)
            self._run("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._run("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def destroy(self) -> None:
        """Close and delete the file, and what SQLite keeps beside it."""
        self.close()
        if self._file.exists() and not self._is_here():
            return  # another process has rebuilt the stores
        for file in (self._file, *self._file.parent.glob("state.sqlite-*")):
            file.unlink(missing_ok=True)

    def _is_here(self) -> bool:
        return self._file.exists() and self._file.stat().st_ino == self._inode

    def _known(self, store: str) -> str:
        if store not in self._stores:
            raise StoreError(f"{self._file} was not opened with a store {store!r}")
        return store

    def _run(self, statement: str, *values: Any) -> list[Any]:
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            is_locked = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            raise (StoreLockedError if is_locked else StoreError)(f"{self._file}: {error}") from error
