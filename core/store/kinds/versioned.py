"""Versioned key-value stores: the processor's interface, and the topology's declaration."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

from ...clock import Duration, duration_ms
from ...serde import Serde
from ...support.topic_config import TopicConfig
from ..specs import StoreSpec, checked_name
from ..state_store import Entries, StateStore, StoreTraits

K = TypeVar("K")
V = TypeVar("V")

_DAY_MS = 86_400_000

VALID_TO_UNDEFINED: Final = -1
"""Returned by `put` when the version is the latest one, and `VersionedRecord.valid_to` of a latest version."""
NOT_PUT: Final = -(2**63)
"""Returned by `put` when the version was older than the history, and nothing was put."""


class VersionedRecord(NamedTuple):
    """A version of a value: valid from `timestamp` until just before `valid_to`, in ms."""

    value: Any
    timestamp: int
    valid_to: int = VALID_TO_UNDEFINED


VersionedRecord.__module__ = "penstock"  # pickled values name it, so it does not follow the file


class ReadOnlyVersionedKeyValueStore(StateStore, Generic[K, V], reads_only=True):
    """The reading half of a versioned store."""

    @overload
    def get(self, key: K) -> VersionedRecord | None: ...
    @overload
    def get(self, key: K, as_of: int) -> VersionedRecord | None: ...
    @overload
    def get(self, key: K, as_of: int, to: int) -> Entries[int, VersionedRecord]: ...
    @abstractmethod
    def get(self, key: K, as_of: int | None = None, to: int | None = None) -> Any:
        """Return the latest version of `key`, or None if it is a deletion or there is none.

        With `as_of` (ms), return the version that was valid then: None if that was a deletion or there was none, and
        if `as_of` is older than the history and the latest version began later. With `to`, iterate over
        (timestamp, version) of all versions that were valid at any time from `as_of` to `to`, both included, the latest
        first.
        """


class VersionedKeyValueStore(ReadOnlyVersionedKeyValueStore[K, V]):
    """A key-value store that keeps the versions of each value, as long as its history.

    Semantics: Kafka Streams' VersionedKeyValueStore (KIP-889, KIP-968).
    """

    @abstractmethod
    def put(self, key: K, value: V | None, timestamp: int) -> int:
        """Set the value of `key` from `timestamp` (ms) on; None deletes it from then on.

        Return until when it is valid: the timestamp of the next newer version, VALID_TO_UNDEFINED if there is none,
        and NOT_PUT if `timestamp` is older than the newest one ever put minus the grace: then it is dropped.
        """

    @abstractmethod
    def delete(self, key: K, timestamp: int) -> VersionedRecord | None:
        """Delete `key` from `timestamp` on; return the version that was valid then, or None."""


@dataclass(frozen=True)
class VersionedStoreSpec(StoreSpec):
    """Declares a versioned key-value store; `versioned_store` makes one. Times are in ms."""

    kind = "versioned"

    history_retention_ms: int
    grace_ms: int
    key_serde: str | Serde[Any] | None = None
    value_serde: str | Serde[Any] | None = None

    @property
    def traits(self) -> StoreTraits:
        return StoreTraits(
            is_indexed=True,
            topic_config={"min.compaction.lag.ms": str(self.history_retention_ms + _DAY_MS)},
        )


def versioned_store(
    name: str,
    *,
    history_retention: Duration,
    grace: Duration | None = None,
    key_serde: str | Serde[Any] | None = None,
    value_serde: str | Serde[Any] | None = None,
    backend: str | None = None,
    logged: bool = True,
    topic_config: TopicConfig | None = None,
) -> VersionedStoreSpec:
    """Declare a versioned store, for `Topology.add_processor(..., stores=[...])` or `Topology.add_store`.

    `history_retention` is how long versions can be looked up after a newer one replaced them, counted back from the
    newest timestamp put. Versions that are more than `grace` (None: the history) older than that are not put. The other
    options are those of `key_value_store`. Raises StoreError for a wrong name, and ConfigError for a wrong duration.
    Semantics: Kafka Streams' `Stores.persistentVersionedKeyValueStore`.

    >>> versioned_store("prices", history_retention="1h").history_retention_ms
    3600000
    """
    checked_name("versioned_store", name)
    history_ms = duration_ms(history_retention, f"history_retention of store {name!r}")
    grace_ms = history_ms if grace is None else duration_ms(grace, f"grace of store {name!r}")
    return VersionedStoreSpec(
        name,
        history_ms,
        min(grace_ms, history_ms),
        key_serde,
        value_serde,
        backend=backend,
        logged=logged,
        topic_config=topic_config or {},
    )
