"""Key-value stores: the processor's interface, and the topology's declarations, those of maps of a bounded size too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ...clock import Duration, PunctuationType
from ...errors import ConfigError, StoreError
from ...serde import Serde
from ...support.topic_config import TopicConfig
from ..specs import StoreSpec, checked_name, positive_ms
from ..state_store import Entries, StateStore, StoreTraits, ValueAndTimestamp, ValueTimestampHeaders

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyKeyValueStore(StateStore, Generic[K, V], reads_only=True):
    """The reading half of a key-value store. Order is that of the serialized keys."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of `key`, or None. Raises StoreError for a key of None."""

    @abstractmethod
    def range(self, start: K | None = None, end: K | None = None) -> Entries[K, V]:
        """Iterate over start <= key <= end, both ends included; None is an open end."""

    @abstractmethod
    def reverse_range(self, start: K | None = None, end: K | None = None) -> Entries[K, V]:
        """Iterate as `range` does, from the highest key down."""

    @abstractmethod
    def prefix_scan(self, prefix: Any, serde: Serde[Any] | None = None) -> Entries[K, V]:
        """Iterate over keys whose bytes start with `prefix`, serialized with `serde` (default: the key's)."""

    def all(self) -> Entries[K, V]:
        """Iterate over everything."""
        return self.range()

    def reverse_all(self) -> Entries[K, V]:
        """Iterate over everything, from the highest key down."""
        return self.reverse_range()

    @abstractmethod
    def approximate_count(self) -> int:
        """Return about how many keys there are."""


class KeyValueStore(ReadOnlyKeyValueStore[K, V]):
    """A key-value store. A value of None is no value: putting it deletes the key.

    Semantics: Kafka Streams' KeyValueStore. What `get` returns is yours: changing it changes nothing
    in the store until it is put.
    """

    @abstractmethod
    def put(self, key: K, value: V | None) -> None:
        """Set the value of `key`; None deletes it."""

    def put_if_absent(self, key: K, value: V | None) -> V | None:
        """Set the value of `key` unless it has one; return the previous value."""
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """Set the values of several keys."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: K) -> V | None:
        """Delete `key`; return the value it had."""
        old = self.get(key)
        if old is not None:
            self.put(key, None)
        return old


class ExpiringKeyValueStore(KeyValueStore[K, V]):
    """A key-value store whose entries may expire: one declared with `ttl`, or with `expires=True`.

    From the moment on at which the store's clock reaches an entry's expiry, the entry is gone for every method. A put
    of the key begins anew.
    """

    @abstractmethod
    def put(self, key: K, value: V | None, ttl: Duration | None = None) -> None:
        """Set the value of `key`; None deletes it. `ttl` is how long it stays (None: the store's TTL, or for ever).

        Raises ConfigError for a `ttl` that is no duration of at least 1 ms. What is put before the first record, when
        stream time is not known, does not expire on it.
        """


class TimestampedKeyValueStore(KeyValueStore[K, ValueAndTimestamp]):
    """A key-value store whose values are `ValueAndTimestamp`."""


class HeadersKeyValueStore(KeyValueStore[K, ValueTimestampHeaders]):
    """A key-value store whose values are `ValueTimestampHeaders`.

    Semantics: Kafka Streams' TimestampedKeyValueStoreWithHeaders (KIP-1271).
    """


@dataclass(frozen=True)
class KeyValueStoreSpec(StoreSpec):
    """Declares a key-value store.

    `key_serde` and `value_serde` are serdes or names of installed ones (None: the default state serde,
    msgpack). `timestamped` stores hold `ValueAndTimestamp`, those with `headers` `ValueTimestampHeaders`.
    `ttl_ms` (written as a duration in `key_value_store`) hides and removes entries that old on `ttl_clock`. `expires`:
    entries may have a TTL of their own.
    """

    kind = "key_value"

    key_serde: str | Serde[Any] | None = None
    value_serde: str | Serde[Any] | None = None
    timestamped: bool = False
    ttl_ms: int | None = None
    ttl_clock: PunctuationType = PunctuationType.STREAM_TIME
    expires: bool = False
    cached: bool = field(default=False, kw_only=True)
    headers: bool = field(default=False, kw_only=True)

    @property
    def traits(self) -> StoreTraits:
        return StoreTraits(
            timestamped=self.timestamped or self.headers, expires=self.expires or self.ttl_ms is not None
        )


def key_value_store(
    name: str,
    *,
    key_serde: str | Serde[Any] | None = None,
    value_serde: str | Serde[Any] | None = None,
    timestamped: bool = False,
    headers: bool = False,
    ttl: Duration | None = None,
    ttl_clock: PunctuationType = PunctuationType.STREAM_TIME,
    expires: bool = False,
    cached: bool = False,
    backend: str | None = None,
    logged: bool = True,
    topic_config: TopicConfig | None = None,
) -> KeyValueStoreSpec:
    """Declare a key-value store, for `Topology.add_processor(..., stores=[...])` or `Topology.add_store`.

    Serdes are those of the state (None: the application's `state_serde`). A `timestamped` store holds
    `ValueAndTimestamp`, and one with `headers` holds `ValueTimestampHeaders`: either may be switched on or off later.
    A `cached` store has a record cache: of several updates of a key, a flush listener gets the
    last one (`ProcessorContext.set_flush_listener`). `ttl` is a duration of `ttl_clock` (STREAM_TIME or
    WALL_CLOCK_TIME) after which an entry is gone, counted from when it was put. With it, or with `expires=True` alone,
    the store is an `ExpiringKeyValueStore`.
    `backend` names an installed store backend (None: the application's). A store that is not `logged` is lost with this
    host. `topic_config`: settings by Kafka's names with which its changelog topic is created. `name` is 1 to 249
    letters, digits, '.', '_' or '-'; names that differ in case only are different stores.
    Raises StoreError for another name, and ConfigError for a `ttl` that is not a duration above 0 or another clock.

    >>> key_value_store("visits", ttl="1h").ttl_ms
    3600000
    """
    checked_name("key_value_store", name)
    ttl_ms = None if ttl is None else positive_ms(ttl, "ttl", name, "; None keeps entries for ever")
    if not isinstance(ttl_clock, PunctuationType):
        raise ConfigError(f"ttl_clock of store {name!r}: expected STREAM_TIME or WALL_CLOCK_TIME, found {ttl_clock!r}")
    return KeyValueStoreSpec(
        name,
        key_serde,
        value_serde,
        timestamped,
        ttl_ms,
        ttl_clock,
        expires,
        cached=cached,
        headers=headers,
        backend=backend,
        logged=logged,
        topic_config=topic_config or {},
    )


@dataclass(frozen=True)
class LruMapSpec(StoreSpec):
    """Declares a key-value store of at most `max_entries` entries; `lru_map` makes one."""

    kind = "lru_map"

    max_entries: int
    key_serde: str | Serde[Any] | None = None
    value_serde: str | Serde[Any] | None = None


def lru_map(
    name: str,
    *,
    max_entries: int,
    key_serde: str | Serde[Any] | None = None,
    value_serde: str | Serde[Any] | None = None,
    backend: str | None = None,
    logged: bool = True,
    topic_config: TopicConfig | None = None,
) -> LruMapSpec:
    """Declare a key-value store that drops the least recently used entry when it has more than `max_entries`.

    A put uses an entry, and so does a `get` that finds it; scans do not. The dropped entry is deleted in the changelog
    as well. After the task was opened again, or a commit failed, the order is that of the last puts. The keys of all
    entries are in memory. The other options are those of `key_value_store`. Raises StoreError for a wrong name or
    number. Semantics: Kafka Streams' `Stores.lruMap`.

    >>> lru_map("recent", max_entries=1000).max_entries
    1000
    """
    checked_name("lru_map", name)
    if type(max_entries) is not int or max_entries < 1:
        raise StoreError(f"lru_map {name!r}: expected max_entries as a whole number above 0, found {max_entries!r}")
    return LruMapSpec(
        name,
        max_entries,
        key_serde,
        value_serde,
        backend=backend,
        logged=logged,
        topic_config=topic_config or {},
    )
