"""Queries: reads the stores of an application from outside its tasks, at committed versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import (
    Application,
    ConfigError,
    Duration,
    Headers,
    Log,
    LogError,
    StateStore,
    StoreBuilder,
    TopicPartition,
    World,
    duration_ms,
)
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.engine.task.locations import GLOBAL, Places, open_log
from penstock.plugins.state.copies.contents import declared_store
from penstock.plugins.state.copies.key_tasks import KeyTasks
from penstock.support.names import did_you_mean

from .changes_feed import ChangesFeed
from .copies import REFUSAL_SECONDS, Ahead, Bounds, Copies, NoteReader, TaskLag
from .followed_copies import FollowedCopies
from .local_copies import Filler, GlobalCopies, LocalCopies
from .noted_servers import TaskServer, active_server, task_servers
from .stores import BuiltStores, StoreReading, can_be_queried, kind_of, queried_store

_AS_IT_IS = Bounds(stale_ok=True, wait=0.0)
"""The bounds of facts: what is not here yet is a fact, too."""


@dataclass(frozen=True)
class KeyMetadata:
    """Where a key is. Semantics: Kafka Streams' KeyQueryMetadata.

    `task` has it, and reads the partition of this number; "global" and -1 of a global store, whose keys are on every
    machine. `lag`: how far the copy here is behind. `server`: the URL of the server on the machine where the task runs,
    or of one that has a replica; None if there is none.
    """

    task: str
    partition: int
    lag: TaskLag
    server: str | None = None


class Queries:
    """The stores of an application, to be read at committed versions; any thread calls all methods.

    Close it, or use it in a `with` block.
    """

    def __init__(
        self,
        application: Application,
        log: Log,
        open_copies: Callable[[Application], Copies],
        global_directory: Callable[[Application], Path] | None = None,
    ) -> None:
        self.named = application
        """The application as it was given; `application` has another id once it was resharded."""
        self._log = log
        self._open_copies = open_copies
        self._global_directory = global_directory
        self._stores = _stores(application)
        self._opening = threading.Lock()
        self._open(stored_application(application, log))
        self.ahead = Ahead(self._copies.world)
        """Asks the log for what is about to be too old."""
        self._note_reader = NoteReader("layout", self._follow_layout, self.ahead, self.seconds)
        self._note_reader.at = self.seconds()

    def _open(self, application: Application) -> None:
        self.application = application
        self._copies = copies = self._open_copies(application)
        self.built = BuiltStores(copies.world.clock.now_ms)
        self.feed = ChangesFeed(copies, self._look_at_layout)
        self.key_tasks: Mapping[str, KeyTasks] = {
            store.name: KeyTasks(application, part.id, store.name)
            for part in application.program.subtopologies
            for store in part.stores
        }
        log = self._log
        global_directory = None if self._global_directory is None else self._global_directory(application)
        self._globals = {
            each.id: GlobalCopies(application, log, each, global_directory, copies.world)
            for each in application.program.global_stores
        }
        self._filler: Filler | None = None
        if global_directory is not None and any(number in self._globals for number, _ in self._stores.values()):
            self._filler = Filler(application, log, global_directory, copies.world)

    @classmethod
    def of_this_machine(cls, application: Application, world: World | None = None) -> Queries:
        """Read the local state of the tasks that run on this machine, beside them. Raises LogError."""
        log = open_log(application.settings)
        try:
            return cls(application, log, lambda stored: LocalCopies(stored, log, world))
        except BaseException:
            log.close()
            raise

    @classmethod
    def from_changelog(
        cls,
        application: Application,
        *,
        stores: Collection[str] | None = None,
        directory: Path | str | None = None,
        reader: str = "queries",
        world: World | None = None,
    ) -> Queries:
        """Read replicas that this process keeps up to date from the changelog, on any machine.

        `stores`: only these; None: all that can be queried and are in the changelog. `directory`: where the replicas
        are (None: that of `reader` under `state_dir`); one process at a time has it open. Raises ConfigError for a
        store that the program does not have or that is not in the changelog, and LogError.
        """
        names = cls.followed_stores(application) if stores is None else list(stores)
        of_topics = {each.store.name for each in application.program.global_stores}
        chosen = {name: declared_store(application, name) for name in names if name not in of_topics}
        log = open_log(application.settings)
        try:
            parts = {number for number, _ in chosen.values()}

            def place(stored: Application) -> Path:
                return Places.of(stored).task(reader) if directory is None else Path(directory)

            return cls(
                application,
                log,
                lambda stored: FollowedCopies(stored, log, parts, chosen, place(stored), world),
                lambda stored: place(stored) / GLOBAL,
            )
        except BaseException:
            log.close()
            raise

    @staticmethod
    def followed_stores(application: Application) -> list[str]:
        """Return the names of the stores that replicas can have and queries can read."""
        of_topics = {each.store.name for each in application.program.global_stores}
        return [name for name, (_, each) in _stores(application).items() if each.logged or name in of_topics]

    @staticmethod
    def stores_of(application: Application) -> list[str]:
        """Return the names of the stores that queries can read."""
        return list(_stores(application))

    # ------------------------------------------------------------------ stores

    def store(
        self,
        name: str,
        *,
        timestamped: bool = False,
        stale_ok: bool = False,
        at_least: Mapping[TopicPartition, int] | None = None,
        wait: Duration = "5s",
        task: str | None = None,
        all_tasks: bool = False,
        isolation: str = "read_committed",
    ) -> Any:
        """Return a store, to be read: a ReadOnlyKeyValueStore, ReadOnlyWindowStore or what else its kind has.

        `timestamped`: its values are a ValueAndTimestamp or ValueTimestampHeaders if they were stored so; else they are
        the values alone.
        Each call of its methods reads versions that the tasks have committed; within one task, a call reads one
        version. By default the log had no later one within the last two seconds. `stale_ok`: any version will do.
        `at_least`: only versions after which the records before these offsets are processed. A call waits up to `wait`
        for such a version, and then raises StoreUnavailableError. `task`: only this one. `all_tasks`: look up keys in
        every task, where a task has keys of other partitions. Close what it returns to iterate over, or read it to the
        end soon: the store backend keeps what it shows. `isolation`: only "read_committed" (KIP-892).

        Raises ConfigError for a store that the program does not have, for a task without it, and for `at_least` with
        topics that its tasks do not read. Also for the isolation "read_uncommitted".
        """
        check_isolation(isolation)
        bounds = Bounds(stale_ok, at_least or {}, duration_ms(wait, "wait") / 1000)
        reading = self.reading(name, bounds, timestamped=timestamped, task=task, all_tasks=all_tasks)
        found: StateStore = queried_store(reading)
        return found

    def reading(self, name: str, bounds: Bounds, **options: Any) -> StoreReading:
        """Return a function that opens a store, task by task. `options`: fields of StoreReading. Raises as `store`."""
        number, builder = self._found(name)
        if bounds.at_least:
            self._check_topics(number, name, bounds)
        return StoreReading(self, number, builder, bounds, **options)

    def stores(self) -> Mapping[str, str]:
        """Return the kinds of the stores that can be queried, by name."""
        return {name: kind_of(each) for name, (_, each) in sorted(self._stores.items())}

    def declared(self, name: str) -> StoreBuilder:
        """Return a store as the program declares it. Raises ConfigError for a store that queries cannot read."""
        return self._found(name)[1]

    def key_tasks_of(self, name: str) -> KeyTasks | None:
        """Return the function that finds a key's task; None for a global store. Raises ConfigError as `declared`."""
        return self.key_tasks.get(self._found(name)[1].name)

    def _found(self, name: str) -> tuple[int, StoreBuilder]:
        stores = self._stores
        if name not in stores:
            advice = did_you_mean(name, stores) or f"it has: {', '.join(sorted(stores)) or 'none'}"
            raise ConfigError(
                f"the program of application {self.application.id!r} has no store {name!r} that queries can read; "
                f"{advice}"
            )
        return stores[name]

    def copies_of(self, subtopology: int) -> Copies:
        """Return the copies that have the stores of a sub-topology.

        They are others after the application was resharded. Raises LogError, and WouldWait.
        """
        self._note_reader.renew()
        return self._globals.get(subtopology, self._copies)

    def _look_at_layout(self) -> None:
        """Follow the layout where nobody but readers of changes asks; in a thread of its own, for it may end theirs."""
        self._note_reader.renew_ahead()

    def _follow_layout(self) -> None:
        """Open the copies anew where the application is in another place of the log since it was resharded."""
        if not self._opening.acquire(blocking=False):
            return  # another thread looks
        try:
            self._note_reader.at = self.seconds()
            with suppress(LogError):  # it is asked again; whether a version is the last one is another question
                stored = stored_application(self.named, self._log)
                if stored.id != self.application.id:
                    self._close_copies("the application was resharded")
                    self._open(stored)
        finally:
            self._opening.release()

    def _check_topics(self, subtopology: int, store: str, bounds: Bounds) -> None:
        asked = {each.topic for each in bounds.at_least}
        known = _topics_of(self.copies_of(subtopology).tasks(subtopology))
        if known and asked - known:
            self._note_reader.renew(REFUSAL_SECONDS)
            known = _topics_of(self.copies_of(subtopology).tasks(subtopology, REFUSAL_SECONDS))
        if known and (wrong := sorted(asked - known)):
            raise ConfigError(
                f"at_least: the tasks of store {store!r} do not read {', '.join(wrong)}; they read "
                f"{', '.join(sorted(known))}"
            )

    # ------------------------------------------------------------------ metadata

    def lags(self, store: str) -> Sequence[TaskLag]:
        """Return the lag of a store's copy in each task. Semantics: `allLocalStorePartitionLags`."""
        reading = self.reading(store, _AS_IT_IS)
        return [reading.copies.lag(task, store) for task in reading.tasks()]

    def can_answer(self, store: str) -> bool:
        """Return whether a version of a store is here in every task; it costs the log nothing."""
        reading = self.reading(store, _AS_IT_IS)
        return all(reading.copies.has(task, store) for task in reading.tasks())

    def query_metadata_for_key(self, store: str, key: Any, headers: Headers | None = None) -> KeyMetadata:
        """Return which task has a key. Raises ConfigError if the key's serde refuses it.

        `headers`: those of the key's records, where a partitioner of the program goes by them (KIP-1321).
        """
        reading = self.reading(store, _AS_IT_IS)
        task = reading.tasks_of(key, headers)[0]
        lag, partition = reading.copies.lag(task, store), task.id.partition("_")[2]
        server = next((each.url for each in self.task_servers() if each.has(task.id)), None)
        return KeyMetadata(task.id, int(partition or -1), lag, server)

    def active_server(self) -> str | None:
        """Return the URL of the server on the machine where the application runs, as its run noted it in the log.

        None if it does not run, or without the setting `application_server`. Raises LogError.
        """
        return active_server(self.application, self._log)

    def task_servers(self) -> list[TaskServer]:
        """Return the servers beside the tasks that can be reached from here, first the ones with local state.

        Raises LogError.
        """
        found = [each for each in task_servers(self.application.id, self._log) if each.is_reachable]
        url = self.active_server()
        if url is not None and all(each.url != url for each in found):
            found.append(TaskServer(url, ""))
        return found

    @property
    def seconds(self) -> Callable[[], float]:
        """Returns seconds of a stopwatch."""
        return self._copies.world.seconds

    # ------------------------------------------------------------------ closing

    def close(self) -> None:
        """Release everything; idempotent. Replicas stay for the next time."""
        with ExitStack() as stack:
            stack.callback(self._log.close)
            stack.callback(self._close_copies)
            stack.callback(self.ahead.close)

    def _close_copies(self, gap: str = "") -> None:
        """Close the copies; `gap`: why readers of changes cannot continue."""
        with ExitStack() as stack:
            stack.callback(self._copies.close)
            for each in self._globals.values():
                stack.callback(each.close)
            if self._filler is not None:
                stack.callback(self._filler.close)
            stack.callback(self.feed.close, gap)

    def __enter__(self) -> Queries:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def check_isolation(isolation: object) -> None:
    """Raise ConfigError for an isolation level that queries do not have."""
    if isolation == "read_uncommitted":
        raise ConfigError(
            "isolation='read_uncommitted': queries read committed versions only. A change that is not committed may be "
            "taken back, and only the thread of its task may read it. To see changes sooner, shorten `commit_interval`"
        )
    if isolation != "read_committed":
        raise ConfigError(f"isolation={isolation!r}: expected 'read_committed'")


def _topics_of(tasks: Mapping[str, SavedTask]) -> set[str]:
    return {each.topic for task in tasks.values() for each in task.partitions}


def _stores(application: Application) -> dict[str, tuple[int, StoreBuilder]]:
    """Return the stores that queries can read, with the number of their sub-topology."""
    own = [(part.id, each) for part in application.program.subtopologies for each in part.stores]
    of_topics = [(each.id, each.store) for each in application.program.global_stores]
    return {each.name: (number, each) for number, each in (*own, *of_topics) if can_be_queried(each)}
