"""The stores of an application as queries see them: the reading half of each kind, over all its tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeVar, overload

from penstock import (
    Application,
    BytesSerde,
    ConfigError,
    Entries,
    Headers,
    ReadOnlyKeyValueStore,
    ReadOnlyListStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedKeyValueStore,
    ReadOnlyWindowStore,
    Serde,
    StaleStoreError,
    StateStore,
    StoreBackend,
    StoreBuilder,
    StoreSpec,
    StoreUnavailableError,
    StrSerde,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    VersionedRecord,
    Windowed,
)
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.plugins.state.copies.contents import KINDS_OF_TIMES, Entry, check_declared, key_serde, store_over
from penstock.plugins.state.copies.key_tasks import KeyTasks
from penstock.stores.kinds.row_keys import key_in_row
from penstock.stores.rows.scan import Scan

from .changes_feed import ChangesFeed
from .copies import Bounds, Copies, Snapshot, ViewBackend, WouldWait, may_wait
from .subscription import Keys, Subscription, gap_error, position_of, token_of

_MOST_BUILT = 64
"""How many stores are kept."""
_MOST_USES = 200
"""How many queries use a kept store: it keeps objects of the keys that were read."""


@dataclass
class BuiltStore:
    """A store that is built over a backend. `of`: what of its snapshot it depends on."""

    store: StateStore
    backend: StoreBackend
    of: tuple[Any, ...]
    uses: int = 1

    def end(self) -> None:
        """Take the store apart: its fast methods refer to it, so only the garbage collector would free it.

        With tens of stores a second much comes together until then, and a server answers nothing while it is freed.
        """
        getattr(self.store, "__dict__", {}).clear()


class BuiltStores:
    """Keeps a store after its query, for the next query of the same version: to build one takes longer than to read.

    Any thread calls all methods; a store has one user at a time. `now_ms` is the wall clock, by which entries expire.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._kept: dict[tuple[Any, ...], BuiltStore] = {}
        self._checked: dict[tuple[str, str], SavedTask] = {}

    def check(self, application: Application, task: SavedTask, builder: StoreBuilder) -> None:
        """Raise as `check_declared`, before a store is looked for: a server elsewhere may take a key for another."""
        place = task.id, builder.name
        if (checked := self._checked.get(place)) is task:
            return
        if checked != task and (kept := task.layouts.now.get(builder.name)) is not None:
            check_declared(application, task, builder, kept)
        self._checked[place] = task

    def take(self, application: Application, task: SavedTask, builder: StoreBuilder, found: Snapshot) -> BuiltStore:
        """Return a store over a snapshot, to be used until the snapshot is closed. Raises as `store_over`."""
        # A commit without changes of the state has the same version, and later clocks.
        commit = found.commit and (found.commit.version, found.commit.engine_state)
        of = (found.task, builder.name, found.version, commit, task.identity)
        kept = self._kept.pop(of[:2], None)
        if kept is not None and kept.of == of:
            assert isinstance(kept.backend, ViewBackend) and isinstance(found.backend, ViewBackend)
            kept.backend.show(found.backend)
            kept.uses += 1
            return kept
        if kept is not None:
            kept.end()
        store = store_over(application, task, builder, found.kept, found.backend, found.commit, self._now_ms)
        return BuiltStore(store, found.backend, of)

    def give_back(self, built: BuiltStore) -> None:
        """Keep a store for the next query."""
        if built.uses >= _MOST_USES or not isinstance(built.backend, ViewBackend):
            built.end()
            return
        others = self._kept.pop(built.of[:2], None)
        if others is None and len(self._kept) >= _MOST_BUILT:
            _, others = self._kept.popitem()
        if others is not None:
            others.end()
        self._kept[built.of[:2]] = built


T = TypeVar("T")

_MOST_TRIES = 5
"""How often a store is opened again because what was read has gone."""
_PAUSE_SECONDS = 0.05


def kind_of(store: StoreBuilder) -> str:
    """Return the kind of a declared store."""
    return store.kind if isinstance(store, StoreSpec) else "key_value"


class Opened(Protocol):
    """The stores of an application as they are opened now; its parts are others after a resharding."""

    built: BuiltStores
    """Stores that earlier queries have built."""
    feed: ChangesFeed
    """Reads the changes of stores."""
    key_tasks: Mapping[str, KeyTasks]
    """Which task has a key, by store."""

    def copies_of(self, subtopology: int) -> Copies:
        """Return the copies that have the stores of a sub-topology. Raises LogError, and WouldWait."""
        ...


@dataclass(frozen=True)
class StoreReading:
    """A store of the program, in the tasks of its sub-topology, as far as they can be read here.

    `task`: only this one. `all_tasks`: a key is looked up in each of them, because its task is not that of the records
    with the key. `timestamped`: values are as they were stored, with timestamps and headers if they have them.
    """

    queries: Opened
    subtopology: int
    builder: StoreBuilder
    bounds: Bounds
    timestamped: bool = False
    task: str | None = None
    all_tasks: bool = False

    @property
    def copies(self) -> Copies:
        """The copies that have the store now. Raises as `Opened.copies_of`."""
        return self.queries.copies_of(self.subtopology)

    @property
    def feed(self) -> ChangesFeed:
        """What reads the changes of the store now."""
        return self.queries.feed

    @property
    def application(self) -> Application:
        """The application."""
        return self.copies.application

    # ------------------------------------------------------------------ which tasks

    def tasks(self) -> Sequence[SavedTask]:
        """Return the tasks that are asked.

        Raises ConfigError for a task that does not have the store, StoreUnavailableError if the application has not run
        within the time that a call waits, LogError, and WouldWait.
        """
        return list(self._tasks().values())

    def _tasks(self) -> Mapping[str, SavedTask]:
        tasks = self.copies.awaited_tasks(self.subtopology, self.builder.name, self.bounds)
        return tasks if self.task is None else {self.task: self.copies.task(self.subtopology, self.task)}

    def tasks_of(self, key: Any, headers: Headers | None = None) -> Sequence[SavedTask]:
        """Return the tasks that may have a key and these headers. Raises as `tasks`, and ConfigError if unknown."""
        tasks = self._tasks()
        if self.all_tasks or len(tasks) == 1:
            return list(tasks.values())
        try:
            key_tasks = self.queries.key_tasks[self.builder.name]
            names = key_tasks.may_have(key, key_tasks.count_of(tasks), headers)
        except ConfigError as error:
            raise ConfigError(f"{error}: name the task, or ask all tasks") from error
        return [tasks[name] for name in names if name in tasks]

    # ------------------------------------------------------------------ opening

    @contextmanager
    def opened(self, task: SavedTask) -> Iterator[StateStore]:
        """Open the store in a task for the block. Raises as `Copies.snapshot` and `check_declared`."""
        copies, stores = self.copies, self.queries.built
        stores.check(copies.application, task, self.builder)
        with closing(copies.snapshot(task, self.builder.name, self.bounds)) as found:
            built = stores.take(copies.application, task, self.builder, found)
            yield built.store
            stores.give_back(built)

    def read(self, task: SavedTask, look: Callable[[Any], T]) -> T:
        """Return the result of `look` in a task; look again if the files were replaced meanwhile, as when they grow."""
        tries = 0
        while True:
            try:
                with self.opened(task) as store:
                    return look(store)
            except StaleStoreError as error:
                if not may_wait():
                    raise WouldWait from None
                if tries == _MOST_TRIES:
                    raise self._gone(task, error) from error
            tries += 1
            self.copies.world.sleep(_PAUSE_SECONDS)

    def first(self, key: Any, look: Callable[[Any], Any]) -> Any:
        """Return what `look` finds in the tasks that may have a key; None if nothing."""
        for task in self.tasks_of(key):
            value = self.read(task, look)
            if value is not None:
                return self.shown(value)
        return None

    def shown(self, value: Any) -> Any:
        """Return a value as the query asks for it."""
        has_more = isinstance(value, (ValueAndTimestamp, ValueTimestampHeaders)) and not self.timestamped
        return value.value if has_more else value

    def each(self, tasks: Sequence[SavedTask], scan: Callable[[Any], Any]) -> Scan:
        """Iterate over what `scan` finds in each of the tasks; each is open while it is read."""
        return Scan(self._each(tasks, scan))

    def _each(self, tasks: Sequence[SavedTask], scan: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
        for task in tasks:
            for tries in count():
                has_begun = False
                try:
                    with self.opened(task) as store:
                        for key, value in scan(store):
                            has_begun = True
                            yield key, self.shown(value)
                    break
                except StaleStoreError as error:
                    if has_begun or tries == _MOST_TRIES:
                        raise self._gone(task, error) from error
                    self.copies.world.sleep(_PAUSE_SECONDS)

    def _gone(self, task: SavedTask, error: StaleStoreError) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"store {self.builder.name!r} in task {task.id} of application {self.application.id!r}: what was read is "
            f"not there any more, ask again ({error})"
        )

    def total(self, look: Callable[[Any], int]) -> int:
        """Return the sum of the results of `look` for each task."""
        return sum(self.read(task, look) for task in self.tasks())


KINDS = ("key_value", "lru_map", *KINDS_OF_TIMES)
"""The kinds of stores whose changes can be followed: an entry of theirs is a row of the changelog."""


def keys_of(reading: StoreReading, key: Any, start: Any, end: Any, prefix: Any) -> Keys:
    """Return keys of a store: one, or a range. Raises ConfigError for ones that do not fit."""
    given = [each for each in (key, prefix) if each is not None]
    if len(given) > 1 or (given and (start, end) != (None, None)):
        raise ConfigError("changes: expected one of: key; prefix; start and end, or one of these two")
    serde = key_serde(reading.application, reading.builder)
    if prefix is not None and not has_prefixes(serde):
        raise ConfigError(f"store {reading.builder.name!r}: prefix is only for the key serdes str and bytes")
    try:
        first, last, beginning = (
            None if each is None else serde.serialize(each)
            for each in (start if key is None else key, end if key is None else key, prefix)
        )
    except Exception as error:  # a serde of another package may raise anything
        raise ConfigError(f"store {reading.builder.name!r}: its key serde refuses a key: {error}") from error
    return Keys(key_in_row(kind_of(reading.builder)), first, last, beginning or b"")


def has_prefixes(serde: Serde[Any]) -> bool:
    """Return whether the keys that begin with a text or bytes are those whose serialized form begins with its form.

    Others have a length or a mark in front of a text, or one behind it.
    """
    return isinstance(serde, (StrSerde, BytesSerde))


def subscribed(
    reading: StoreReading, keys: Keys, key: Any, after: str | None, notify: Callable[[], None]
) -> Subscription:
    """Return a subscription to the changes of a store, which its feed reads from now on. Raises as `tasks_of`.

    `key`: in the tasks of this key (None: in all). `after`: the token of the position from which on it has the changes.
    """
    builder = reading.builder
    if kind_of(builder) not in KINDS:
        raise ConfigError(
            f"store {builder.name!r} is of the kind {kind_of(builder)!r}: only changes of the kinds {', '.join(KINDS)} "
            "can be followed"
        )
    if not builder.logged or not reading.copies.has_changelog:
        raise ConfigError(
            f"store {builder.name!r} is not in the changelog (logged=False, or it is global): its changes are not there"
        )
    names = [each.id for each in (reading.tasks() if key is None else reading.tasks_of(key))]
    position = {} if after is None else position_of(after)
    if after is not None and position.keys() != set(names):
        made = Subscription(builder.name, keys, position, position, notify)
        made.end(gap_error("the position of changes is of another query, or of another number of tasks"))
        return made
    made = Subscription(builder.name, keys, names, position, notify)
    reading.feed.add(made)
    return made


class Changes(Iterator[tuple[Any, Any]]):
    """Iterates over the changes of a store, as tasks commit; close it, or use it in a `with` block.

    Each is a pair of a key and its new value, None if the entry was deleted. The key of a window or session is a
    Windowed. The value of a version is a VersionedRecord, in which None is a deletion and `valid_to` says nothing.
    `position` is text: with it as `after` another reader continues behind the last change that was taken. Waits for
    changes without end; `close` in another thread ends that.
    """

    def __init__(self, reading: StoreReading, subscription: Subscription, wake: threading.Event) -> None:
        self._reading = reading
        self._subscription = subscription
        self._wake = wake
        self._entries: Iterator[tuple[Any, Any]] = iter(())
        self._reached = subscription.position()
        self._has_closed = False

    @classmethod
    def of(cls, reading: StoreReading, keys: Keys, key: Any, after: str | None) -> Changes:
        """Begin to follow a store.

        Raises as `subscribed`, StoreUnavailableError if the log does not answer, and ChangesEndedError.
        """
        wake = threading.Event()
        subscription = subscribed(reading, keys, key, after, wake.set)
        until = time.monotonic() + reading.bounds.wait
        while not subscription.has_begun_after(wake.clear):
            if not wake.wait(max(0.0, until - time.monotonic())):
                reading.feed.remove(subscription)
                raise StoreUnavailableError(
                    f"store {reading.builder.name!r} of application {reading.application.id!r}: the log has not said "
                    "in time where its changes begin"
                )
        return cls(reading, subscription, wake)

    @property
    def position(self) -> str:
        """The place behind the commits of which all changes were taken."""
        return token_of(self._reached)

    def __next__(self) -> tuple[Any, Any]:
        """Return the next change. Raises ChangesEndedError, and StopIteration after `close`."""
        while not self._has_closed:
            found = next(self._entries, None)
            if found is not None:
                return found
            self._wake.clear()
            self._reached = self._subscription.position()
            timestamped = self._reading.timestamped
            taken = self._subscription.take()
            self._entries = iter([(_key_of(each), _value_of(each, timestamped)) for each in taken])
            if not taken and not self._has_closed:  # `close` may have come before `clear`
                self._wake.wait()
        raise StopIteration

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration; idempotent, and in any thread."""
        self._has_closed = True
        self._reading.feed.remove(self._subscription)
        self._wake.set()


def _key_of(entry: Entry) -> Any:
    return Windowed(entry["key"], entry["start"], entry["end"]) if "start" in entry else entry["key"]


def _value_of(entry: Entry, timestamped: bool) -> Any:
    value = entry["value"]
    if "valid_to" in entry:
        return VersionedRecord(value, entry["timestamp"])
    if not timestamped or "timestamp" not in entry:
        return value
    if "headers" in entry:
        return ValueTimestampHeaders(value, entry["timestamp"], entry["headers"])
    return ValueAndTimestamp(value, entry["timestamp"])


class _Queried:
    """A store over all its tasks."""

    def __init__(self, reading: StoreReading) -> None:
        self.name = reading.builder.name
        self._reading = reading

    def _of(self, key: Any, scan: Callable[[Any], Any]) -> Scan:
        """Iterate over the results of `scan` in the tasks that may have a key."""
        return self._reading.each(self._reading.tasks_of(key), scan)

    def _all(self, scan: Callable[[Any], Any]) -> Scan:
        """Iterate over the results of `scan` in all tasks."""
        return self._reading.each(self._reading.tasks(), scan)


class _Counted(_Queried):
    """A store with an approximate number of entries."""

    def approximate_count(self) -> int:
        """Return about the number of entries in all tasks."""
        return self._reading.total(lambda store: store.approximate_count())


class _Followed(_Queried):
    """A store whose changes can be followed."""

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


class QueriedKeyValueStore(_Followed, _Counted, ReadOnlyKeyValueStore[Any, Any]):
    """A key-value store. Ranges are in the order of the keys within each task, task after task."""

    def get(self, key: Any) -> Any:
        return self._reading.first(key, lambda store: store.get(key))

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """Return the value of each key, None where it has none; those of one task are of one version."""
        return self.get_many_as(list(keys), lambda _, value: None if value is None else self._reading.shown(value))

    def get_many_as(self, keys: Sequence[Any], shown: Callable[[Any, Any], Any]) -> list[Any]:
        """Return what `shown` makes of each key and its value as it was stored, None where it has none.

        No more values than one are in memory, but for what `shown` returns.
        """
        found: dict[int, Any] = {}
        by_task: dict[str, tuple[Any, list[int]]] = {}
        for place, key in enumerate(keys):
            for task in self._reading.tasks_of(key):
                by_task.setdefault(task.id, (task, []))[1].append(place)
        for task, places in by_task.values():

            def look(store: Any, places: Sequence[int] = places) -> list[Any]:
                return [shown(keys[place], store.get(keys[place])) for place in places]

            values = zip(places, self._reading.read(task, look), strict=True)
            found |= {place: value for place, value in values if value is not None}
        return [found.get(place) for place in range(len(keys))]

    def range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        return self._all(lambda store: store.range(start, end))

    def reverse_range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        return self._all(lambda store: store.reverse_range(start, end))

    def prefix_scan(self, prefix: Any, serde: Serde[Any] | None = None) -> Entries[Any, Any]:
        return self._all(lambda store: store.prefix_scan(prefix, serde))


class QueriedWindowStore(_Followed, _Counted, ReadOnlyWindowStore[Any, Any]):
    """A window store."""

    @overload
    def fetch(self, key: Any, time_from: int) -> Any: ...
    @overload
    def fetch(self, key: Any, time_from: int, time_to: int) -> Entries[int, Any]: ...
    def fetch(self, key: Any, time_from: int, time_to: int | None = None) -> Any:
        if time_to is None:
            return self._reading.first(key, lambda store: store.fetch(key, time_from))
        return self._of(key, lambda store: store.fetch(key, time_from, time_to))

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Entries[int, Any]:
        return self._of(key, lambda store: store.backward_fetch(key, time_from, time_to))

    def fetch_range(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> Entries[Windowed, Any]:
        given = key_from, key_to, time_from, time_to
        return self._all(lambda store: store.fetch_range(*given))

    def backward_fetch_range(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> Entries[Windowed, Any]:
        given = key_from, key_to, time_from, time_to
        return self._all(lambda store: store.backward_fetch_range(*given))


class QueriedSessionStore(_Followed, _Counted, ReadOnlySessionStore[Any, Any]):
    """A session store."""

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        return self._reading.first(key, lambda store: store.fetch_session(key, start, end))

    def find_sessions(self, key: Any, earliest_session_end: int, latest_session_start: int) -> Entries[Windowed, Any]:
        return self._of(key, lambda store: store.find_sessions(key, earliest_session_end, latest_session_start))

    def backward_find_sessions(
        self, key: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        times = earliest_session_end, latest_session_start
        return self._of(key, lambda store: store.backward_find_sessions(key, *times))

    def find_sessions_range(
        self, key_from: Any, key_to: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        given = key_from, key_to, earliest_session_end, latest_session_start
        return self._all(lambda store: store.find_sessions_range(*given))

    def backward_find_sessions_range(
        self, key_from: Any, key_to: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        given = key_from, key_to, earliest_session_end, latest_session_start
        return self._all(lambda store: store.backward_find_sessions_range(*given))


class QueriedVersionedStore(_Followed, ReadOnlyVersionedKeyValueStore[Any, Any]):
    """A versioned store."""

    @overload
    def get(self, key: Any) -> VersionedRecord | None: ...
    @overload
    def get(self, key: Any, as_of: int) -> VersionedRecord | None: ...
    @overload
    def get(self, key: Any, as_of: int, to: int) -> Entries[int, VersionedRecord]: ...
    def get(self, key: Any, as_of: int | None = None, to: int | None = None) -> Any:
        if to is not None:
            return self._of(key, lambda store: store.get(key, as_of, to))
        return self._reading.first(key, lambda store: store.get(key, as_of))


class QueriedListStore(_Counted, ReadOnlyListStore[Any, Any]):
    """A list store."""

    def get(self, key: Any) -> list[Any]:
        return self._reading.first(key, lambda store: store.get(key) or None) or []

    def range(self, start: Any = None, end: Any = None) -> Entries[Any, Any]:
        return self._all(lambda store: store.range(start, end))


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
