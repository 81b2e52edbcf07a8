"""State stores: what a backend author writes, what a processor sees, and what a topology declares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

from .record_cache import RecordCache
from .repeats import Repeats
from .serde import Serde
from .store_traits import StoreTraits
from .store_view import StoreView

K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)

Change = tuple[bytes, bytes | None]
"""A key and its new value; None deletes the key."""
Changes = Mapping[str, Sequence[Change]]
"""For each store by name: what changed, sorted by key, each key once."""


class StoreBackend(ABC):
    """Bytes on this host: all stores of one task that name this backend, in one directory.

    The engine calls methods from one thread at a time, but opens and restores a store in another thread than it uses it
    in. Other processes on the host may have the same directory open and read. A store's name is 1 to 249 letters,
    digits, '.', '_' or '-', and not '.' or '..'. Names that differ in case only are different stores, and no such name
    is reserved. Keys are any bytes up to at least 10 kB; values are any bytes; both may be empty. Keys are ordered as
    bytes are in Python. `penstock.plugins.testing.contracts` holds the tests that any implementation must pass.
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

        The engine may write between two steps of the iterator: what it yields then is unspecified, but it must not
        fail. An iterator may be dropped half-way.
        """

    @abstractmethod
    def approximate_count(self, store: str) -> int:
        """Return how many keys `store` has: 0 if it has none, else an estimate from 1 on will do."""

    @abstractmethod
    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        """Apply all `changes` and record `version`, in one atomic step.

        Raises StaleStoreError, and changes nothing, unless the store is at `previous`. After a crash the store is at
        `previous` or at `version`, never between. Both may be the same: then the content changes, the version stays.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent. A clean close makes what was written last."""

    @abstractmethod
    def destroy(self) -> None:
        """Close and delete the stores' files; the directory itself may stay, empty."""

    def view(self, stores: Sequence[str]) -> StoreView | None:
        """Return the present content of stores, for another thread; None: the engine reads it with `range` instead."""
        return None

    def write_bytes(self, store: str, changes: int) -> int:
        """Return about how many bytes of memory a write of so many changes takes beside them, for `commit_bytes`."""
        return 0

    def release(self) -> None:
        """Free what pins resources between calls, such as open transactions; the engine calls it after every batch."""
        return None

    def trusted(self) -> bool:
        """Return whether the content on disk is intact; False makes the engine rebuild it.

        A backend that does not fsync returns False after the machine went down.
        """
        return True


class StoreBackendFactory(Protocol):
    """A class or function that opens a store backend; a plugin gives it a name.

    It may have attributes: `open_files`, how many file descriptors an open backend needs at least (a runner refuses to
    start where the limit is too low for its tasks), and `exclusive`, True if one process at a time opens a directory to
    write: a global store, which all processes of a host fill, is then on `lmdb`.
    """

    def __call__(self, directory: Path, stores: Sequence[str], *, read_only: bool = False) -> StoreBackend:
        """Open the stores named `stores` under `directory` (which exists), making what is missing.

        Raises StoreError with the directory when it cannot. `read_only`: for a reader beside a writer; never writes.
        """
        ...


@runtime_checkable
class BytesStore(Protocol):
    """One store as ordered bytes, uncommitted changes included; what every kind of store is built on."""

    name: str

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        ...

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set the value of `key`; None deletes it."""
        ...

    def put_all(self, entries: Mapping[bytes, bytes | None]) -> None:
        """Set the values of several keys at once."""
        ...

    def range(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) for start <= key < end in key order, or reversed.

        Changes made while iterating are seen or not, but never break the iterator.
        """
        ...

    def free(self, keys: Iterable[bytes], *, locally: bool = False) -> None:
        """Free expired entries anywhere, as `sweep` does; with `locally`, on this host only: topics are compacted."""
        ...

    def sweep(self, start: bytes | None, end: bytes, limit: int) -> bool:
        """Free up to `limit` entries of start <= key < end that have expired; return whether there may be more.

        The next commit that changes state deletes them: on this host, and in a changelog of compacted topics, where
        nothing else would. A changelog directory does not have that. So a store may free only what it hides by itself
        from then on, also after a restore.
        """
        ...

    def approximate_count(self) -> int:
        """Return about how many keys there are."""
        ...


class IndexStore(BytesStore, Protocol):
    """The index of a store: what is in it follows from the store's rows."""

    def save(self) -> None:
        """Write what was put so far at once, and not with the next commit; only while the store is being opened."""
        ...


# ---------------------------------------------------------------- what a Processor sees


class StateStore(ABC):
    """A store that a processor can be connected to.

    A global store can be read by tasks through the methods of a base class `class ReadX(StateStore, reads_only=True)`.
    """

    name: str
    reading_half: ClassVar[type[StateStore] | None] = None

    def __init_subclass__(cls, *, reads_only: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if reads_only:
            cls.reading_half = cls

    record_cache: RecordCache | None = None
    """The cache of updates that a store has if it was declared with one."""

    def flush(self) -> None:
        """Serialize what is kept as objects into the BytesStore below; called before a commit."""
        return None

    def unflushed(self) -> int:
        """Return about how many changes `flush` would write now."""
        return 0

    def discard(self) -> None:
        """Drop what is kept as objects; called when the commit failed, or the task is re-opened."""
        return None

    def close(self) -> None:
        """Release the store's resources; called once."""
        return None


class ValueAndTimestamp(NamedTuple):
    """A stored value and the timestamp (ms) it was put with."""

    value: Any
    timestamp: int


class Entries(Protocol[K_co, V_co]):
    """An iterator of (key, value) pairs that ends by itself, or with `close()` or a `with` block."""

    def __iter__(self) -> Iterator[tuple[K_co, V_co]]: ...
    def __next__(self) -> tuple[K_co, V_co]: ...

    def close(self) -> None:
        """End here; idempotent."""
        ...

    def __enter__(self) -> Iterator[tuple[K_co, V_co]]: ...
    def __exit__(self, *error: object) -> None: ...


class StoreContext(Protocol):
    """What a store may ask of the task it is built for. `repeats` writes log lines that may come with every record."""

    application_id: str
    task_id: str
    repeats: Repeats

    def serde(self, given: str | Serde[Any] | None, store: str) -> Serde[Any]:
        """Return the serde that `given` names (None: the default state serde)."""
        ...

    @property
    def fixed_options(self) -> Mapping[str, int]:
        """The fixed options of the store's traits, as they were when it was first declared."""
        ...

    @property
    def index(self) -> IndexStore:
        """The index of a store whose traits ask for one (`StoreTraits.has_index`): ordered bytes on this host only.

        It is written in the same step as the store, and never to the changelog: a store must be able to build it from
        its rows. Its row b"" says how far it is built. In any write that brings rows from elsewhere into the store (a
        restore does), the engine deletes that row; the index may then have rows that fit nothing in the store, and lack
        others.
        """
        ...

    @property
    def record_cache(self) -> RecordCache:
        """The record cache for a store that is declared with one."""
        ...

    def stream_time(self) -> int:
        """Return the task's stream time in ms; -1 before the first record."""
        ...

    def wall_clock(self) -> int:
        """Return the task's wall clock in ms, as the driver last said."""
        ...

    @property
    def expires(self) -> bool:
        """Whether entries may carry an expiry: the traits say so, or did in an earlier program."""
        ...

    def dropped(self, reason: str, count: int = 1) -> None:
        """Count records that the store dropped (too late)."""
        ...


@runtime_checkable
class StoreBuilder(Protocol):
    """A declared store: inert data until a task builds it.

    `backend` names a store backend (None: the application's default). A `logged` store is in the changelog and survives
    the loss of this host; one that is not starts empty elsewhere.
    """

    @property
    def name(self) -> str:
        """The store's name."""
        ...

    @property
    def backend(self) -> str | None:
        """The store backend that keeps it; None for the application's default."""
        ...

    @property
    def logged(self) -> bool:
        """Whether it is in the changelog."""
        ...

    @property
    def traits(self) -> StoreTraits:
        """What the engine has to know of its content."""
        ...

    def build(self, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        """Return the store that a processor sees, on top of `bytes_store`."""
        ...
