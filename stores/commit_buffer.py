"""The commit buffer: a task's uncommitted changes of one store; other keys are read from the backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from operator import is_, itemgetter
from typing import Any

from penstock import StoreBackend
from penstock.compiled import records as compiled
from penstock.store import Change, IndexStore
from penstock.store.calls import StoreCalls

from .sorted_keys import SortedKeys

_MISSING: Any = object()

_TIMED = 16
"""Only one of this many reads of the backend is timed, as a sample: reading the clock twice takes time as well."""
_ENTRY_BYTES = 120
"""Bytes of a pending change beside its key and value (two bytes objects and a place in a dict)."""


class CommitBuffer(IndexStore):
    """One store of a backend, with the changes of the running commit on top.

    A commit takes `changes()`, writes them to the changelog and the backend, and then calls `clear()`. A commit
    that failed calls `clear()` as well: the backend never saw the changes, so there is nothing to undo.
    """

    def __init__(self, backend: StoreBackend, name: str) -> None:
        self.name = name
        self._backend = backend
        self._read: Callable[[str, bytes], bytes | None] = backend.get
        self._changes: dict[bytes, bytes | None] = {}
        self._size_bytes = 0
        # The first `len(_order)` keys of `_changes` in order: keys leave `_changes` only by `clear`,
        # so later keys are the last ones of the dict, and `put` need not record them.
        self._order = SortedKeys()
        self._in_backend: dict[bytes, bool] = {}
        self._swept: list[bytes] = []
        self._freed: dict[bytes, None] = {}
        self._freed_here: dict[bytes, None] = {}

    def count(self, calls: StoreCalls, seconds: Callable[[], float]) -> None:
        """Count gets that read the backend in `calls`, with their time by a stopwatch."""
        name, pending = self.name, self._changes.get
        reads = 0

        def timed(key: bytes) -> bytes | None:
            began = seconds()
            try:
                return self._read(name, key)
            finally:
                calls.read_seconds += _TIMED * (seconds() - began)

        def get(key: bytes) -> bytes | None:
            nonlocal reads
            value: bytes | None = pending(key, _MISSING)
            if value is not _MISSING:
                return value
            reads += 1
            return self._read(name, key) if reads % _TIMED else timed(key)

        calls.add_total("reads", lambda: reads)
        if compiled is not None:
            fast = compiled.read_through(get, self._changes, self, name, timed, _TIMED)
            calls.add_total("reads", lambda: fast.count)
        setattr(self, "get", get if compiled is None else fast)  # noqa: B010

    def read_from(self, backend: StoreBackend) -> None:
        """Read another backend from now on. Call it only when no change is pending."""
        self._backend = backend
        self._read = backend.get
        self.clear()

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._changes.get(key, _MISSING)
        return self._read(self.name, key) if value is _MISSING else value

    def put(self, key: bytes, value: bytes | None) -> None:
        old = self._changes.get(key, _MISSING)
        self._changes[key] = value
        size = 0 if value is None else len(value)
        if old is _MISSING:
            size += len(key) + _ENTRY_BYTES
        elif old is not None:
            size -= len(old)
        self._size_bytes += size

    def put_all(self, entries: Mapping[bytes, bytes | None]) -> None:
        changes = self._changes
        before = len(changes)
        changes.update(entries)
        # A replaced value counts twice until the commit: good enough for a limit, and it saves a look-up.
        self._size_bytes += sum(map(len, filter(None, entries.values())))
        self._size_bytes += sum(map(len, entries)) + _ENTRY_BYTES * (len(changes) - before)

    def range(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        stored = self._backend.range(self.name, start, end, reverse=reverse)
        if not self._changes:
            return stored
        self._sort()
        return self._merge(self._order, self._order.range(start, end, reverse=reverse), stored, reverse)

    def free(self, keys: Iterable[bytes], *, locally: bool = False) -> None:
        if locally:
            self._freed_here.update(dict.fromkeys(keys))
            return
        for key in keys:
            if key in self._changes:
                self.put(key, None)  # what was put since the last commit is not in the backend
            else:
                self._freed[key] = None

    def sweep(self, start: bytes | None, end: bytes, limit: int) -> bool:
        if self._swept:
            return True  # these are not gone yet: nothing has been committed since
        # Only what the backend has: an entry that was put since the last commit is swept after the next one.
        found = [key for key, _ in islice(self._backend.range(self.name, start, end), limit)]
        self._swept += (key for key in found if key not in self._changes)
        return len(found) == limit

    def approximate_count(self) -> int:
        """Return how many keys there are; as exact as the backend's count."""
        changes, known = self._changes, self._in_backend
        # In C, as a commit may change most keys of a store.
        for key in changes.keys() - known.keys():
            known[key] = self._read(self.name, key) is not None
        stored, deleted = sum(map(known.__getitem__, changes)), sum(map(is_, changes.values(), repeat(None)))
        return self._backend.approximate_count(self.name) - stored + len(changes) - deleted

    def __len__(self) -> int:
        """Return the number of keys with a pending change."""
        return len(self._changes)

    @property
    def freed(self) -> int:
        """Number of entries that the next commit deletes, because they were freed or swept."""
        return len(self._freed) + len(self._swept) + len(self._freed_here)

    @property
    def size_bytes(self) -> int:
        """About how many bytes of memory the pending changes hold."""
        return self._size_bytes

    def changes(self) -> list[Change]:
        """Return the pending changes sorted by key; they stay pending."""
        # Sorting keys alone is twice as fast as sorting pairs.
        changes = self._changes
        return [(key, changes[key]) for key in sorted(changes)]

    def local_changes(self, changes: Sequence[Change]) -> Sequence[Change]:
        """Return the changes to write to the backend: the commit's `changes`, and deletions of freed entries."""
        if self._freed_here:
            # Also what was put since the last commit: the changelog has it, this host need not.
            changes = [change for change in changes if change[0] not in self._freed_here]
        return _with_deleted([*self._unchanged_freed(), *self._freed_here], changes)

    def topic_changes(self, changes: Sequence[Change]) -> Sequence[Change]:
        """Return the changes to write to a changelog topic: the commit's `changes`, and deletions of freed entries."""
        return _with_deleted(self._unchanged_freed(), changes)

    def _unchanged_freed(self) -> list[bytes]:
        """Return the keys that were freed or swept, and not put again since."""
        changes = self._changes
        return [key for key in [*self._swept, *self._freed] if key not in changes]

    def clear(self) -> None:
        """Drop the pending changes: the backend has them, or the commit failed."""
        self._changes.clear()
        self._order = SortedKeys()
        self._in_backend.clear()
        self._swept.clear()
        self._freed.clear()
        self._freed_here.clear()
        self._size_bytes = 0

    def save(self) -> None:
        version = self._backend.version()
        if version is not None:
            self._backend.write({self.name: self.changes()}, version, version)
            self.clear()

    def _sort(self) -> None:
        new = len(self._changes) - len(self._order)
        if new:
            self._order.update(list(islice(reversed(self._changes), new)))

    def _merge(
        self, order: SortedKeys, pending: Iterator[bytes], stored: Iterator[tuple[bytes, bytes]], reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield from both in order. Each value is read when it is yielded."""
        changes = self._changes
        key = next(pending, None)
        entry = next(stored, None)
        while key is not None or entry is not None:
            if entry is not None and (key is None or (entry[0] > key if reverse else entry[0] < key)):
                which, value = entry
                entry = next(stored, None)
            else:
                assert key is not None
                which, value = key, _MISSING
                if entry is not None and entry[0] == key:
                    value = entry[1]
                    entry = next(stored, None)
                key = next(pending, None)
            # If `_order` was replaced, a commit since the scan began has written or dropped the pending changes, which
            # `stored` does not show.
            current = changes.get(which, value) if self._order is order else self.get(which)
            if current is not None:
                yield which, current


def _with_deleted(keys: Collection[bytes], changes: Sequence[Change]) -> Sequence[Change]:
    """Return `changes` and the deletion of `keys`, which are not among them, sorted."""
    if not keys:
        return changes
    # Mostly two sorted parts, which Python's sort takes as such.
    return sorted([*zip(dict.fromkeys(keys), repeat(None)), *changes], key=itemgetter(0))
