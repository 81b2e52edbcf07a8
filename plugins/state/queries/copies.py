"""Copies: the tasks' stores that this process can read, and which of their versions may answer a query."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar

from penstock import (
    Application,
    Commit,
    ConfigError,
    Log,
    LogError,
    StoreBackend,
    StoreError,
    StoreUnavailableError,
    StoreView,
    TopicPartition,
    World,
    may_precede,
    version_counter,
)
from penstock.plugins.engine.program.committed import has_lost_commit
from penstock.plugins.engine.program.saved_program import SavedTask, saved_tasks
from penstock.plugins.engine.task.refusals import NO_COMMIT
from penstock.plugins.state.copies.contents import check_number
from penstock.store import Changes
from penstock.store.kept_store import KeptStore
from penstock.support.names import did_you_mean

T = TypeVar("T")


@dataclass
class Snapshot:
    """A store of a task at `version`; None: the task has not committed yet, so the store is empty.

    `commit`: a commit of that version or an earlier one; its positions are reached. `confirmed_at`: when (seconds of
    the world's stopwatch) the log had no later version; None if that is unknown. Close it soon: a store backend keeps
    what it shows.
    """

    task: str
    version: str | None
    kept: KeptStore
    commit: Commit | None
    confirmed_at: float | None
    backend: StoreBackend

    @property
    def counter(self) -> int:
        """The number of the version; -1 before the first one."""
        return -1 if self.version is None else version_counter(self.version)

    def has(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Return whether the records before `positions` are known to be processed."""
        reached = {} if self.commit is None else self.commit.positions
        return all(reached.get(partition, 0) >= offset for partition, offset in positions.items())

    def close(self) -> None:
        """Release what it shows; idempotent."""
        self.backend.close()


class ViewBackend(StoreBackend):
    """A view as a store backend, to read; `release` closes it. `count`: returns about how many entries a table has."""

    def __init__(self, view: StoreView, release: Callable[[], None], count: Callable[[str], int] | None = None) -> None:
        self._view = view
        self._release: Callable[[], None] | None = release
        self._count = count

    def version(self) -> str | None:
        return self._view.version

    def get(self, store: str, key: bytes) -> bytes | None:
        return self._view.get(store, key)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._view.range(store, start, end, reverse=reverse)

    def approximate_count(self, store: str) -> int:
        return sum(1 for _ in self._view.range(store)) if self._count is None else self._count(store)

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        raise StoreError(f"{', '.join(sorted(changes)) or 'a store'}: a query reads, and writes nothing")

    def show(self, other: ViewBackend) -> None:
        """Switch to another snapshot's view; only that one closes it."""
        self._view, self._count, self._release = other._view, other._count, None

    def close(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def destroy(self) -> None:
        self.close()


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
        """Begin no more calls, and wait for running ones; idempotent."""
        with self._lock:
            self._has_closed = True
        if self._threads is not None:
            self._threads.shutdown()


class WouldWait(Exception):
    """A query cannot be answered at once: ask again in a thread that may wait."""


class NotHere(WouldWait):
    """There is no version of the task's store here. `task`: its id."""

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task


class _Thread(threading.local):
    may_wait = True


_thread = _Thread()


def at_once(ask: Callable[[], T]) -> T:
    """Return what `ask` returns; within it, what would wait for a version, the log or a thread raises WouldWait.

    So the thread of an event loop asks, which answers nobody else meanwhile.
    """
    _thread.may_wait = False
    try:
        return ask()
    finally:
        _thread.may_wait = True


def may_wait() -> bool:
    """Return whether this thread may wait: False within `at_once`."""
    return _thread.may_wait


_LOOK_SECONDS = 1.0
"""Seconds between two looks at a note in the log, such as that of the program that ran last."""
REFUSAL_SECONDS = 0.05
"""So old is a note at most by which a query is refused: the application may have been resharded a moment ago."""
_AHEAD_SECONDS = _LOOK_SECONDS / 2
"""After which a query that may not wait lets a thread look."""


class NoteReader:
    """Reads a note in the log by `look`, which sets `at`, when a second has passed; any thread calls all methods."""

    def __init__(self, name: str, look: Callable[[], object], ahead: Ahead, seconds: Callable[[], float]) -> None:
        self._name = name
        self._look = look
        self._ahead = ahead
        self._seconds = seconds
        self.at = float("-inf")
        """When the last look began, in seconds of a stopwatch."""

    def renew(self, most_age: float = _LOOK_SECONDS) -> None:
        """Look again if the last look is `most_age` seconds old. Raises as `look`, and WouldWait within `at_once`."""
        age = self._seconds() - self.at
        if not may_wait() and age > _AHEAD_SECONDS:
            self._ahead.start(self._name, self._look)
        if age > most_age:
            if not may_wait():
                raise WouldWait
            self._look()

    def renew_ahead(self) -> None:
        """Let a thread look if it is time to."""
        if self._seconds() - self.at > _LOOK_SECONDS:
            self._ahead.start(self._name, self._look)


MOST_AGE_SECONDS = 2.0
"""How long ago the log may have had no later version than the one that answers, unless a stale one may."""
_WAIT_SECONDS = 0.005
"""Seconds between two looks at a copy that is about to get a version."""
_NOTE_SECONDS = 0.05
"""Seconds between two looks for the tasks of an application that is about to start."""


@dataclass(frozen=True)
class Bounds:
    """Which committed versions may answer a query. Semantics: Kafka Streams' PositionBound (KIP-796).

    Without bounds a copy answers if the log had no later version within the last two seconds. `stale_ok`: any version
    may answer, however old. `at_least`: only one after whose commit the records before these offsets are processed, of
    the partitions that the task reads; other partitions are passed over. `wait`: seconds to wait for such a version.
    `since`: without `stale_ok` the log had no later version at this time or after it (seconds of the stopwatch).
    """

    stale_ok: bool = False
    at_least: Mapping[TopicPartition, int] = field(default_factory=dict)
    wait: float = 5.0
    since: float = -inf


@dataclass(frozen=True)
class Follows:
    """What an answer has for readers of changes that begin.

    Records before `positions` are processed, and the log was asked for its version within the last `age` seconds.
    """

    positions: Mapping[TopicPartition, int]
    age: float


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
        self._has_closed = False
        self.ahead = Ahead(self.world)
        """Asks the log for what is about to be too old."""
        self._followed: dict[str, tuple[Commit | None, float]] = {}
        """By task: the commit from which on a reader follows a store since a time (seconds), of the last reader.

        None: the task had made none.
        """
        self._note_reader = NoteReader("tasks", self._look_at_tasks, self.ahead, self.world.seconds)

    # ------------------------------------------------------------------ tasks

    def tasks(self, subtopology: int, most_age: float = _LOOK_SECONDS) -> Mapping[str, SavedTask]:
        """Return the tasks of a sub-topology that have stores, as the program that ran last noted them; maybe none.

        `most_age`: how many seconds ago the note was read at most.
        """
        self._note_reader.renew(most_age)
        return self._tasks.get(subtopology, {})

    def awaited_tasks(self, subtopology: int, store: str, bounds: Bounds) -> Mapping[str, SavedTask]:
        """Return the tasks of a sub-topology that has a store: an application notes them at its start.

        Raises ConfigError where the store was saved in another sub-topology, StoreUnavailableError when `bounds.wait`
        seconds have brought none, LogError, and WouldWait.
        """
        until = self.world.seconds() + bounds.wait
        while True:
            try:
                tasks = self.tasks(subtopology)
                if not any(store in each.layouts.now for each in tasks.values()):
                    every = {task: each for part in self._tasks.values() for task, each in part.items()}
                    check_number(self.application, subtopology, store, every)
                if tasks:
                    return tasks
            except LogError:
                if not self._has_closed:
                    raise  # else the log is closed as well
            if not may_wait():
                raise WouldWait
            if self._has_closed:
                raise self._closed(store)
            if self.world.seconds() >= until:
                has_run = any(self._tasks.values())
                why = (
                    "the program with it has not begun to run"
                    if has_run
                    else "it has not run there since its last reset"
                )
                raise StoreUnavailableError(
                    f"application {self.application.id!r} has saved no store {store!r} in the log "
                    f"{self.application.settings.shown('log')}: {why}"
                )
            self.world.sleep(_NOTE_SECONDS)

    def _look_at_tasks(self) -> None:
        now = self.world.seconds()
        if self._tasks:
            self._note_reader.at = now  # others go on with what is known
        try:
            self._tasks = self._noted_tasks()
            # Where there are none, each query looks: an application may begin to run.
            self._note_reader.at = now if self._tasks else float("-inf")
        except LogError:
            if not self._tasks:
                raise  # else they stay as they are known; whether a version is the last one is another question

    def _noted_tasks(self) -> Mapping[int, Mapping[str, SavedTask]]:
        found: dict[int, dict[str, SavedTask]] = {}
        for name, each in saved_tasks(self.application.id, self.log).items():
            found.setdefault(int(name.partition("_")[0]), {})[name] = each
        return found

    def task(self, subtopology: int, name: str) -> SavedTask:
        """Return one task. Raises ConfigError for a task of another sub-topology, and as `tasks`."""
        tasks = self.tasks(subtopology)
        if name not in tasks:
            tasks = self.tasks(subtopology, REFUSAL_SECONDS)
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
        task = self._as_noted_now(task)
        if not may_wait():
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
            task = self._as_noted_now(task)

    def _closed(self, store: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"store {store!r} of application {self.application.id!r} is not read here any more: the queries were "
            "closed, or the application was resharded, then ask again"
        )

    def _as_noted_now(self, task: SavedTask) -> SavedTask:
        """Return a task as it is now. Raises StoreUnavailableError where keys are divided among other tasks now."""
        now = self.tasks(int(task.id.partition("_")[0])).get(task.id)
        if now is None or (now.count, now.partitions) != (task.count, task.partitions):
            raise StoreUnavailableError(f"application {self.application.id!r} was resharded meanwhile: ask again")
        return now

    def _snapshot_at_once(self, task: SavedTask, store: str, bounds: Bounds) -> Snapshot:
        try:
            found = self._open(task, store)
        except StoreUnavailableError:
            raise NotHere(task.id) from None
        if found.has(_wanted(task, bounds)) and (bounds.stale_ok or self._is_fresh(found, bounds)):
            return found
        found.close()
        raise WouldWait

    # ------------------------------------------------------------------ what readers of changes read next

    def has_commit(self, task: SavedTask, store: str, commit: Commit) -> bool | None:
        """Return whether the copy of a store here is at a commit or a later one; None if there is no copy here."""
        try:
            found = self._open(task, store)
        except (ConfigError, StoreError):
            return None
        found.close()
        return found.version is not None and may_precede(commit.version, found.version)

    def note_followed(self, task: SavedTask, commit: Commit | None) -> None:
        """From now on let no version before a commit answer as a fresh one: a reader of changes begins behind it.

        The reader reads the store next. From a version before it would never get the changes in between. Without a
        commit, versions are those from before the application was reset.
        """
        self._followed[task.id] = commit, self.world.seconds()

    def followed(self, task: SavedTask) -> Follows | None:
        """Return what an answer from elsewhere has to have for such readers; mostly None.

        Two seconds after a reader has begun, each fresh answer has it.
        """
        noted = self._followed.get(task.id)
        if noted is None or (age := self.world.seconds() - noted[1]) > MOST_AGE_SECONDS:
            return None
        positions = {} if noted[0] is None else noted[0].positions
        return Follows({each: positions[each] for each in task.partitions if each in positions}, age)

    def _is_before_followed(self, found: Snapshot) -> bool:
        """Return whether a snapshot may be of a version before that from which on a reader follows."""
        noted = self._followed.get(found.task)
        if noted is None or (found.confirmed_at is not None and found.confirmed_at >= noted[1]):
            return False
        if noted[0] is None:
            return found.version is not None
        return found.version is None or not may_precede(noted[0].version, found.version)

    def _missing(self, task: SavedTask, found: Snapshot, bounds: Bounds) -> str | None:
        """Return why the snapshot cannot answer yet, as text; None if it can."""
        wanted = _wanted(task, bounds)
        if wanted and not found.has(wanted) and not self._confirmed(task, found).has(wanted):
            return f"its copy here is not known to have processed the records before {_shown(wanted)}"
        if bounds.stale_ok or self._is_fresh(found, bounds) or self._is_fresh(self._confirmed(task, found), bounds):
            return None
        return (
            f"its copy here is at version {found.counter}, and the log has a later one: it is behind, or the task runs "
            "elsewhere; with stale_ok it answers as it is"
        )

    def _is_fresh(self, found: Snapshot, bounds: Bounds) -> bool:
        at = -inf if found.confirmed_at is None else found.confirmed_at
        is_recent = self.world.seconds() - at <= MOST_AGE_SECONDS and at >= bounds.since
        return is_recent and not self._is_before_followed(found)

    @abstractmethod
    def _open(self, task: SavedTask, store: str) -> Snapshot:
        """Return a store as it is here now. Raises as `snapshot`."""

    @abstractmethod
    def _confirmed(self, task: SavedTask, found: Snapshot) -> Snapshot:
        """Return the snapshot with the log's present statement about its version."""

    # ------------------------------------------------------------------ facts

    def has(self, task: SavedTask, store: str) -> bool:
        """Return whether a store of a task is here, at any version; the log is not asked again for it."""
        try:
            self._open(task, store).close()
        except StoreUnavailableError:
            return False
        return True

    def lag(self, task: SavedTask, store: str) -> TaskLag:
        """Return the lag of a store's copy behind the task's last commit."""
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
