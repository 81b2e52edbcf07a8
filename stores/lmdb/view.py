"""LmdbView: the content of an LMDB environment at one commit, read by another thread than that which writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import lmdb

from penstock import StaleStoreError, StoreView
from penstock.store import in_chunks

from . import keys, registry
from .environment import SharedEnvironment

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
