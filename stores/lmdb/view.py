"""LmdbView: the content of an LMDB environment at one commit, read by another thread than that which writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import lmdb

from penstock import StaleStoreError, StoreView

from . import keys, registry
from .environment import SharedEnvironment

_CHUNK = 1024


class LmdbView(StoreView):
    """One read transaction. LMDB keeps the pages of its commit until it ends.

    It keeps the environment open when the backend is closed. It reads in chunks, between which the environment may be
    unmapped: to be destroyed, or to map it larger. Then the transaction cannot be used any more.
    """

    def __init__(self, shared: SharedEnvironment, databases: Mapping[str, Any]) -> None:
        self._shared: SharedEnvironment | None = shared
        self._databases = databases
        self._transaction = shared.begin()
        self._mapping = shared.mapping
        self.version = shared.version_in(self._transaction)
        registry.share(shared)

    def range(self, store: str) -> Iterator[tuple[bytes, bytes]]:
        start: bytes | None = None
        while True:
            chunk = self._chunk(store, start)
            yield from chunk
            if len(chunk) < _CHUNK:
                return
            start = chunk[-1][0] + b"\x00"

    def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            with shared.unmapping:
                self._transaction = None
            registry.release(shared)

    def _chunk(self, store: str, start: bytes | None) -> list[tuple[bytes, bytes]]:
        shared, database = self._shared, self._databases[store]
        if shared is None:
            raise StaleStoreError("a view of a store was used after it was closed")
        if database is None:
            return []
        with shared.unmapping:
            if shared.mapping != self._mapping:
                raise StaleStoreError(f"store directory {shared.directory}: it was closed, or made larger, meanwhile")
            try:
                return list(islice(keys.scan(self._transaction, database, start, None, False), _CHUNK))
            except lmdb.Error as error:
                raise shared.explain(error) from error
