"""BytesStore and StoreContext: the engine's interfaces on which a kind of store is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from ..serde import Serde
from ..support.repeats import Repeats
from .record_cache import RecordCache


@runtime_checkable
class BytesStore(Protocol):
    """One store as ordered bytes, uncommitted changes included; the base of every kind of store."""

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
        """Delete expired keys with the next commit. `locally`: write no tombstones to a changelog topic."""
        ...

    def sweep(self, start: bytes | None, end: bytes, limit: int) -> bool:
        """Free up to `limit` entries of start <= key < end that have expired; return whether there may be more.

        The next commit that changes state deletes them: on this host, and in a changelog of compacted topics, where
        nothing else would. A changelog directory does not have that. So a store may free only entries that it hides
        from then on by itself, also after a restore.
        """
        ...

    def approximate_count(self) -> int:
        """Return about how many keys there are."""
        ...


class IndexStore(BytesStore, Protocol):
    """The index of a store, derived from the store's rows."""

    def save(self) -> None:
        """Write all puts so far at once, not with the next commit; only while the store is being opened."""
        ...


class StoreContext(Protocol):
    """The task that a store is built for. `repeats` writes log lines that every record may cause."""

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
        restore does), the engine deletes that row. Until it is rebuilt, the index may have stale rows and miss others.
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
