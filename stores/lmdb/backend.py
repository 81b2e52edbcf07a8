"""The `lmdb` store backend: state in memory-mapped files, which any process of this host may read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from penstock import Duration, StaleStoreError, StoreBackend, StoreError, StoreView, duration_ms
from penstock.store import Change, Changes, in_chunks

from . import keys, registry
from .environment import SharedEnvironment
from .keys import HEAD, SHORT

T = TypeVar("T")


class LmdbView(StoreView):
    """One read transaction. LMDB keeps the pages of its commit until it ends.

    It keeps the environment open when the backend is closed. It reads in chunks, between which the environment may be
    unmapped: to be destroyed, or to map it larger. Then the transaction cannot be used any more.
    """

    def __init__(self, shared: SharedEnvironment, stores: Sequence[str]) -> None:
        """View `stores`, which are open, unless no writer has made them yet."""
        self._shared: SharedEnvironment | None = shared
        try:
            self._begin(shared, stores)
        except lmdb.Error as error:
            shared.read_anew(error, lambda: self._begin(shared, stores))
        registry.share(shared)

    def _begin(self, shared: SharedEnvironment, stores: Sequence[str]) -> None:
        self._transaction = shared.begin()
        self._mapping = shared.mapping
        self._databases = {store: shared.databases.get(store) for store in stores}
        self.version = shared.version_in(self._transaction)

    def get(self, store: str, key: bytes) -> bytes | None:
        return self._read(store, lambda transaction, database: keys.get(transaction, database, key), None)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return in_chunks(self._chunk, store, start, end, reverse)

    def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            with shared.unmapping:
                self._transaction = None
            registry.release(shared)

    def _chunk(
        self, store: str, start: bytes | None, end: bytes | None, reverse: bool, size: int, _: object
    ) -> list[tuple[bytes, bytes]]:
        def read(transaction: Any, database: Any) -> list[tuple[bytes, bytes]]:
            return list(islice(keys.scan(transaction, database, start, end, reverse), size))

        return self._read(store, read, [])

    def _read(self, store: str, read: Callable[[Any, Any], T], nothing: T) -> T:
        """Return the result of `read` in the database of a store, or `nothing` if no writer has made it yet."""
        shared, database = self._shared, self._databases[store]
        if shared is None:
            raise StaleStoreError("a view of a store was used after it was closed")
        if database is None:
            return nothing
        with shared.unmapping:
            if shared.mapping != self._mapping:
                raise StaleStoreError(f"store directory {shared.directory}: it was closed, or made larger, meanwhile")
            try:
                return read(self._transaction, database)
            except lmdb.Error as error:
                # What another transaction finds is of another commit.
                shared.read_anew(error, lambda: read(shared.begin(), shared.databases[store]))
                raise StaleStoreError(f"store directory {shared.directory}: it was opened anew meanwhile") from error


class LmdbBackend(StoreBackend):
    """All stores of one task in one LMDB environment, one named database each.

    `map_size` (bytes of address space, not of disk) is doubled when it is full, up to `largest_map_size`.
    `lock_timeout` bounds the wait for another process that writes; then StoreLockedError makes the engine restore into
    another directory. A commit is not fsynced: a killed process loses nothing, and after a crash of the machine
    `trusted` is False. Reads of a writing backend see its last write; reads of a `read_only` one see the last commit of
    any process, and a range scan sees one commit throughout.
    """

    open_files = 4
    """The writer's lock, LMDB's lock file, and the data twice."""

    def __init__(
        self,
        directory: Path,
        stores: Sequence[str],
        *,
        read_only: bool = False,
        map_size: int = 64 << 30,
        largest_map_size: int = 4 << 40,
        lock_timeout: Duration = "10s",
    ) -> None:
        self._directory = directory
        self._stores = tuple(stores)
        self._read_only = read_only
        self._timeout = duration_ms(lock_timeout, "lock_timeout") / 1000
        self._transaction: Any = None
        self._snapshots: dict[object, Any] = {}
        self._shared: SharedEnvironment | None = registry.acquire(
            directory, stores, map_size, largest_map_size, read_only, self._timeout
        )
        self._shared.readers.add(self)
        self._databases = self._shared.databases

    def version(self) -> str | None:
        # The engine calls this between batches: a read transaction would pin old pages while another process writes.
        self.release()
        return self._open().version()

    def get(self, store: str, key: bytes) -> bytes | None:
        try:
            transaction = self._transaction or self._begin()
            if len(key) < SHORT:
                value: bytes | None = transaction.get(HEAD + key, None, self._databases[store])
                return value
            return keys.get(transaction, self._databases[store], key)
        except (KeyError, lmdb.Error):
            return self._get_again(store, key)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if self._database(store) is None:
            return iter(())
        # Nothing stays open between chunks, except a reader's snapshot.
        return in_chunks(self._chunk, store, start, end, reverse, self._snapshots)

    def approximate_count(self, store: str) -> int:
        if self._database(store) is None:
            return 0
        try:
            return keys.count(self._transaction or self._begin(), self._databases[store])
        except lmdb.Error as error:
            return self._open().read_anew(error, lambda: keys.count(self._begin(), self._databases[store]))

    def write_bytes(self, store: str, changes: int) -> int:
        # A write keeps copies of all pages that it changes. Some have more than one of the keys: call it two.
        pages = (self._transaction or self._begin()).stat(self._database(store))
        return int(min(changes // 2, pages["leaf_pages"]) * pages["psize"])

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        if self._read_only:
            raise StoreError(f"store directory {self._directory}: opened for reading only; open it without read_only")
        databases = {store: self._database(store) for store in changes}

        def change(transaction: Any) -> None:
            for store, database in databases.items():
                self._apply(transaction, store, database, changes[store])

        self._open().write(change, previous, version, self._timeout)

    def view(self, stores: Sequence[str]) -> LmdbView:
        for store in stores:
            self._database(store)
        return LmdbView(self._open(), stores)

    def close(self) -> None:
        shared, self._shared = self._shared, None
        self.release()
        if shared is not None:
            shared.readers.discard(self)
            registry.release(shared)

    def destroy(self) -> None:
        if self._shared is not None:
            registry.destroy(self._shared)
        self.close()

    def trusted(self) -> bool:
        return self._open().trusted

    def release(self) -> None:
        """End read transactions: they pin the pages of the commit that they read."""
        self._transaction = None
        self._snapshots.clear()

    # ------------------------------------------------------------------ helpers

    def _open(self) -> SharedEnvironment:
        if self._shared is None:
            raise StoreError(f"store directory {self._directory}: used after it was closed")
        return self._shared

    def _begin(self) -> Any:
        """Begin a read transaction, and keep it until the next write: beginning one costs as much as a read."""
        transaction = self._open().begin()
        if not self._read_only:
            self._transaction = transaction
        return transaction

    def _database(self, store: str) -> Any:
        """Return the handle of a store; None when this is a reader and no writer has made it yet."""
        shared = self._open()
        if store not in self._stores:
            raise StoreError(
                f"store {store!r} was not opened in {self._directory}; opened: "
                f"{', '.join(sorted(self._stores)) or 'none'}"
            )
        if store not in self._databases:
            shared.open(self._stores, self._read_only, self._timeout)
        return self._databases.get(store)

    def _get_again(self, store: str, key: bytes) -> bytes | None:
        """Get after a failure: the store was not there yet, or the transaction ended when the map was resized."""
        if self._database(store) is None:
            return None
        self.release()
        try:
            return keys.get(self._begin(), self._databases[store], key)
        except lmdb.Error as error:
            return self._open().read_anew(error, lambda: keys.get(self._begin(), self._databases[store], key))

    def _chunk(
        self, store: str, start: bytes | None, end: bytes | None, reverse: bool, size: int, token: object
    ) -> list[tuple[bytes, bytes]]:
        is_first = token not in self._snapshots

        def read() -> list[tuple[bytes, bytes]]:
            transaction = (self._snapshots.get(token) if self._read_only else self._transaction) or self._begin()
            if self._read_only:
                self._snapshots[token] = transaction
            return list(islice(keys.scan(transaction, self._database(store), start, end, reverse), size))

        try:
            return read()
        except lmdb.Error as error:
            chunk = self._open().read_anew(error, read)
            if is_first:
                return chunk
            raise StaleStoreError(
                f"store directory {self._directory}: it was opened anew during a scan, which sees one commit: scan it "
                "again"
            ) from error

    def _apply(self, transaction: Any, store: str, database: Any, changes: Sequence[Change]) -> None:
        cursor = transaction.cursor(database)
        gone = [key for key, value in changes if value is None]
        # Deletions first: what is put can take their pages. Where keys follow each other, the cursor is there already.
        for key in gone:
            if len(key) >= SHORT:
                keys.delete(transaction, database, key)
            elif cursor.key() == HEAD + key or cursor.set_key(HEAD + key):
                cursor.delete()
        first = next((key for key, value in changes if value is not None and len(key) < SHORT), None)
        consumed = 0
        if first is not None:
            # Keys above all others, as in a restore, are appended: faster, and the pages get full.
            append = not cursor.last() or cursor.key() < HEAD + first
            # No list of them: a restore has tens of thousands.
            puts = ((HEAD + key, value) for key, value in changes if value is not None and len(key) < SHORT)
            consumed, added = cursor.putmulti(puts, append=append)
            if added != consumed:
                raise StoreError(f"store {store!r}: the changes to write are not sorted by key, each key once")
        if len(gone) + consumed < len(changes):
            for key, value in changes:
                if value is not None and len(key) >= SHORT:
                    keys.put(transaction, database, key, value)
