"""Window stores: the processor's interface, and the topology's declaration."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

from ...clock import Duration
from ...errors import ConfigError
from ...record import Windowed
from ...serde import Serde
from ...support.topic_config import TopicConfig
from ..specs import StoreSpec, bucket_ms, checked_name, positive_ms
from ..state_store import Entries, StateStore, StoreTraits, ValueAndTimestamp, ValueTimestampHeaders

_MAX_TIME = 2**63 - 1
K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyWindowStore(StateStore, Generic[K, V], reads_only=True):
    """The reading half of a window store.

    All times are window starts in ms since the epoch, and ranges of them include both ends. Windows that start at or
    before the newest start ever put minus the retention have expired, and are not returned.
    Semantics: Kafka Streams' ReadOnlyWindowStore.
    """

    @overload
    def fetch(self, key: K, time_from: int) -> V | None: ...
    @overload
    def fetch(self, key: K, time_from: int, time_to: int) -> Entries[int, V]: ...
    @abstractmethod
    def fetch(self, key: K, time_from: int, time_to: int | None = None) -> Any:
        """Return the value of `key` in the window that starts at `time_from`, or None.

        With `time_to`, iterate over (window start, value) of `key`, the earliest window first.
        """

    @abstractmethod
    def backward_fetch(self, key: K, time_from: int, time_to: int) -> Entries[int, V]:
        """Iterate over (window start, value) of `key`, the latest window first."""

    @abstractmethod
    def fetch_range(self, key_from: K | None, key_to: K | None, time_from: int, time_to: int) -> Entries[Windowed, V]:
        """Iterate over (windowed key, value) of key_from <= key <= key_to, by key, then window start.

        None is an open end. Kafka Streams has no name of its own for it: `fetch(keyFrom, keyTo, timeFrom, timeTo)`.
        """

    @abstractmethod
    def backward_fetch_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int
    ) -> Entries[Windowed, V]:
        """Iterate as `fetch_range` does, in the opposite order."""

    def fetch_all(self, time_from: int, time_to: int) -> Entries[Windowed, V]:
        """Iterate over (windowed key, value) of all keys, by key, then window start."""
        return self.fetch_range(None, None, time_from, time_to)

    def backward_fetch_all(self, time_from: int, time_to: int) -> Entries[Windowed, V]:
        """Iterate as `fetch_all` does, in the opposite order."""
        return self.backward_fetch_range(None, None, time_from, time_to)

    def all(self) -> Entries[Windowed, V]:
        """Iterate over everything, by key, then window start."""
        return self.fetch_all(0, 2**63 - 1)

    def backward_all(self) -> Entries[Windowed, V]:
        """Iterate over everything, in the opposite order."""
        return self.backward_fetch_all(0, 2**63 - 1)

    @abstractmethod
    def approximate_count(self) -> int:
        """Return about how many windows there are; expired ones count until they are freed."""


class WindowStore(ReadOnlyWindowStore[K, V]):
    """A value for each key and window. A value of None is no value: putting it deletes the window.

    A put whose window has expired already is dropped and counted. If the store retains duplicates, each put adds an
    entry, and a put of None does nothing else. Semantics: Kafka Streams' WindowStore.
    """

    @abstractmethod
    def put(self, key: K, value: V | None, window_start: int) -> None:
        """Set the value of `key` in the window that starts at `window_start`; None deletes it."""


class TimestampedWindowStore(WindowStore[K, ValueAndTimestamp]):
    """A window store whose values are `ValueAndTimestamp`."""


class HeadersWindowStore(WindowStore[K, ValueTimestampHeaders]):
    """A window store whose values are `ValueTimestampHeaders`.

    Semantics: Kafka Streams' TimestampedWindowStoreWithHeaders (KIP-1271).
    """


@dataclass(frozen=True)
class WindowStoreSpec(StoreSpec):
    """Declares a window store; `window_store` makes one. Times are in ms."""

    kind = "window"

    retention_ms: int
    window_size_ms: int
    key_serde: str | Serde[Any] | None = None
    value_serde: str | Serde[Any] | None = None
    timestamped: bool = False
    retain_duplicates: bool = False
    cached: bool = field(default=False, kw_only=True)
    headers: bool = field(default=False, kw_only=True)

    def end_of(self, start: int) -> int:
        """Return the end (ms) of the window that begins at `start`: `division` says it, else the size of windows."""
        end = self.division.window_end(start) if self.division.window_end is not None else None
        return min(start + self.window_size_ms if end is None else end, _MAX_TIME)

    @property
    def traits(self) -> StoreTraits:
        return StoreTraits(
            timestamped=self.timestamped or self.headers,
            fixed_options={"bucket_ms": bucket_ms(self.retention_ms), "duplicates": int(self.retain_duplicates)},
            form="with duplicates" if self.retain_duplicates else "",
        )


def window_store(
    name: str,
    *,
    retention: Duration,
    window_size: Duration,
    key_serde: str | Serde[Any] | None = None,
    value_serde: str | Serde[Any] | None = None,
    timestamped: bool = False,
    headers: bool = False,
    retain_duplicates: bool = False,
    cached: bool = False,
    backend: str | None = None,
    logged: bool = True,
    topic_config: TopicConfig | None = None,
) -> WindowStoreSpec:
    """Declare a window store, for `Topology.add_processor(..., stores=[...])` or `Topology.add_store`.

    `retention` is how long windows are kept, counted back from the newest window start; at least `window_size`, which
    is the length of a window (it sets the end of windowed keys). With `retain_duplicates`, a key may have several
    entries in a window. The other options are those of `key_value_store`. Raises StoreError for a wrong name, and
    ConfigError for a wrong duration. Semantics: Kafka Streams' `Stores.persistentWindowStore`.

    >>> window_store("hourly", retention="1d", window_size="1h").retention_ms
    86400000
    """
    checked_name("window_store", name)
    retention_ms = positive_ms(retention, "retention", name)
    window_size_ms = positive_ms(window_size, "window_size", name)
    if retention_ms < window_size_ms:
        raise ConfigError(
            f"retention of store {name!r}: expected at least its window_size ({window_size!r}), found {retention!r}: "
            "a window would expire before it ends"
        )
    return WindowStoreSpec(
        name,
        retention_ms,
        window_size_ms,
        key_serde,
        value_serde,
        timestamped,
        retain_duplicates,
        cached=cached,
        headers=headers,
        backend=backend,
        logged=logged,
        topic_config=topic_config or {},
    )
