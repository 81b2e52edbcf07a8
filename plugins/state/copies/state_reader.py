"""StateReader: the rows of a task's state at one version of its changelog, and portions of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, closing

from penstock import Restore, StoreBackend, TaskChangelog
from penstock.hooks import registry
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.store import Change, Changes
from penstock.store.backend import in_key_order

Row = tuple[str, bytes, bytes]
"""Store, key and value, as the store has them in its backend."""
_ROW_BYTES = 100
"""What a row takes in memory beside its key and value."""


class StateReader:
    """The state of a task at a version of a changelog, restored on disk because it need not fit into memory.

    `stores`: those that it may have; the rows of others are left out. Close it to free the disk. Raises ChangelogError
    if the changelog does not lead to the version, and StoreError when the disk is full.
    """

    def __init__(self, changelog: TaskChangelog, version: str, stores: Collection[str]) -> None:
        self.stores = sorted(stores)
        plan = changelog.restore(version, None)
        with ExitStack() as stack:
            directory = stack.enter_context(TemporaryDirectory("restored"))
            backend: StoreBackend = registry().load("store backend", "lmdb")(directory, self.stores)
            stack.enter_context(closing(backend))
            for changes, reached in plan.steps:
                own = {store: rows for store, rows in changes.items() if store in stores}
                backend.write(own, backend.version(), reached)
            self._backend, self._stack = backend, stack.pop_all()

    def range(self, store: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a store by key."""
        return self._backend.range(store)

    def rows(self) -> Iterator[Row]:
        """Yield all rows by store and key."""
        return ((store, key, value) for store in self.stores for key, value in self.range(store))

    def __enter__(self) -> StateReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def rows_of(plan: Restore) -> Iterator[tuple[str, bytes, bytes | None]]:
    """Yield the changes of a plan row by row; the value of a deleted row is None."""
    for changes, _ in plan.steps:
        for store, rows in changes.items():
            for key, value in rows:
                yield store, key, value


class Portion:
    """Changes of rows, collected in memory up to a size. Of several changes of a row the last one counts."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._rows: dict[str, dict[bytes, bytes | None]] = {}

    def add(self, store: str, rows: Iterable[Change]) -> None:
        """Add changes of a store."""
        of_store = self._rows.setdefault(store, {})
        for key, value in rows:
            of_store[key] = value
            self._bytes += len(key) + len(value or b"") + _ROW_BYTES

    @property
    def is_full(self) -> bool:
        """Whether it has its size."""
        return self._bytes >= self._most_bytes

    def take(self) -> Changes:
        """Return the changes, by key, and begin the next portion."""
        rows, self._rows, self._bytes = self._rows, {}, 0
        return {store: in_key_order(changed) for store, changed in rows.items()}


def portions(rows: Iterable[tuple[str, bytes, bytes | None]], most_bytes: int) -> Iterator[Changes]:
    """Yield rows in portions of about so many bytes in memory; the last one may be empty."""
    portion = Portion(most_bytes)
    for store, key, value in rows:
        portion.add(store, ((key, value),))
        if portion.is_full:
            yield portion.take()
    yield portion.take()
