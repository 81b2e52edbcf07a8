"""Session stores: the processor's interface, and the topology's declaration."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ...clock import Duration
from ...record import Windowed
from ...serde import Serde
from ...support.topic_config import TopicConfig
from ..specs import StoreSpec, bucket_ms, checked_name, positive_ms
from ..state_store import Entries, StateStore, StoreTraits

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlySessionStore(StateStore, Generic[K, V], reads_only=True):
    """The reading half of a session store.

    Times are in ms since the epoch. Sessions that end at or before the newest end ever put minus the retention have
    expired, and are not returned. Sessions of a key are returned by their end, then their start.
    Semantics: Kafka Streams' ReadOnlySessionStore.
    """

    @abstractmethod
    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        """Return the value of the session of `key` from `start` to `end`, or None."""

    def fetch(self, key: K) -> Entries[Windowed, V]:
        """Iterate over all sessions of `key`, the earliest first."""
        return self.find_sessions(key, 0, 2**63 - 1)

    def backward_fetch(self, key: K) -> Entries[Windowed, V]:
        """Iterate over all sessions of `key`, the latest first."""
        return self.backward_find_sessions(key, 0, 2**63 - 1)

    def fetch_range(self, key_from: K | None, key_to: K | None) -> Entries[Windowed, V]:
        """Iterate over all sessions of key_from <= key <= key_to, by key; None is an open end."""
        return self.find_sessions_range(key_from, key_to, 0, 2**63 - 1)

    def backward_fetch_range(self, key_from: K | None, key_to: K | None) -> Entries[Windowed, V]:
        """Iterate as `fetch_range` does, in the opposite order."""
        return self.backward_find_sessions_range(key_from, key_to, 0, 2**63 - 1)

    @abstractmethod
    def find_sessions(self, key: K, earliest_session_end: int, latest_session_start: int) -> Entries[Windowed, V]:
        """Iterate over the sessions of `key` that overlap a time, the earliest first.

        These end at `earliest_session_end` or later, and start at `latest_session_start` or earlier.
        """

    @abstractmethod
    def backward_find_sessions(
        self, key: K, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, V]:
        """Iterate as `find_sessions` does, the latest first."""

    @abstractmethod
    def find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, V]:
        """Iterate as `find_sessions` does, over key_from <= key <= key_to, by key; None is an open end."""

    @abstractmethod
    def backward_find_sessions_range(
        self, key_from: K | None, key_to: K | None, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, V]:
        """Iterate as `find_sessions_range` does, in the opposite order."""

    @abstractmethod
    def approximate_count(self) -> int:
        """Return about how many sessions there are; expired ones count until they are freed."""


class SessionStore(ReadOnlySessionStore[K, V]):
    """A value for each key and session. A put of a session that has expired already is dropped and counted.

    Semantics: Kafka Streams' SessionStore.
    """

    @abstractmethod
    def put(self, session: Windowed, value: V | None) -> None:
        """Set the value of `session`; None removes it."""

    def remove(self, session: Windowed) -> None:
        """Remove `session`."""
        self.put(session, None)


@dataclass(frozen=True)
class SessionStoreSpec(StoreSpec):
    """Declares a session store; `session_store` makes one. `retention_ms` is in ms."""

    kind = "session"

    retention_ms: int
    key_serde: str | Serde[Any] | None = None
    value_serde: str | Serde[Any] | None = None
    cached: bool = field(default=False, kw_only=True)
    headers: bool = field(default=False, kw_only=True)

    @property
    def traits(self) -> StoreTraits:
        return StoreTraits(timestamped=self.headers, fixed_options={"bucket_ms": bucket_ms(self.retention_ms)})


def session_store(
    name: str,
    *,
    retention: Duration,
    key_serde: str | Serde[Any] | None = None,
    value_serde: str | Serde[Any] | None = None,
    cached: bool = False,
    headers: bool = False,
    backend: str | None = None,
    logged: bool = True,
    topic_config: TopicConfig | None = None,
) -> SessionStoreSpec:
    """Declare a session store, for `Topology.add_processor(..., stores=[...])` or `Topology.add_store`.

    `retention` is how long sessions are kept, counted back from the newest end of a session. With `headers`, values are
    `ValueTimestampHeaders`. The other options are those of `key_value_store`. Raises StoreError for a wrong name, and
    ConfigError for a wrong duration.
    Semantics: Kafka Streams' `Stores.persistentSessionStore`.

    >>> session_store("visits", retention="1h").retention_ms
    3600000
    """
    checked_name("session_store", name)
    retention_ms = positive_ms(retention, "retention", name)
    return SessionStoreSpec(
        name,
        retention_ms,
        key_serde,
        value_serde,
        cached=cached,
        headers=headers,
        backend=backend,
        logged=logged,
        topic_config=topic_config or {},
    )
