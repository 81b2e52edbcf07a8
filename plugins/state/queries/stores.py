"""The stores of an application as queries see them: the reading half of each kind, over all its tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

from penstock import (
    ConfigError,
    Entries,
    ReadOnlyKeyValueStore,
    ReadOnlyListStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedKeyValueStore,
    ReadOnlyWindowStore,
    Serde,
    StateStore,
    StoreBuilder,
    VersionedRecord,
    Windowed,
)

from .changes import Changes, keys_of
from .reading import StoreReading, kind_of


class _Followed:
    """A store whose changes can be followed."""

    _reading: StoreReading

    def changes(
        self, key: Any = None, *, start: Any = None, end: Any = None, prefix: Any = None, after: str | None = None
    ) -> Changes:
        """Iterate over (key, new value) as commits change the store, from now on; see Changes.

        Of one key, of a range with both ends, of keys that begin with `prefix` (text or bytes), or of all. Commits of
        one key that follow each other within a tenth of a second may come as one change. `after`: the `position` of
        earlier changes, to continue behind them; then some may come twice. Close it, or use it in a `with` block.

        Iterating raises ChangesEndedError if the reader is too slow, or if the changes are not in the changelog any
        more. Raises ConfigError for a store that is not in the changelog, and StoreUnavailableError.
        """
        return Changes.of(self._reading, keys_of(self._reading, key, start, end, prefix), key, after)


class QueriedKeyValueStore(_Followed, ReadOnlyKeyValueStore[Any, Any]):
    """A key-value store. Ranges are in the order of the keys within each task, task after task."""

    def __init__(self, reading: StoreReading) -> None:
        self.name = reading.builder.name
        self._reading = reading

    def get(self, key: Any) -> Any:
        return self._reading.first(key, lambda store: store.get(key))

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """Return the value of each key, None where it has none; those of one task are of one version."""
        keys = list(keys)
        found: dict[int, Any] = {}
        by_task: dict[str, tuple[Any, list[int]]] = {}
        for place, key in enumerate(keys):
            for task in self._reading.tasks_of(key):
                by_task.setdefault(task.id, (task, []))[1].append(place)
        for task, places in by_task.values():
            values = self._reading.read(task, lambda store: [store.get(keys[place]) for place in places])  # noqa: B023
            for place, value in zip(places, values, strict=True):
                if value is not None:
                    found[place] = self._reading.shown(value)
        return [found.get(place) for place in range(len(keys))]

    def range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        return self._reading.each(self._reading.tasks(), lambda store: store.range(start, end))

    def reverse_range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        return self._reading.each(self._reading.tasks(), lambda store: store.reverse_range(start, end))

    def prefix_scan(self, prefix: Any, serde: Serde[Any] | None = None) -> Entries[Any, Any]:
        return self._reading.each(self._reading.tasks(), lambda store: store.prefix_scan(prefix, serde))

    def approximate_count(self) -> int:
        return self._reading.total(lambda store: store.approximate_count())


class QueriedWindowStore(_Followed, ReadOnlyWindowStore[Any, Any]):
    """A window store."""

    def __init__(self, reading: StoreReading) -> None:
        self.name = reading.builder.name
        self._reading = reading

    @overload
    def fetch(self, key: Any, time_from: int) -> Any: ...
    @overload
    def fetch(self, key: Any, time_from: int, time_to: int) -> Entries[int, Any]: ...
    def fetch(self, key: Any, time_from: int, time_to: int | None = None) -> Any:
        reading = self._reading
        if time_to is None:
            return reading.first(key, lambda store: store.fetch(key, time_from))
        return reading.each(reading.tasks_of(key), lambda store: store.fetch(key, time_from, time_to))

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Entries[int, Any]:
        reading = self._reading
        return reading.each(reading.tasks_of(key), lambda store: store.backward_fetch(key, time_from, time_to))

    def fetch_range(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> Entries[Windowed, Any]:
        given = key_from, key_to, time_from, time_to
        return self._reading.each(self._reading.tasks(), lambda store: store.fetch_range(*given))

    def backward_fetch_range(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> Entries[Windowed, Any]:
        given = key_from, key_to, time_from, time_to
        return self._reading.each(self._reading.tasks(), lambda store: store.backward_fetch_range(*given))

    def approximate_count(self) -> int:
        return self._reading.total(lambda store: store.approximate_count())


class QueriedSessionStore(_Followed, ReadOnlySessionStore[Any, Any]):
    """A session store."""

    def __init__(self, reading: StoreReading) -> None:
        self.name = reading.builder.name
        self._reading = reading

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        return self._reading.first(key, lambda store: store.fetch_session(key, start, end))

    def find_sessions(self, key: Any, earliest_session_end: int, latest_session_start: int) -> Entries[Windowed, Any]:
        reading, times = self._reading, (earliest_session_end, latest_session_start)
        return reading.each(reading.tasks_of(key), lambda store: store.find_sessions(key, *times))

    def backward_find_sessions(
        self, key: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        reading, times = self._reading, (earliest_session_end, latest_session_start)
        return reading.each(reading.tasks_of(key), lambda store: store.backward_find_sessions(key, *times))

    def find_sessions_range(
        self, key_from: Any, key_to: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        given = key_from, key_to, earliest_session_end, latest_session_start
        return self._reading.each(self._reading.tasks(), lambda store: store.find_sessions_range(*given))

    def backward_find_sessions_range(
        self, key_from: Any, key_to: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        given = key_from, key_to, earliest_session_end, latest_session_start
        return self._reading.each(self._reading.tasks(), lambda store: store.backward_find_sessions_range(*given))

    def approximate_count(self) -> int:
        return self._reading.total(lambda store: store.approximate_count())


class QueriedVersionedStore(_Followed, ReadOnlyVersionedKeyValueStore[Any, Any]):
    """A versioned store."""

    def __init__(self, reading: StoreReading) -> None:
        self.name = reading.builder.name
        self._reading = reading

    @overload
    def get(self, key: Any) -> VersionedRecord | None: ...
    @overload
    def get(self, key: Any, as_of: int) -> VersionedRecord | None: ...
    @overload
    def get(self, key: Any, as_of: int, to: int) -> Entries[int, VersionedRecord]: ...
    def get(self, key: Any, as_of: int | None = None, to: int | None = None) -> Any:
        reading = self._reading
        if to is not None:
            return reading.each(reading.tasks_of(key), lambda store: store.get(key, as_of, to))
        return reading.first(key, lambda store: store.get(key, as_of))


class QueriedListStore(ReadOnlyListStore[Any, Any]):
    """A list store."""

    def __init__(self, reading: StoreReading) -> None:
        self.name = reading.builder.name
        self._reading = reading

    def get(self, key: Any) -> list[Any]:
        return self._reading.first(key, lambda store: store.get(key) or None) or []

    def range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        return self._reading.each(self._reading.tasks(), lambda store: store.range(start, end))

    def approximate_count(self) -> int:
        return self._reading.total(lambda store: store.approximate_count())


_BY_KIND: dict[str, type[Any]] = {
    "key_value": QueriedKeyValueStore,
    "lru_map": QueriedKeyValueStore,
    "window": QueriedWindowStore,
    "session": QueriedSessionStore,
    "versioned": QueriedVersionedStore,
    "list": QueriedListStore,
}


def queried_store(reading: StoreReading) -> StateStore:
    """Return a store as its kind is read. Raises ConfigError for a kind that queries cannot read."""
    kind = kind_of(reading.builder)
    if kind not in _BY_KIND:
        raise ConfigError(f"store {reading.builder.name!r} is of the kind {kind!r}, which queries cannot read")
    made: StateStore = _BY_KIND[kind](reading)
    return made


def can_be_queried(store: StoreBuilder) -> bool:
    """Return whether queries can read the kind of a store."""
    return kind_of(store) in _BY_KIND
