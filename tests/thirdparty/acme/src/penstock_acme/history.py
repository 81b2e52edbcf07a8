"""The changelog `acme.history`: deltas and snapshots in a database of SQLite for each task."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any
from zlib import crc32

from penstock import ChangelogError, Commit, DeltaChangelog, Restore, TopicPartition
from penstock.changelog import version_counter
from penstock.store import Change, Changes

_FLOOR = 64 * 1024
_CHUNK = 256

_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS part (
    version TEXT, is_snapshot INT, previous TEXT, entries TEXT, size INT, at INT, kept TEXT, sum INT, checksum INT,
    PRIMARY KEY (version, is_snapshot)
);
CREATE TABLE IF NOT EXISTS entry (entries TEXT, store TEXT, key BLOB, value BLOB, PRIMARY KEY (entries, store, key))
    WITHOUT ROWID;
"""


class SqliteHistory(DeltaChangelog):
    """A part is a delta or a snapshot. Its entries are there before it, so a part is never there by half."""

    def __init__(self, location: str, application_id: str, task_id: str) -> None:
        self._where = f"changelog acme.history:{location} of {application_id} task {task_id}"
        self._lock = threading.RLock()
        self._last: str | None = None
        self._file = Path(location) / application_id / f"{task_id}.sqlite"
        self._damage = ""
        try:
            self._open()
        except (OSError, sqlite3.OperationalError) as error:
            raise ChangelogError(f"{self._where}: cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:
            self._damage = f"cannot be opened: {error}"  # `destroy` works

    def _open(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
        self._database.executescript(_TABLES)

    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        """Write one delta in a transaction."""
        rows = [(store, key, value) for store, changed in changes.items() for key, value in changed]
        with self._transaction():
            entries = token_hex(8)
            self._add_part(version, False, previous, entries, *self._insert(entries, rows), commit)
        self._last = version

    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        """Write some entries at a time: another thread may append between them, and they need not fit into memory."""
        entries, size, sum_of_rows, left = token_hex(8), 0, 0, iter(changes)
        try:
            while rows := list(islice(left, _CHUNK)):
                with self._transaction():
                    more, sum_of_more = self._insert(entries, rows)
                    size, sum_of_rows = size + more, sum_of_rows + sum_of_more
        except BaseException:
            self._run("DELETE FROM entry WHERE entries = ?", entries)
            raise
        with self._transaction():
            self._add_part(version, True, None, entries, size, sum_of_rows, commit)
        self._last = max(self._last or version, version, key=version_counter)

    def _insert(self, entries: str, rows: Iterable[tuple[str, bytes, bytes | None]]) -> tuple[int, int]:
        """Insert rows; return their size, and the sum of their checksums."""
        size = sum_of_rows = 0
        for row in rows:
            self._run("INSERT INTO entry VALUES (?, ?, ?, ?)", entries, *row)
            size += len(row[1]) + len(row[2] or b"")
            sum_of_rows += _checksum(row)
        return size, sum_of_rows

    def _add_part(
        self,
        version: str,
        is_snapshot: bool,
        previous: str | None,
        entries: str,
        size: int,
        sum_of_rows: int,
        commit: Commit | None,
    ) -> None:
        old = self._run("SELECT entries FROM part WHERE version = ? AND is_snapshot = ?", version, is_snapshot)
        for (each,) in old:
            self._run("DELETE FROM entry WHERE entries = ?", each)
        now_ms = time.time_ns() // 1_000_000
        # SQLite itself does not notice a flipped bit.
        checksum = _checksum((version, int(is_snapshot), previous, entries, sum_of_rows))
        part = (version, is_snapshot, previous, entries, size, now_ms, _to_text(commit), sum_of_rows, checksum)
        self._run("INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *part)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._run("BEGIN IMMEDIATE")
            try:
                yield
                self._run("COMMIT")
            except BaseException:
                self._database.rollback()
                raise

    def restore(self, target: str, have: str | None) -> Restore:
        """Follow the deltas back to `have`, or else to the newest snapshot or the first version."""
        self._last = target
        if have is not None:
            start, deltas, _ = self._route(target, {have})
            if start == have:
                return Restore(have, self._steps(deltas))
        start, deltas, missing = self._route(target, self._versions(is_snapshot=True))
        if missing is not None:
            raise ChangelogError(f"{self._where}: no way to version {target}: the delta to {missing} is missing")
        return Restore(None, self._steps(deltas, start))

    def _route(self, target: str, ends: set[str]) -> tuple[str | None, list[str], str | None]:
        """Return where the way to a version starts, its deltas in order, and the first version without a delta."""
        deltas: list[str] = []
        at: str | None = target
        while at is not None and at not in ends:
            found = self._part(at, is_snapshot=False)
            if found is None:
                return None, [], at
            deltas.insert(0, at)
            at = found[0]
        return at, deltas, None

    def _steps(self, deltas: Sequence[str], snapshot: str | None = None) -> Iterator[tuple[Changes, str]]:
        if snapshot is not None:
            rows: list[tuple[str, bytes, bytes | None]] = []
            count = 0
            for chunk in self._chunks(snapshot, is_snapshot=True):
                if rows:
                    count += len(rows)
                    yield _by_store(rows), f"restoring:{snapshot}:{count}"
                rows = chunk
            yield _by_store(rows), snapshot
        for version in deltas:
            yield _by_store(self._entries(version, is_snapshot=False)), version

    def _entries(self, version: str, *, is_snapshot: bool) -> list[tuple[str, bytes, bytes | None]]:
        return [row for chunk in self._chunks(version, is_snapshot=is_snapshot) for row in chunk]

    def _chunks(self, version: str, *, is_snapshot: bool) -> Iterator[list[tuple[str, bytes, bytes | None]]]:
        """Yield some rows at a time. Whoever reads on after the last ones finds whether they are as they were."""
        found = self._part(version, is_snapshot=is_snapshot)
        if found is None:
            raise ChangelogError(f"{self._where}: version {version} was deleted while it was read")
        _, entries, sum_of_rows = found
        after: tuple[str, bytes] = ("", b"")
        compared, found_sum = ">=", 0
        while rows := self._run(
            f"SELECT store, key, value FROM entry WHERE entries = ? AND (store, key) {compared} (?, ?) "
            "ORDER BY store, key LIMIT ?",
            entries, *after, _CHUNK,
        ):  # fmt: skip
            yield rows
            found_sum += sum(map(_checksum, rows))
            after, compared = rows[-1][:2], ">"
        if found_sum != sum_of_rows:
            raise ChangelogError(f"{self._where}: rows of version {version} are damaged")

    def _part(self, version: str, *, is_snapshot: bool) -> tuple[str | None, str, int] | None:
        """Return the version before, the name of the entries, and the sum of their checksums."""
        columns = "previous, entries, sum, checksum"
        found = self._run(f"SELECT {columns} FROM part WHERE version = ? AND is_snapshot = ?", version, is_snapshot)
        if not found:
            return None
        previous, entries, sum_of_rows, checksum = found[0]
        if checksum != _checksum((version, int(is_snapshot), previous, entries, sum_of_rows)):
            raise ChangelogError(f"{self._where}: version {version} is damaged")
        return previous, entries, sum_of_rows

    def proven(self) -> set[str]:
        """Return the versions that are here and that a delta follows, and those with a snapshot."""
        followed = self._run("SELECT previous FROM part WHERE previous IN (SELECT version FROM part)")
        return {version for (version,) in followed} | self._versions(is_snapshot=True)

    def beginnings(self) -> set[str]:
        """Return the versions of deltas that follow none."""
        found = self._run("SELECT version FROM part WHERE previous IS NULL AND NOT is_snapshot")
        return {version for (version,) in found}

    def kept(self, version: str) -> Commit | None:
        """Return the kept commit of a version that is furthest."""
        texts = self._run("SELECT kept FROM part WHERE kept IS NOT NULL")
        commits = [commit for (text,) in texts if (commit := _of_text(text)).version == version]
        return max(commits, key=lambda commit: sum(commit.positions.values()), default=None)

    def wants_snapshot(self) -> bool:
        """Return whether the deltas since the last snapshot are larger than it."""
        if self._last is None:
            return False
        start, deltas, missing = self._route(self._last, self._versions(is_snapshot=True))
        sizes = {
            (version, bool(is_snapshot)): size
            for version, is_snapshot, size in self._run("SELECT version, is_snapshot, size FROM part")
        }
        least = max(_FLOOR, sizes.get((start or "", True), 0))
        return missing is not None or sum(sizes.get((each, False), 0) for each in deltas) > least

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        """Delete old parts with a lower counter that `version` does not need."""
        start, deltas, missing = self._route(version, self._versions(is_snapshot=True))
        if missing is not None:
            return
        needed = {(each, 0) for each in deltas} | {(start, 1)}
        listed = [
            (each, is_snapshot, entries)
            for each, is_snapshot, entries, at in self._run("SELECT version, is_snapshot, entries, at FROM part")
            if (each, is_snapshot) not in needed
            and version_counter(each) < version_counter(version)
            and now_ms - at > grace_ms
        ]
        if not is_current():
            return
        for each, is_snapshot, entries in listed:
            self._run("DELETE FROM part WHERE version = ? AND is_snapshot = ?", each, is_snapshot)
            self._run("DELETE FROM entry WHERE entries = ?", entries)

    def destroy(self) -> None:
        """Delete everything; a database that is damaged, with its file."""
        self._last = None
        try:
            self._run("DELETE FROM part")
            self._run("DELETE FROM entry")
        except ChangelogError as error:
            if type(error.__cause__) is not sqlite3.DatabaseError and not self._damage:
                raise  # it may be locked, or the disk full
            self._database.close()
            for end in ("", "-wal", "-shm"):
                Path(f"{self._file}{end}").unlink(missing_ok=True)
            self._open()
            self._damage = ""

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _versions(self, *, is_snapshot: bool) -> set[str]:
        return {version for (version,) in self._run("SELECT version FROM part WHERE is_snapshot = ?", is_snapshot)}

    def _run(self, statement: str, *values: Any) -> list[Any]:
        if self._damage:
            raise ChangelogError(f"{self._where}: {self._damage}")
        try:
            with self._lock:
                return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise ChangelogError(f"{self._where}: {error}") from error


def _checksum(row: tuple[Any, ...]) -> int:
    return crc32(repr(row).encode())


def _by_store(rows: Sequence[tuple[str, bytes, bytes | None]]) -> Changes:
    changes: dict[str, list[Change]] = {}
    for store, key, value in rows:
        changes.setdefault(store, []).append((key, value))
    return changes


def _to_text(commit: Commit | None) -> str | None:
    if commit is None:
        return None
    return json.dumps(
        [[[*each, at] for each, at in commit.positions.items()], commit.version, commit.engine_state.hex()]
    )


def _of_text(text: str) -> Commit:
    positions, version, state = json.loads(text)
    return Commit({TopicPartition(topic, number): at for topic, number, at in positions}, version, bytes.fromhex(state))
