"""Snapshot: stores of one task at one committed version, for one query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from penstock import Commit, StoreBackend, StoreError, StoreView, TopicPartition, version_counter
from penstock.store import Changes
from penstock.store.kept_store import KeptStore


@dataclass
class Snapshot:
    """A store of a task at `version`; None: the task has not committed yet, so the store is empty.

    `commit`: a commit of that version or an earlier one; its positions are reached. `confirmed_at`: when (seconds of
    the world's stopwatch) the log had no later version; None if that is unknown. Close it soon: a store backend keeps
    what it shows.
    """

    task: str
    version: str | None
    kept: KeptStore
    commit: Commit | None
    confirmed_at: float | None
    backend: StoreBackend

    @property
    def counter(self) -> int:
        """The number of the version; -1 before the first one."""
        return -1 if self.version is None else version_counter(self.version)

    def has(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Return whether the records before `positions` are known to be processed."""
        reached = {} if self.commit is None else self.commit.positions
        return all(reached.get(partition, 0) >= offset for partition, offset in positions.items())

    def close(self) -> None:
        """Release what it shows; idempotent."""
        self.backend.close()


class ViewBackend(StoreBackend):
    """A view as a store backend, to read; `release` closes it. `count`: returns about how many entries a table has."""

    def __init__(self, view: StoreView, release: Callable[[], None], count: Callable[[str], int] | None = None) -> None:
        self._view = view
        self._release: Callable[[], None] | None = release
        self._count = count

    def version(self) -> str | None:
        return self._view.version

    def get(self, store: str, key: bytes) -> bytes | None:
        return self._view.get(store, key)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._view.range(store, start, end, reverse=reverse)

    def approximate_count(self, store: str) -> int:
        return sum(1 for _ in self._view.range(store)) if self._count is None else self._count(store)

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        raise StoreError(f"{', '.join(sorted(changes)) or 'a store'}: a query reads, and writes nothing")

    def show(self, other: ViewBackend) -> None:
        """Show the view of another one from now on; only that one closes it."""
        self._view, self._count, self._release = other._view, other._count, None

    def close(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def destroy(self) -> None:
        self.close()
