"""LocalCopies: the local state of the tasks that run on this machine, read beside them."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from zlib import crc32

from penstock import (
    Application,
    Commit,
    GlobalStore,
    Log,
    StoreBackend,
    StoreError,
    StoreUnavailableError,
    TopicPartition,
    UnknownTopicError,
    World,
    is_version,
    may_precede,
    version_counter,
)
from penstock.hooks import registry
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.plugins.engine.task.local_state.global_copy import (
    Position,
    copy_backend,
    copy_directory,
    current_number,
    form_of_entries,
)
from penstock.plugins.engine.task.local_state.global_stores import GlobalStores
from penstock.plugins.engine.task.locations import GLOBAL, Places, live_directory
from penstock.program.layouts import Layouts, id_of_version
from penstock.store.kept_store import KeptStore
from penstock.stores.memory import MemoryBackend
from penstock.support.repeats import Repeats

from .copies import MOST_AGE_SECONDS, Copies, Snapshot, ViewBackend, WouldWait, may_wait

_REOPEN_SECONDS = 0.5
"""How long a reader stays open, or a task counts as one of another machine: it may have got other files meanwhile."""
_AHEAD_SECONDS = MOST_AGE_SECONDS / 4
"""Age of the log's last answer at which it is asked again: beside many transactions Kafka takes up to a second."""
_EMPTY_SECONDS = 0.1
"""How long a task counts as one that has made no commit."""


@dataclass
class _Reader:
    """A store backend that was opened to read, at a time (seconds)."""

    backend: StoreBackend
    opened_at: float


@dataclass(frozen=True)
class Look:
    """The last commit that the log had at a time (seconds); None: the task had made none. `before`: the look before.

    `identity`: the application's incarnation then.
    """

    commit: Commit | None
    at: float
    identity: str
    before: Look | None = None


class LocalCopies(Copies):
    """Reads the stores of tasks that run in this process or in others of this machine, as of their last commits.

    A task writes to its local state only what is committed, so what is there is a committed version. A reader shows it
    as one, by a view of the store backend. A backend that only one process can open is refused.
    """

    def __init__(self, application: Application, log: Log, world: World | None = None) -> None:
        super().__init__(application, log, world)
        self._places = Places.of(application)
        self._lock = threading.Lock()
        self._readers: dict[tuple[str, str], _Reader] = {}
        self._absent: dict[tuple[str, str], float] = {}
        """When there was no local state of a task, by task and backend (seconds)."""
        self._looks: dict[str, Look] = {}
        self._looking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def _open(self, task: SavedTask, store: str) -> Snapshot:
        kept = task.layouts.now.get(store)
        if kept is None:
            raise StoreUnavailableError("the program with this store has not begun to run")
        look = self._known(task)
        if look is None or (look.commit is None and self.world.seconds() - look.at > _EMPTY_SECONDS):
            look = self._look(task)
        if not may_wait() and self.world.seconds() - look.at > _AHEAD_SECONDS:
            self.ahead.start(task.id, lambda: self._look(task))
        if look.commit is None:
            return Snapshot(task.id, None, kept, None, look.at, MemoryBackend.ephemeral(kept.tables(store)))
        view = self._view(task, kept, store)
        version = view.version()
        if version is None or not is_version(version):
            view.close()
            raise StoreUnavailableError("its local state is being restored")
        if id_of_version(version) not in (None, task.layouts.id):
            view.close()
            self._note_reader.at = float("-inf")
            raise StoreUnavailableError("its local state is of an earlier program, and the task is being opened")
        if not (may_precede(version, look.commit.version) or may_precede(look.commit.version, version)):
            view.close()
            raise StoreUnavailableError("its local state is from before the application was reset or restored")
        found = Snapshot(task.id, version, kept, None, None, view)
        # At once, the clock of the look before will do: it is at most two seconds old.
        if kept.expires and may_wait() and version_counter(look.commit.version) < found.counter:
            try:
                look = self._look(task)  # its clock says what has expired
            except BaseException:
                found.close()
                raise
        return self._with(found, look)

    def _confirmed(self, task: SavedTask, found: Snapshot) -> Snapshot:
        known = self._known(task)
        is_old = known is None or self.world.seconds() - known.at > MOST_AGE_SECONDS
        last = None if known is None or is_old else known.commit
        if last is not None and version_counter(last.version) > found.counter:
            return found  # the copy has to have that version first: the log would name it again, or a later one
        return self._with(found, self._look(task))

    def _with(self, found: Snapshot, look: Look) -> Snapshot:
        """Return the snapshot with a commit that it has reached, if the log had no later one.

        The log has a commit some milliseconds before the copy here; until then the look before counts.
        """
        if found.version is None:
            return found
        for each in (look, look.before):
            commit = None if each is None else each.commit
            if each is not None and commit is not None and may_precede(commit.version, found.version):
                found.commit, found.confirmed_at = commit, each.at
                break
        return found

    def _look(self, task: SavedTask) -> Look:
        """Ask the log for the last commit; queries that wait for the same answer share it."""
        if not may_wait():
            raise WouldWait
        before = self._known(task)
        with self._looking[task.id]:
            known = self._known(task)
            if known is not None and known is not before:
                return known
            at = self.world.seconds()
            commit = self.last_commit(task)
            look = self._looks[task.id] = Look(
                commit, at, task.identity, None if known is None else replace(known, before=None)
            )
            return look

    def _known(self, task: SavedTask) -> Look | None:
        """Return the last look, if the application was not reset since."""
        look = self._looks.get(task.id)
        return look if look is not None and look.identity == task.identity else None

    # ------------------------------------------------------------------ readers

    def _view(self, task: SavedTask, kept: KeptStore, store: str) -> ViewBackend:
        if not self._lock.acquire(blocking=may_wait()):
            raise WouldWait
        try:
            key, now = (task.id, kept.backend), self.world.seconds()
            reader = self._readers.get(key)
            if not may_wait() and reader is None and now - self._absent.get(key, -inf) <= _REOPEN_SECONDS:
                raise StoreUnavailableError("this machine has no local state of the task")
            try:
                if reader is None or now - reader.opened_at > _REOPEN_SECONDS:
                    backend = self._opened(task, kept.backend)
                    self._drop(key)
                    reader = self._readers[key] = _Reader(backend, now)
                view = reader.backend.view(kept.tables(store))
            except StoreError as error:
                self._drop(key)
                raise StoreUnavailableError(str(error)) from error
            if view is None:
                raise StoreError(
                    f"store {store!r} is on the store backend {kept.backend!r}, which cannot be read beside its task: "
                    "read it from the changelog (Queries.from_changelog, penstock serve)"
                )
            return ViewBackend(view, view.close, reader.backend.approximate_count)
        finally:
            self._lock.release()

    def _opened(self, task: SavedTask, backend: str) -> StoreBackend:
        root = self._places.task(task.id) / backend
        live = live_directory(root)
        if live is None:
            self._absent[task.id, backend] = self.world.seconds()
            raise StoreUnavailableError(
                f"this machine has no local state of the task under {root}: ask where it runs, or read the changelog "
                "(Queries.from_changelog, penstock serve)"
            )
        tables = [
            table for name, kept in task.layouts.now.items() if kept.backend == backend for table in kept.tables(name)
        ]
        opened: StoreBackend = registry().load("store backend", backend)(live, tables, read_only=True)
        return opened

    def _drop(self, key: tuple[str, str]) -> None:
        reader = self._readers.pop(key, None)
        if reader is not None:
            reader.backend.close()

    def close(self) -> None:
        super().close()
        with self._lock:
            for key in list(self._readers):
                self._drop(key)


"""The name that stands for a task where a global store is asked: it has all keys."""
_FILL_SECONDS = 0.2

_log = logging.getLogger("penstock.queries")


class GlobalCopies(LocalCopies):
    """Reads the copy of a global store under `directory` (None: that of the tasks on this machine).

    Its versions are how many records of its topic it has read. One counts as fresh if the copy has all records that
    the topic had at some time within the last two seconds.
    """

    has_changelog = False

    def __init__(
        self,
        application: Application,
        log: Log,
        spec: GlobalStore,
        directory: Path | None = None,
        world: World | None = None,
    ) -> None:
        super().__init__(application, log, world)
        self._spec = spec
        root = directory or Places.of(application).globals
        self._directory = root / spec.store.name
        self._kept = KeptStore.of(spec.store, copy_backend(application, spec.store))
        self._form = form_of_entries(application, spec.store)

    def _noted_tasks(self) -> Mapping[int, Mapping[str, SavedTask]]:
        """Return what stands for the tasks, with the topic's id as its identity; the topic may be made again."""
        topic = self._spec.source.topics[0]
        try:
            found = self.log.topic(topic)
        except UnknownTopicError:
            return {}
        read = tuple(TopicPartition(topic, number) for number in range(found.partitions))
        task = SavedTask(GLOBAL, read, Layouts({self._spec.store.name: self._kept}), found.id, None)
        return {self._spec.id: {GLOBAL: task}}

    def _as_noted_now(self, task: SavedTask) -> SavedTask:
        return self.tasks(self._spec.id).get(task.id, task)

    def _open(self, task: SavedTask, store: str) -> Snapshot:
        view = self._view(task, self._kept, store)
        version = view.version()
        if version is None:
            view.close()
            raise StoreUnavailableError("this machine's copy of the global store is not filled yet")
        position = Position.from_version(version)
        if reason := position.contradiction(self._form, task.identity):
            view.close()
            raise StoreUnavailableError(
                f"this machine's copy of the global store waits until the application fills it again: {reason}"
            )
        topic = self._spec.source.topics[0]
        reached = {TopicPartition(topic, int(number)): offset for number, offset in position.positions.items()}
        commit = Commit(reached, _version(reached, version), position.engine.encode())
        found = Snapshot(GLOBAL, commit.version, self._kept, commit, None, view)
        look = self._known(task)
        return found if look is None else self._with(found, look)

    def _with(self, found: Snapshot, look: Look) -> Snapshot:
        if look.commit is None or not found.has(look.commit.positions):
            return found
        return replace(found, confirmed_at=look.at)

    def _confirmed(self, task: SavedTask, found: Snapshot) -> Snapshot:
        # The topic may get records all the time: the copy has to reach an end that it had, not that which it has now.
        look = self._known(task)
        if look is None or self.world.seconds() - look.at > MOST_AGE_SECONDS / 2:
            look = self._look(task)
        return self._with(found, look)

    def last_commit(self, task: SavedTask) -> Commit:
        """Return the ends of the topic as if they were a commit."""
        ends = self.log.end_offsets(task.partitions)
        return Commit(ends, _version(ends, ""))

    def _opened(self, task: SavedTask, backend: str) -> StoreBackend:
        path = copy_directory(self._directory, backend, current_number(self._directory, backend))
        if not path.is_dir():
            raise StoreUnavailableError(f"this machine has no copy of the global store under {self._directory}")
        opened: StoreBackend = registry().load("store backend", backend)(
            path, self._kept.tables(self._spec.store.name), read_only=True
        )
        return opened


class Filler:
    """Fills copies of an application's global stores under `directory`, in a thread, until it is closed."""

    def __init__(self, application: Application, log: Log, directory: Path, world: World | None = None) -> None:
        self._application = application
        self._world = world or World()
        self._log = log
        self._repeats = Repeats(self._world.clock.now_ms)
        self._stores = GlobalStores(application, directory, self._repeats)
        self._ends = False
        self._ticker = self._world.ticker("penstock-globals", _FILL_SECONDS, self._fill)

    def _fill(self) -> None:
        try:
            self._stores.update(self._log, {}, self._world.clock.now_ms(), is_over=lambda: self._ends)
        except Exception as error:  # the next pass tries again
            self._repeats.log(
                _log, logging.WARNING, ("global", type(error)), "application %r: the global stores cannot follow: %s",
                self._application.id, error,
            )  # fmt: skip

    def close(self) -> None:
        """End; the copies stay for the next time."""
        self._ends = True
        self._ticker.close()
        self._stores.close()


def _version(reached: Mapping[TopicPartition, int], form: str) -> str:
    return f"{sum(reached.values())}-{crc32(form.encode()):08x}"
