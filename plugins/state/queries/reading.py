"""StoreReading: opens one store of an application, task by task, for the queries of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeVar

from penstock import (
    Application,
    ConfigError,
    StaleStoreError,
    StateStore,
    StoreBackend,
    StoreBuilder,
    StoreSpec,
    StoreUnavailableError,
    ValueAndTimestamp,
    ValueTimestampHeaders,
)
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.plugins.state.copies.contents import KeyTasks, store_over
from penstock.stores.rows.scan import Scan

from .changes_feed import ChangesFeed
from .copies import Bounds, Copies, WouldWait
from .snapshots import Snapshot, ViewBackend

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

    def copies_of(self, subtopology: int, *, at_once: bool = False) -> Copies:
        """Return the copies that have the stores of a sub-topology. Raises LogError, and WouldWait with `at_once`."""
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
        return self.queries.copies_of(self.subtopology, at_once=self.bounds.at_once)

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
        at_once = self.bounds.at_once
        tasks = self.copies.awaited_tasks(self.subtopology, self.builder.name, self.bounds)
        return (
            tasks if self.task is None else {self.task: self.copies.task(self.subtopology, self.task, at_once=at_once)}
        )

    def tasks_of(self, key: Any) -> Sequence[SavedTask]:
        """Return the tasks that may have a key. Raises as `tasks`, and ConfigError if its task is unknown."""
        tasks = self._tasks()
        if self.all_tasks or len(tasks) == 1:
            return list(tasks.values())
        try:
            key_tasks = self.queries.key_tasks[self.builder.name]
            names = key_tasks.may_have(key, key_tasks.count_of(tasks))
        except ConfigError as error:
            raise ConfigError(f"{error}: name the task, or ask all tasks") from error
        return [tasks[name] for name in names if name in tasks]

    # ------------------------------------------------------------------ opening

    @contextmanager
    def opened(self, task: SavedTask) -> Iterator[StateStore]:
        """Open the store in a task for the block. Raises as `Copies.snapshot`."""
        with closing(self.copies.snapshot(task, self.builder.name, self.bounds)) as found:
            stores = self.queries.built
            built = stores.take(self.application, task, self.builder, found)
            yield built.store
            stores.give_back(built)

    def read(self, task: SavedTask, look: Callable[[Any], T]) -> T:
        """Return what `look` finds in a task; look again where what was read has gone, as when its files grow."""
        tries = 0
        while True:
            try:
                with self.opened(task) as store:
                    return look(store)
            except StaleStoreError as error:
                if self.bounds.at_once:
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
        """Return the sum of what `look` returns for each task."""
        return sum(self.read(task, look) for task in self.tasks())
