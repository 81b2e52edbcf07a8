"""Copies: the tasks' stores that this process can read, and which of their versions may answer a query."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field

from penstock import (
    Application,
    Commit,
    ConfigError,
    Log,
    LogError,
    StoreUnavailableError,
    TopicPartition,
    World,
    version_counter,
)
from penstock.plugins.engine.program.committed import has_lost_commit
from penstock.plugins.engine.program.saved_program import SavedTask, saved_tasks
from penstock.plugins.engine.task.refusals import NO_COMMIT
from penstock.support.names import did_you_mean

from .snapshots import Snapshot

_THREADS = 4

_log = logging.getLogger("penstock.queries")


class Ahead:
    """Calls functions in threads of its own, one call at a time of each name. Any thread calls all methods.

    A busy log takes a part of a second to answer. The connections of all clients would soon stand behind the queries
    that wait for it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._threads: Executor | None = None
        self._has_closed = False
        self.running: set[str] = set()
        """The names of the calls that have begun."""

    def start(self, name: str, call: Callable[[], object]) -> None:
        """Begin a call, unless one of its name runs. What it raises is logged: a query that needs it calls again."""
        with self._lock:
            if self._has_closed or name in self.running:
                return
            self.running.add(name)
            if self._threads is None:
                self._threads = self._world.threads(_THREADS, "penstock-ahead")
            with suppress(RuntimeError):  # the interpreter ends
                self._threads.submit(self._run, name, call)

    def _run(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:
            _log.debug("what queries need next is not known: %s", name, exc_info=True)
        finally:
            self.running.discard(name)

    def close(self) -> None:
        """Begin no more calls, and wait for those that run; idempotent."""
        with self._lock:
            self._has_closed = True
        if self._threads is not None:
            self._threads.shutdown()


MOST_AGE_SECONDS = 2.0
"""How long ago the log may have had no later version than the one that answers, unless a stale one may."""
_WAIT_SECONDS = 0.005
"""Seconds between two looks at a copy that is about to get a version."""
_NOTE_SECONDS = 0.05
"""Seconds between two looks for the tasks of an application that is about to start."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at a note in the log, that of the program that ran last."""
AHEAD_SHARE = 0.5
"""At what share of the age at which an answer of the log does not count any more it is asked again."""


@dataclass(frozen=True)
class Bounds:
    """Which committed versions may answer a query. Semantics: Kafka Streams' PositionBound (KIP-796).

    Without bounds a copy answers if the log had no later version within the last two seconds. `stale_ok`: any version
    may answer, however old. `at_least`: only one after whose commit the records before these offsets are processed, of
    the partitions that the task reads; other partitions are passed over. `wait`: seconds to wait for such a version.
    `at_once`: raise WouldWait instead of waiting for a version, for the log or for another thread.
    """

    stale_ok: bool = False
    at_least: Mapping[TopicPartition, int] = field(default_factory=dict)
    wait: float = 5.0
    at_once: bool = False


class WouldWait(Exception):
    """A query cannot be answered at once: ask again in a thread that may wait."""


class NotHere(WouldWait):
    """There is no version of the task's store here. `task`: its id."""

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task


@dataclass(frozen=True)
class TaskLag:
    """A task whose stores can be asked. `version`: the number of the version that answers; None: none can now.

    `behind`: how many versions the last commit is ahead.
    """

    task: str
    version: int | None
    behind: int


class Copies(ABC):
    """The stores of an application's tasks, as this process can read them. Any thread calls all methods."""

    has_changelog = True
    """Whether the stores' changes are in changelogs."""

    def __init__(self, application: Application, log: Log, world: World | None = None) -> None:
        self.application = application
        self.world = world or World()
        self.log = log
        self._tasks: Mapping[int, Mapping[str, SavedTask]] = {}
        self._looked_at = float("-inf")
        self._has_closed = False
        self.ahead = Ahead(self.world)
        """Asks the log for what is about to be too old."""

    # ------------------------------------------------------------------ tasks

    def tasks(self, subtopology: int, *, at_once: bool = False) -> Mapping[str, SavedTask]:
        """Return the tasks of a sub-topology that have stores, as the program that ran last noted them; maybe none.

        `at_once`: raise WouldWait instead of asking the log.
        """
        age = self.world.seconds() - self._looked_at
        if at_once and self._tasks and age > AHEAD_SHARE * LOOK_SECONDS:
            self.ahead.start("tasks", self._look_at_tasks)
        if not self._tasks or age > LOOK_SECONDS:
            if at_once:
                raise WouldWait
            self._look_at_tasks()
        return self._tasks.get(subtopology, {})

    def awaited_tasks(self, subtopology: int, store: str, bounds: Bounds) -> Mapping[str, SavedTask]:
        """Return the tasks of a sub-topology that has a store: an application notes them at its start.

        Raises StoreUnavailableError when `bounds.wait` seconds have brought none, LogError, and WouldWait.
        """
        until = self.world.seconds() + bounds.wait
        while True:
            try:
                if tasks := self.tasks(subtopology, at_once=bounds.at_once):
                    return tasks
            except LogError:
                if not self._has_closed:
                    raise  # else the log is closed as well
            if bounds.at_once:
                raise WouldWait
            if self._has_closed:
                raise self._closed(store)
            if self.world.seconds() >= until:
                raise StoreUnavailableError(
                    f"application {self.application.id!r} has saved no store {store!r} in the log "
                    f"{self.application.settings.shown('log')}: it has not run there since its last reset"
                )
            self.world.sleep(_NOTE_SECONDS)

    def _look_at_tasks(self) -> None:
        now = self.world.seconds()
        if self._tasks:
            self._looked_at = now  # others go on with what is known
        try:
            self._tasks = self._noted_tasks()
            self._looked_at = now
        except LogError:
            if not self._tasks:
                raise  # else they stay as they are known; whether a version is the last one is another question

    def _noted_tasks(self) -> Mapping[int, Mapping[str, SavedTask]]:
        found: dict[int, dict[str, SavedTask]] = {}
        for name, each in saved_tasks(self.application.id, self.log).items():
            found.setdefault(int(name.partition("_")[0]), {})[name] = each
        return found

    def task(self, subtopology: int, name: str, *, at_once: bool = False) -> SavedTask:
        """Return one task. Raises ConfigError for one that is not of the sub-topology, and as `tasks`."""
        tasks = self.tasks(subtopology, at_once=at_once)
        if name not in tasks:
            advice = did_you_mean(name, tasks) or f"it is in: {', '.join(tasks) or 'none that has run'}"
            raise ConfigError(f"task {name!r} of application {self.application.id!r} does not have the store; {advice}")
        return tasks[name]

    # ------------------------------------------------------------------ snapshots

    def snapshot(self, task: SavedTask, store: str, bounds: Bounds) -> Snapshot:
        """Return a store at a version that the bounds allow.

        Raises StoreUnavailableError when `bounds.wait` seconds have brought none, StoreError for a store that cannot be
        read here, LogError, and WouldWait.
        """
        task = self._as_noted_now(task, bounds.at_once)
        if bounds.at_once:
            return self._snapshot_at_once(task, store, bounds)
        until = self.world.seconds() + bounds.wait
        while True:
            if self._has_closed:
                raise self._closed(store)
            try:
                found = self._open(task, store)
                try:
                    missing = self._missing(task, found, bounds)
                except BaseException:
                    found.close()
                    raise
                if missing is None:
                    return found
                found.close()
            except StoreUnavailableError as error:
                missing = str(error)
            if self.world.seconds() >= until:
                raise StoreUnavailableError(
                    f"store {store!r} in task {task.id} of application {self.application.id!r} cannot answer now: "
                    f"{missing}"
                )
            self.world.sleep(_WAIT_SECONDS)
            task = self._as_noted_now(task, False)

    def _closed(self, store: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"store {store!r} of application {self.application.id!r} is not read here any more: the queries were "
            "closed, or the application was resharded, then ask again"
        )

    def _as_noted_now(self, task: SavedTask, at_once: bool) -> SavedTask:
        """Return a task as it is now. Raises StoreUnavailableError where keys are divided among other tasks now."""
        now = self.tasks(int(task.id.partition("_")[0]), at_once=at_once).get(task.id)
        if now is None or (now.count, now.partitions) != (task.count, task.partitions):
            raise StoreUnavailableError(f"application {self.application.id!r} was resharded meanwhile: ask again")
        return now

    def _snapshot_at_once(self, task: SavedTask, store: str, bounds: Bounds) -> Snapshot:
        try:
            found = self._open(task, store, at_once=True)
        except StoreUnavailableError:
            raise NotHere(task.id) from None
        if found.has(_wanted(task, bounds)) and (bounds.stale_ok or self._is_fresh(found)):
            return found
        found.close()
        raise WouldWait

    def _missing(self, task: SavedTask, found: Snapshot, bounds: Bounds) -> str | None:
        """Return what is missing until a snapshot may answer, in words; None if nothing is."""
        wanted = _wanted(task, bounds)
        if wanted and not found.has(wanted) and not self._confirmed(task, found).has(wanted):
            return f"its copy here is not known to have processed the records before {_shown(wanted)}"
        if bounds.stale_ok or self._is_fresh(found) or self._is_fresh(self._confirmed(task, found)):
            return None
        return (
            f"its copy here is at version {found.counter}, and the log has a later one: it is behind, or the task runs "
            "elsewhere; with stale_ok it answers as it is"
        )

    def _is_fresh(self, found: Snapshot) -> bool:
        return found.confirmed_at is not None and self.world.seconds() - found.confirmed_at <= MOST_AGE_SECONDS

    @abstractmethod
    def _open(self, task: SavedTask, store: str, *, at_once: bool = False) -> Snapshot:
        """Return a store as it is here now. Raises as `snapshot`."""

    @abstractmethod
    def _confirmed(self, task: SavedTask, found: Snapshot) -> Snapshot:
        """Return the snapshot with what the log says of its version now."""

    # ------------------------------------------------------------------ facts

    def has(self, task: SavedTask, store: str) -> bool:
        """Return whether a store of a task is here, at any version; the log is not asked again for it."""
        try:
            self._open(task, store).close()
        except StoreUnavailableError:
            return False
        return True

    def lag(self, task: SavedTask, store: str) -> TaskLag:
        """Return how far the copy of a store is behind the task's last commit."""
        commit = self.last_commit(task)
        last = -1 if commit is None else version_counter(commit.version)
        try:
            found = self._open(task, store)
        except StoreUnavailableError:
            return TaskLag(task.id, None, last + 1)
        found.close()
        return TaskLag(task.id, found.counter, max(0, last - found.counter))

    def last_commit(self, task: SavedTask) -> Commit | None:
        """Return the last commit of a task, as readers of the log see it now; None before the first one.

        Raises StoreUnavailableError if the log has lost it: the store is not empty.
        """
        name = self.application.id
        commit = self.log.visible_commit(name, task.id, task.partitions)
        if commit is None and has_lost_commit(self.log, name, task.identity, task.id, task.partitions):
            raise StoreUnavailableError(f"the log has lost the commits of the task: {NO_COMMIT}")
        return commit

    def close(self) -> None:
        """Release everything; idempotent. A call that waits raises StoreUnavailableError then."""
        self._has_closed = True
        self.ahead.close()


def _wanted(task: SavedTask, bounds: Bounds) -> Mapping[TopicPartition, int]:
    return {each: bounds.at_least[each] for each in task.partitions if each in bounds.at_least}


def _shown(positions: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}:{offset}" for each, offset in sorted(positions.items()))
