"""The `memory` store backend: state in this process, for tests and small stores that are restored at every start."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Self

from penstock import StaleStoreError, StoreBackend, StoreError, StoreView
from penstock.store import Changes

from .sorted_keys import SortedKeys

Saved = tuple[str | None, Mapping[str, Mapping[bytes, bytes]]]
"""The version of a directory, and its rows by store."""


class MemoryBackend(StoreBackend):
    """Stores in the memory of this process.

    A directory that is opened again in this process has its content from when it was closed. Other processes, and
    the next one, find an empty store, which the engine restores from the changelog.
    """

    def __init__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> None:
        self._directory = os.path.realpath(directory)
        self._read_only = read_only
        contents = _contents.get(self._directory)
        if contents is None:
            contents = _Contents()
            if not read_only:
                _contents[self._directory] = contents
        for name in stores:
            contents.tables.setdefault(name, _Table())
        self._contents: _Contents | None = contents
        self._tables = {name: contents.tables[name] for name in stores}

    @classmethod
    def ephemeral(cls, stores: Sequence[str]) -> Self:
        """Return a backend without a directory, which ends with the last reference to it."""
        backend = cls(Path(f"ephemeral-{next(_numbers)}"), stores)
        del _contents[backend._directory]
        return backend

    @staticmethod
    def forget(directory: Path) -> None:
        """Drop the content of `directory` and of every one under it; no backend may have it open."""
        for place in _under(directory):
            del _contents[place]

    @staticmethod
    def saved(directory: Path) -> dict[str, Saved]:
        """Return a copy of the content of `directory` and of every one under it, by its path."""
        return {place: contents.saved() for place, contents in _under(directory).items()}

    @staticmethod
    def versions(directory: Path) -> dict[str, str | None]:
        """Return the version of `directory` and of every one under it, by its path."""
        return {place: contents.version for place, contents in _under(directory).items()}

    @staticmethod
    def put_back(saved: Mapping[str, Saved]) -> None:
        """Let directories have a content of before, as after a crash of a machine; no backend may have them open."""
        for place, (version, tables) in saved.items():
            contents = _contents[place] = _Contents()
            contents.version = version
            for name, values in tables.items():
                contents.tables[name] = _Table()
                contents.tables[name].values.update(values)

    @staticmethod
    def bytes_under(directory: Path) -> int:
        """Return the bytes of all keys and values that this process has of `directory` and everything under it."""
        root = os.path.realpath(directory)
        return sum(
            len(key) + len(value)
            for each, contents in _contents.items()
            if Path(each).is_relative_to(root)
            for table in contents.tables.values()
            for key, value in table.values.items()
        )

    def version(self) -> str | None:
        return self._open().version

    def get(self, store: str, key: bytes) -> bytes | None:
        try:
            return self._tables[store].values.get(key)
        except KeyError:
            self._table(store)
            raise

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        table = self._table(store)
        values = table.values
        for key in table.order().range(start, end, reverse=reverse):
            value = values.get(key)
            if value is not None:
                yield key, value

    def approximate_count(self, store: str) -> int:
        return len(self._table(store).values)

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        contents = self._open()
        if self._read_only:
            raise StoreError(f"store directory {self._directory}: opened for reading only; open it without read_only")
        if contents.is_destroyed:
            raise StaleStoreError(
                f"store directory {self._directory}: it was deleted since it was opened: re-open the task"
            )
        if contents.version != previous:
            raise StaleStoreError(
                f"store directory {self._directory}: expected version {previous}, found {contents.version}; "
                "another process wrote it: re-open the task"
            )
        tables = {name: self._table(name) for name in changes}
        with contents.writing:
            for name, table in tables.items():
                table.apply(changes[name])
            contents.version = version

    def view(self, stores: Sequence[str]) -> StoreView:
        contents = self._open()
        with contents.writing:
            return _View(contents, {name: self._table(name) for name in stores})

    def close(self) -> None:
        self._contents = None
        self._tables = {}

    def destroy(self) -> None:
        if self._contents is not None:
            if _contents.get(self._directory) is self._contents:
                del _contents[self._directory]
            # Who else has it open reads on what it was, as from deleted files, and finds out when it writes.
            self._contents.version, self._contents.is_destroyed = None, True
        self.close()

    def _open(self) -> _Contents:
        if self._contents is None:
            raise StoreError(f"store directory {self._directory}: used after it was closed")
        return self._contents

    def _table(self, store: str) -> _Table:
        contents = self._open()
        if store not in self._tables:
            raise StoreError(
                f"store {store!r} was not opened in {self._directory}; opened: "
                f"{', '.join(sorted(self._tables)) or 'none'}"
            )
        return contents.tables[store]


class _View(StoreView):
    """A snapshot of stores' values. The first write after it copies them, and leaves the snapshot's unchanged."""

    def __init__(self, contents: _Contents, tables: dict[str, _Table]) -> None:
        self.version = contents.version
        self._contents = contents
        self._tables = tables
        self._stores = {name: table.values for name, table in tables.items()}
        self._sorted: dict[str, list[bytes]] = {}
        for table in tables.values():
            table.views += 1

    def get(self, store: str, key: bytes) -> bytes | None:
        return self._open(store).get(key)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        values = self._open(store)
        keys = self._sorted.get(store)
        if keys is None:
            keys = self._sorted[store] = self._tables[store].sorted_keys(values)
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if end is None else bisect_left(keys, end)
        places = range(last - 1, first - 1, -1) if reverse else range(first, last)
        for key in (keys[place] for place in places):
            yield key, values[key]

    def close(self) -> None:
        stores, self._stores = self._stores, {}
        with self._contents.writing:
            for name, values in stores.items():
                if self._tables[name].values is values:
                    self._tables[name].views -= 1

    def _open(self, store: str) -> dict[bytes, bytes]:
        try:
            return self._stores[store]
        except KeyError:
            raise StaleStoreError(f"a view was used after it was closed, or has no store {store!r}") from None


class _Table:
    """One store: its values, and its keys in order from the first range scan on. `views`: open views of the values."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.views = 0
        self._order: SortedKeys | None = None
        self._sorted: tuple[dict[bytes, bytes], list[bytes]] | None = None

    def sorted_keys(self, values: dict[bytes, bytes]) -> list[bytes]:
        """Return the sorted keys of a view; the next view of the same values reuses them."""
        found = self._sorted
        if found is None or found[0] is not values:
            found = values, sorted(values)
            if self.values is values:
                self._sorted = found
        return found[1]

    def order(self) -> SortedKeys:
        if self._order is None:
            self._order = SortedKeys(self.values)
        return self._order

    def apply(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._begin_change()
        values, order = self.values, self._order
        if order is not None and len(changes) > len(order) // 8:
            order = self._order = None  # sorting again costs less
        for key, value in changes:
            if value is None:
                if values.pop(key, None) is not None and order is not None:
                    order.remove(key)
            else:
                if order is not None and key not in values:
                    order.add(key)
                values[key] = value

    def _begin_change(self) -> None:
        self._sorted = None
        if self.views:
            self.values, self.views = dict(self.values), 0


class _Contents:
    """Everything in one directory. `writing`: held while it is written, and while a view is made or closed."""

    def __init__(self) -> None:
        self.writing = threading.Lock()
        self.version: str | None = None
        self.is_destroyed = False
        self.tables: dict[str, _Table] = {}

    def saved(self) -> Saved:
        return self.version, {name: dict(table.values) for name, table in self.tables.items()}


def _under(directory: Path) -> dict[str, _Contents]:
    top = os.path.realpath(directory)
    return {place: found for place, found in _contents.items() if f"{place}{os.sep}".startswith(f"{top}{os.sep}")}


_contents: dict[str, _Contents] = {}
"""By directory: the content of a real disk, for this process."""
_numbers = count()
"""Of ephemeral backends."""
