"""Backends on SQLite with a bug each that only a second process shows. Other processes import this module."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.contrib.sqlite.backend import SqliteBackend
from penstock.store import Change, Changes


class _Writing(SqliteBackend):
    def _put(self, store: str, rows: Sequence[Change]) -> None:
        table = self._table(store)
        for key, value in rows:
            if value is None:
                self._connection.run(f"DELETE FROM {table} WHERE key = ?", (key,))
            else:
                self._connection.run(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (key, value))

    def _name(self, version: str) -> None:
        self._connection.run("INSERT OR REPLACE INTO version VALUES (1, ?)", (version,))


class VersionFirst(_Writing):
    """Records the version before the rows: a crash between them loses the rows."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        self._check(previous)
        self._name(version)
        self._connection.run("BEGIN IMMEDIATE")
        for store, rows in changes.items():
            self._put(store, rows)
        self._connection.run("COMMIT")


class VersionLast(_Writing):
    """Records the version after the rows: a crash between them leaves rows of a later version."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        self._check(previous)
        self._connection.run("BEGIN IMMEDIATE")
        for store, rows in changes.items():
            self._put(store, rows)
        self._connection.run("COMMIT")
        self._name(version)


class RowByRow(_Writing):
    """Writes each row by itself."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        self._check(previous)
        for store, rows in changes.items():
            self._put(store, rows)
        self._name(version)


class StoreByStore(_Writing):
    """Writes the rows of a store in one step, and those of another in another; the version with the last."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        self._check(previous)
        for number, (store, rows) in enumerate(changes.items(), 1):
            self._connection.run("BEGIN IMMEDIATE")
            self._put(store, rows)
            if number == len(changes):
                self._name(version)
            self._connection.run("COMMIT")


class LargeInParts(_Writing):
    """Begins anew after some megabytes, so that no transaction gets larger."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        self._check(previous)
        self._connection.run("BEGIN IMMEDIATE")
        size = 0
        for store, rows in changes.items():
            for row in rows:
                self._put(store, [row])
                size += len(row[1] or b"")
                if size > 12 << 20:
                    size = 0
                    self._connection.run("COMMIT")
                    self._connection.run("BEGIN IMMEDIATE")
        self._name(version)
        self._connection.run("COMMIT")


class KeepsItsLog(SqliteBackend):
    """Until it is closed."""

    def __init__(self, directory: Path, stores: Sequence[str], **options: Any) -> None:
        super().__init__(directory, stores, **options)
        self._connection.run("PRAGMA wal_autocheckpoint = 0")


class Forgetful(SqliteBackend):
    """Commits when it is closed, and loses the rest with its process."""

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        if previous is None:
            super().write(changes, previous, version)


class ReaderThatWrites(SqliteBackend):
    """Does not know `read_only`."""

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False, **options: Any) -> None:
        super().__init__(directory, stores, **options)


class ReaderOfTheFirstCommit(SqliteBackend):
    """A reader sees what was there when it first read."""

    def version(self) -> str | None:
        if self._read_only and not hasattr(self, "_first"):
            self._first = super().version()
        return self._first if self._read_only else super().version()
