"""The store backend `contrib.rocksdb`: state in a log-structured merge tree, for state larger than memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from penstock import Duration, StaleStoreError, StoreBackend, StoreView, duration_ms
from penstock.store import Changes, in_chunks
from penstock.support.packages import check_installed

from .database import Database, Reader, Writer
from .library import BACKEND, Limits, explain, is_damage, load

T = TypeVar("T")

check_installed(BACKEND, "rocksdb", "rocksdict")  # when the backend is looked up: before a start, not in a task

_COUNTED = 1_000
"""So many keys are counted one by one; of more RocksDB has an estimate."""
_BYTES_OF_CHANGE = 100
"""Until the first write."""


class RocksDbBackend(StoreBackend):
    """All stores of one task in one RocksDB, a column family each.

    `block_cache_bytes` and `write_buffer_bytes` bound the memory of one task; `max_open_files` its table files.
    `lock_timeout` bounds the wait for another process that has the directory open; then StoreLockedError makes the
    engine restore into another directory. A commit is in RocksDB's log, which is not fsynced: a killed process loses
    nothing, and after a crash of the machine an earlier version is there, or the files are found damaged and `trusted`
    is False. A `read_only` backend sees the last commit with each read, and a range scan sees one commit throughout.
    """

    open_files = 9
    """The writer's lock, RocksDB's lock, two logs and manifest, the directory three times, and a table file."""
    exclusive = True
    """RocksDB gives a directory to one writing process; a global store needs more."""

    def __init__(
        self,
        directory: Path,
        stores: Sequence[str],
        *,
        read_only: bool = False,
        block_cache_bytes: int = 8 << 20,
        write_buffer_bytes: int = 8 << 20,
        max_open_files: int = 64,
        lock_timeout: Duration = "10s",
    ) -> None:
        self._directory = os.path.realpath(directory)
        timeout = duration_ms(lock_timeout, "lock_timeout") / 1000
        limits = Limits(block_cache_bytes, write_buffer_bytes, max_open_files)
        self._iterators: dict[object, Any] = {}
        self._views: WeakSet[RocksDbView] = WeakSet()
        self._bytes_of_change = _BYTES_OF_CHANGE
        self._database: Database
        try:
            if read_only:
                self._database = Reader(self._directory, stores, limits)
            else:
                self._database = Writer(self._directory, stores, limits, timeout)
        except Exception as error:
            raise explain(self._directory, error) from error

    def version(self) -> str | None:
        return self._read(self._database.version)

    def get(self, store: str, key: bytes) -> bytes | None:
        def read() -> bytes | None:
            family = self._database.family(store)
            value: bytes | None = None if family is None else family.get(key)
            return value

        return self._read(read)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return in_chunks(self._chunk, store, start, end, reverse, self._iterators)

    def approximate_count(self, store: str) -> int:
        def read() -> int:
            family = self._database.family(store)
            if family is None:
                return 0
            found = sum(1 for _ in islice(family.keys(), _COUNTED))
            estimate = family.property_int_value("rocksdb.estimate-num-keys") if found == _COUNTED else 0
            return max(found, estimate or 0)

        return self._read(read)

    def write_bytes(self, store: str, changes: int) -> int:
        return 2 * self._bytes_of_change * changes  # in the batch, and in the buffer that takes it as a whole

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        def fill(batch: Any, handle: Any) -> None:
            put, delete = batch.put, batch.delete
            for store, rows in changes.items():
                family = handle(store)
                for key, value in rows:
                    if value is None:
                        delete(key, family)
                    else:
                        put(key, value, family)

        try:
            size = self._database.write(fill, previous, version)
        except Exception as error:
            raise explain(self._directory, error) from error
        if count := sum(map(len, changes.values())):
            self._bytes_of_change = size // count + 1

    def view(self, stores: Sequence[str]) -> RocksDbView | None:
        if not self._database.writes:
            return None  # a later read may move a secondary instance on
        view = RocksDbView(self._directory, self.version(), {store: self._database.family(store) for store in stores})
        self._views.add(view)
        return view

    def release(self) -> None:
        """Drop the iterators: they pin the files of the commit that they read."""
        self._iterators.clear()

    def close(self) -> None:
        self._let_go()
        self._database.close()

    def destroy(self) -> None:
        self._let_go()
        self._database.destroy()

    def trusted(self) -> bool:
        return self._database.trusted

    # ------------------------------------------------------------------ helpers

    def _let_go(self) -> None:
        """Drop all that keeps RocksDB open: it ends with its last iterator or snapshot, and not before."""
        self.release()
        for view in list(self._views):
            view.close()

    def _chunk(
        self, store: str, start: bytes | None, end: bytes | None, reverse: bool, size: int, token: object
    ) -> list[tuple[bytes, bytes]]:
        """Return the next entries. A reader's iterator stays for the next chunk, because it shows one commit."""

        def read() -> list[tuple[bytes, bytes]]:
            kept = self._iterators.get(token)
            if kept is None:
                family = self._database.family(store)
                if family is None:
                    return []
                kept = family, open_items(family, start, end, reverse)
                if not self._database.writes:
                    self._iterators[token] = kept
            family, items = kept
            return take(family, items, start, end, reverse, size)

        return self._read(read, is_begun=token in self._iterators)

    def _read(self, read: Callable[[], T], *, is_begun: bool = False) -> T:
        """Return what `read` returns. A reader that finds damage opens the files anew and reads again.

        Raises StaleStoreError where the scan that reads `is_begun`: the rest would be of another commit.
        """
        try:
            try:
                return read()
            except Exception as error:
                if not (isinstance(self._database, Reader) and is_damage(error)):
                    raise
                self.release()
                self._database.reopen()
                if is_begun:
                    raise StaleStoreError(
                        f"store directory {self._directory}: its files changed: scan again"
                    ) from error
                return read()
        except Exception as error:
            raise explain(self._directory, error) from error


class RocksDbView(StoreView):
    """One iterator of RocksDB for each store, which shows what was there when it was made.

    rocksdict's iterators over a snapshot do not keep to the snapshot. The view ends with its backend.
    """

    def __init__(self, directory: str, version: str | None, families: dict[str, Any]) -> None:
        self.version = version
        self._directory = directory
        self._iterators = {store: family.iter() for store, family in families.items()}
        self._reading = threading.Lock()

    def get(self, store: str, key: bytes) -> bytes | None:
        found = self._chunk(store, key, key + b"\x00", False, 1)
        return found[0][1] if found else None

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return in_chunks(self._chunk, store, start, end, reverse)

    def close(self) -> None:
        with self._reading:
            self._iterators.clear()

    def _chunk(
        self, store: str, start: bytes | None, end: bytes | None, reverse: bool, size: int, _: object = None
    ) -> list[tuple[bytes, bytes]]:
        with self._reading:
            iterator = self._iterators.get(store)
            if iterator is None:
                raise StaleStoreError(f"store directory {self._directory}: it was closed while a view was being read")
            try:
                return _walk(iterator, start, end, reverse, size)
            except Exception as error:
                raise explain(self._directory, error) from error


def _walk(iterator: Any, start: bytes | None, end: bytes | None, reverse: bool, size: int) -> list[tuple[bytes, bytes]]:
    """Return the next `size` entries of an iterator of RocksDB, from `start` on, or back from `end`, left out."""
    if not reverse:
        iterator.seek(start or b"")
    elif end is None:
        iterator.seek_to_last()
    else:
        iterator.seek_for_prev(end)
        if iterator.valid() and iterator.key() == end:
            iterator.prev()
    chunk: list[tuple[bytes, bytes]] = []
    while iterator.valid() and len(chunk) < size:
        key = iterator.key()
        if (start is not None and key < start) if reverse else (end is not None and key >= end):
            break
        chunk.append((key, iterator.value()))
        if reverse:
            iterator.prev()
        else:
            iterator.next()
    iterator.status()
    return chunk


def open_items(family: Any, start: bytes | None, end: bytes | None, reverse: bool) -> Any:
    """Return an iterator over a column family; a reversed one does not stop at `start` by itself."""
    options = _bounded(end)
    return family.items(backwards=True, read_opt=options) if reverse else family.items(False, start, options)


def take(
    family: Any, items: Any, start: bytes | None, end: bytes | None, reverse: bool, size: int
) -> list[tuple[bytes, bytes]]:
    """Return the next `size` entries, or the remaining ones. Raises the error that ended them early."""
    chunk = list(islice(items, size))
    if len(chunk) < size:
        # rocksdict's iterator ends at a damaged block as at the end of the store: ask again, there.
        probe = family.iter(_bounded(end))
        if chunk:
            probe.seek(chunk[-1][0])
            if probe.valid():
                probe.prev() if reverse else probe.next()
        elif reverse:
            probe.seek_to_last()
        else:
            probe.seek(start or b"")
        probe.status()
    if reverse and start is not None and chunk and chunk[-1][0] < start:
        return [entry for entry in chunk if entry[0] >= start]
    return chunk


def _bounded(end: bytes | None) -> Any:
    if end is None:
        return None
    options = load().ReadOptions()
    options.set_iterate_upper_bound(end)
    return options
