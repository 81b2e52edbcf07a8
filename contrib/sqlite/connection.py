"""One connection to the file: statements with their errors explained, tables of stores, and scans in steps."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock import StoreError, StoreLockedError
from penstock.store import in_chunks
from penstock.support.system_errors import what_to_do

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class DamagedError(StoreError):
    """SQLite found that the file is damaged, or no SQLite file."""


class Connection:
    """A connection that opens a file to read it, or to write it too, and waits `timeout` seconds for another writer."""

    def __init__(self, file: Path, *, read_only: bool, timeout: float, cache_bytes: int) -> None:
        self._file = file
        self._timeout = timeout
        mode = "ro" if read_only else "rwc"
        try:
            if not read_only:
                _make_private(file)
            self._db = sqlite3.connect(
                f"{file.absolute().as_uri()}?mode={mode}",
                uri=True,
                isolation_level=None,
                timeout=timeout,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self._explained(error) from error
        try:
            self.run(f"PRAGMA cache_size = -{max(cache_bytes >> 10, 1)}")
        except BaseException:
            self.close()
            raise

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a statement and return its rows."""
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def run_all(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each of the rows."""
        try:
            self._db.executemany(statement, rows)
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def rollback(self) -> None:
        """End the transaction, unless SQLite has ended it already."""
        if self._db.in_transaction:
            self.run("ROLLBACK")

    def version(self) -> str | None:
        """Return the version in the file."""
        rows = self.run("SELECT name FROM version")
        return rows[0][0] if rows else None

    def table(self, store: str) -> str | None:
        """Return the name of a store's table; None if there is none yet.

        It has a number, because SQLite takes tables Counts and counts for the same and keeps some names for itself.
        """
        rows = self.run("SELECT number FROM stores WHERE name = ?", (store,))
        return f"entries_{rows[0][0]}" if rows else None

    def scan(self, table: str, start: bytes | None, end: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Return entries, read in chunks: the connection may be used for something else between two of them."""
        return in_chunks(self._chunk, table, start, end, reverse)

    def _chunk(
        self, table: str, start: bytes | None, end: bytes | None, reverse: bool, size: int, _: object
    ) -> list[Any]:
        order = "DESC" if reverse else "ASC"
        bounds = {"key >= ?": start, "key < ?": end}
        given = {condition: value for condition, value in bounds.items() if value is not None}
        where = f"WHERE {' AND '.join(given)}" if given else ""
        return self.run(f"SELECT key, value FROM {table} {where} ORDER BY key {order} LIMIT ?", (*given.values(), size))

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._db.close()

    def _explained(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            return StoreLockedError(
                f"{self._file}: another process has been writing it for {self._timeout:g} s (lock_timeout): end it, or "
                "restore into another directory"
            )
        if code in _DAMAGED:
            return DamagedError(
                f"{self._file}: {error}; the file is damaged: delete it, and the state is restored from the changelog"
            )
        known = what_to_do(error, "set state_dir to another directory", str(self._file.parent))
        if code == sqlite3.SQLITE_FULL:
            known = "make room on its disk, or set state_dir to another directory"
        return StoreError(f"{self._file}: {error}" + (f"; {known}" if known else ""))


def _make_private(file: Path) -> None:
    """Make the file so that only this user can read it; SQLite gives the files beside it the same mode.

    One that is there is not opened: closing it would end the locks that this process has on it.
    """
    with suppress(OSError):  # SQLite says more
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
