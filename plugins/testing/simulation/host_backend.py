"""HostBackend: the way of a simulated host to the stores on its machine; faults strike at each write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock import StoreBackend, StoreError, StoreView
from penstock.store import Changes

from .failure import SimulatedDiskError

StoreEdge = Callable[[str, Callable[[], Any]], Any]
"""(what a host does, the call that does it) -> what the call returns; a fault may strike before or after it."""


class HostBackend(StoreBackend):
    """Another backend, with a fault at a write where `edge` has one for it."""

    def __init__(self, below: StoreBackend, edge: StoreEdge) -> None:
        self._below = below
        self._edge = edge

    def version(self) -> str | None:
        return self._below.version()

    def get(self, store: str, key: bytes) -> bytes | None:
        return self._below.get(store, key)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._below.range(store, start, end, reverse=reverse)

    def approximate_count(self, store: str) -> int:
        return self._below.approximate_count(store)

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        rows = sum(map(len, changes.values()))
        try:
            self._edge(
                f"keeps {rows} row{'' if rows == 1 else 's'} at {version}",
                lambda: self._below.write(changes, previous, version),
            )
        except SimulatedDiskError as error:
            raise StoreError(f"the simulated local state has no room: {error}") from error

    def view(self, stores: Sequence[str]) -> StoreView | None:
        return self._below.view(stores)

    def write_bytes(self, store: str, changes: int) -> int:
        return self._below.write_bytes(store, changes)

    def release(self) -> None:
        self._below.release()

    def trusted(self) -> bool:
        return self._below.trusted()

    def close(self) -> None:
        self._below.close()

    def destroy(self) -> None:
        self._below.destroy()
