"""StoreBackend: the interface of a store backend: ordered bytes on this host, with one atomic write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

Change = tuple[bytes, bytes | None]
"""A key and its new value; None deletes the key."""
Changes = Mapping[str, Sequence[Change]]
"""The changed rows of each store by name, sorted by key, each key once."""


def in_key_order(rows: Mapping[bytes, bytes | None]) -> list[Change]:
    """Return the changes of one store, sorted by key."""
    # By the keys alone: where they are in no order, to compare whole pairs takes longer.
    return sorted(rows.items(), key=itemgetter(0))


_FIRST_CHUNK, _CHUNK, _CHUNK_BYTES = 32, 1024, 1 << 20
_PORTION, _PORTION_BYTES = 10_000, 4 << 20


def in_chunks(
    read: Callable[[str, bytes | None, bytes | None, bool, int, object], Sequence[tuple[bytes, bytes]]],
    store: str,
    start: bytes | None,
    end: bytes | None,
    reverse: bool,
    kept: dict[object, Any] | None = None,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a range that `read` returns in chunks, so that nothing need stay open between two steps.

    `read` gets the store, the bounds of what is left, `reverse`, how many entries to return at most (more each time, up
    to about a megabyte), and a token of this iterator: what it puts into `kept` under that is taken out at the end,
    also where the iterator is dropped.
    """
    size, token = _FIRST_CHUNK, object()
    try:
        while True:
            chunk = read(store, start, end, reverse, size, token)
            yield from chunk
            if len(chunk) < size:
                return
            average = sum(len(value) for _, value in chunk) // size + 1
            size = max(1, min(4 * size, _CHUNK, _CHUNK_BYTES // average))
            if reverse:
                end = chunk[-1][0]
            else:
                start = chunk[-1][0] + b"\x00"
    finally:
        if kept is not None:
            kept.pop(token, None)


def in_portions(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield entries in lists of at most 10,000 entries and, but for the last entry of a list, four megabytes."""
    portion: list[tuple[bytes, bytes]] = []
    size = 0
    for row in rows:
        portion.append(row)
        size += len(row[0]) + len(row[1])
        if len(portion) == _PORTION or size >= _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


class StoreBackend(ABC):
    """Bytes on this host: all stores of one task that name this backend, in one directory.

    The engine calls methods from one thread at a time, but opens and restores a store in another thread than it uses it
    in. Other processes on the host may have the same directory open and read. A store's name is 1 to 249 letters,
    digits, '.', '_' or '-', and not '.' or '..'. Names that differ in case only are different stores, and no such name
    is reserved. Keys are any bytes up to at least 10 kB; values are any bytes; both may be empty. Keys are ordered as
    bytes are in Python. `penstock.testing.contracts` holds the tests that any implementation must pass.
    """

    @abstractmethod
    def version(self) -> str | None:
        """Return the version that the last `write` recorded; None for a new directory."""

    @abstractmethod
    def get(self, store: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""

    @abstractmethod
    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) for start <= key < end in key order, or reversed; None is an open end.

        The engine may write between two steps of the iterator: the results are then unspecified, but it must not fail.
        An iterator may be dropped half-way.
        """

    @abstractmethod
    def approximate_count(self, store: str) -> int:
        """Return how many keys `store` has: 0 if it has none, else an estimate from 1 on will do."""

    @abstractmethod
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        """Apply all `changes` and record `version`, in one atomic step.

        Raises StaleStoreError, and changes nothing, unless the store is at `previous`, whichever process wrote last;
        also where its files were removed or rebuilt since it was opened. After a crash the store is at `previous` or at
        `version`, never between. Both may be the same: then the content changes, the version stays. Raises StoreError,
        and changes nothing, when the disk is full.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent. A clean close makes the last write durable."""

    @abstractmethod
    def destroy(self) -> None:
        """Close and delete all files in the directory, which itself may stay, empty.

        Those of stores that were not opened now, too, and what killed processes have left. Where another process has
        rebuilt the directory since this object was opened, its files stay.
        """

    def view(self, stores: Sequence[str]) -> StoreView | None:
        """Return the present content of stores, for another thread; None if the backend has no views."""
        return None

    def write_bytes(self, store: str, changes: int) -> int:
        """Return about how many bytes of memory a write of so many changes takes beside them, for `commit_bytes`."""
        return 0

    def release(self) -> None:
        """Release resources pinned between calls, such as open transactions; the engine calls it after every batch."""
        return None

    def trusted(self) -> bool:
        """Return whether the content on disk is intact; False makes the engine rebuild it.

        A backend that does not fsync returns False after the machine went down.
        """
        return True


class StoreView(Protocol):
    """Stores of one backend as they were when the view was made, whatever is written later.

    One thread at a time uses it, not the one that uses the backend, which may write, close or destroy the backend
    meanwhile. Methods raise StoreError, or StaleStoreError if another view may succeed, when the content cannot be
    read.
    """

    version: str | None
    """The version of the content."""

    def get(self, store: str, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        ...

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) for start <= key < end in key order, or reversed; None is an open end."""
        ...

    def close(self) -> None:
        """Release everything; idempotent, and in any thread."""
        ...


class StoreBackendFactory(Protocol):
    """A class or function that opens a store backend; a plugin gives it a name.

    It may also be a `CountsFiles` or an `OpensAlone`.
    """

    def __call__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> StoreBackend:
        """Open the stores named `stores` under `directory` (which exists), making what is missing.

        Raises StoreError with the directory when it cannot. `read_only`: for a reader beside a writer, which sees the
        last commit of any process, never writes, and keeps no writer waiting.
        """
        ...


@runtime_checkable
class CountsFiles(Protocol):
    """A factory that declares the minimum number of file descriptors of an open backend.

    A runner refuses to start where the limit is too low for its tasks.
    """

    open_files: int


@runtime_checkable
class OpensAlone(Protocol):
    """A factory that says whether only one process at a time can open a directory to write.

    If so, a global store, which all processes of a host fill, is on `lmdb`.
    """

    exclusive: bool
