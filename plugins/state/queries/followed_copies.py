"""FollowedCopies: replicas of the tasks' stores, which a thread of this process keeps up to date."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from penstock import (
    Application,
    Commit,
    ConfigError,
    Log,
    StaleStoreError,
    StoreBackend,
    StoreUnavailableError,
    StoreView,
    World,
)
from penstock.plugins.engine.task.locations import Places
from penstock.plugins.state.copies import Replica, SavedTask
from penstock.store.kept_store import Layout
from penstock.stores.memory import MemoryBackend
from penstock.support.repeats import Repeats

from .copies import Copies, Snapshot, ViewBackend

_log = logging.getLogger("penstock.queries")

FOLLOW_SECONDS = 0.2
"""Seconds from one pass over all replicas to the next."""
_LONG_SECONDS = 0.5
"""For so long one replica is brought up before a pass over the others comes in between."""
_CHUNK = 256


class FollowedCopies(Copies):
    """Reads replicas in directories under `directory` (None: under `state_dir`); one process has them open.

    `subtopologies`: whose tasks it follows. `stores`: only these stores. A pass brings one replica after the other to
    its task's last commit. A replica answers with the version of its last pass, also while the next one is read. One
    with much to read, such as a restore, lets passes over the others come in between.
    """

    def __init__(
        self,
        application: Application,
        log: Log,
        subtopologies: Collection[int],
        stores: Collection[str],
        directory: Path | None = None,
        world: World | None = None,
    ) -> None:
        super().__init__(application, log, world)
        self._subtopologies = sorted(subtopologies)
        self._stores = frozenset(stores)
        self._directory = directory or Places.of(application).task("queries")
        self._replicas: dict[str, Replica] = {}
        self._shown: dict[str, _Shown] = {}
        self._errors: dict[str, str] = {}
        self._passed_at = 0.0
        self._repeats = Repeats(self.world.clock.now_ms)
        self._ticker = self.world.ticker("penstock-replicas", FOLLOW_SECONDS, self._follow)

    # ------------------------------------------------------------------ the thread

    def _follow(self, beside: str | None = None) -> None:
        """Make a pass; `beside` that task, whose replica is being brought up, over those that need no restore."""
        for number in self._subtopologies:
            try:
                tasks = self.tasks(number)
            except Exception as error:  # such as a log that cannot be reached
                self._warn(f"sub-topology {number}", error)
                continue
            for task in tasks.values():
                if self._has_closed:
                    return
                if task.id == beside:
                    continue
                try:
                    self._bring_up(task, is_beside=beside is not None)
                    self._errors.pop(task.id, None)
                except Exception as error:  # the other replicas go on
                    if not self._has_closed:
                        self._errors[task.id] = str(error)
                        self._warn(f"task {task.id}", error)
        self._passed_at = self.world.seconds()

    def _between(self, task: str, began: float) -> None:
        """Let the others follow beside a replica that has much to read; no pass begins within such a pass."""
        if self.world.seconds() - max(began, self._passed_at) >= _LONG_SECONDS:
            self._follow(beside=task)
        self._check_open()

    def _check_open(self) -> None:
        if self._has_closed:
            raise StaleStoreError("the replicas were closed")

    def _warn(self, what: str, error: Exception) -> None:
        self._repeats.log(
            _log, logging.WARNING, (what, type(error)), "application %r: the replica of %s cannot follow: %s",
            self.application.id, what, error,
        )  # fmt: skip

    def _bring_up(self, task: SavedTask, *, is_beside: bool) -> None:
        own = {name for name, kept in task.layouts.now.items() if kept.logged and name in self._stores}
        replica = self._replicas.get(task.id)
        if replica is not None and replica.layout.keys() != own:  # another program runs than when it was opened
            self._replicas.pop(task.id).close()
            replica = None
        if replica is None:
            if not own:
                return
            replica = self._replicas[task.id] = Replica(
                self.application, task.id, self.log, self._directory / task.id, stores=own, world=self.world
            )
        if replica.saved != task:  # such as after a reset: until the replica knows, nothing here answers
            replica.look_again()
        if is_beside and replica.version is None and task.id not in self._shown:
            return  # it needs a restore of its own, which has its turn
        began, before = self.world.seconds(), self._shown.get(task.id)
        caught_up = replica.catch_up(self._check_open if is_beside else partial(self._between, task.id, began))
        if before is not None and before.is_of(replica):
            if caught_up:
                before.commit, before.confirmed_at = replica.commit, began
            return
        if replica.version is None and not caught_up:
            return
        self._shown[task.id] = _Shown(replica, began if caught_up else None)
        if before is not None:
            before.end()

    # ------------------------------------------------------------------ reading

    def _open(self, task: SavedTask, store: str) -> Snapshot:
        shown = self._shown.get(task.id)
        if shown is None:
            stretch = self._replicas[task.id].opening if task.id in self._replicas else None
            steps = "" if stretch is None else f" ({stretch.steps:,} steps so far)"
            raise StoreUnavailableError(self._errors.get(task.id) or f"its replica is being restored{steps}")
        if shown.saved != task:  # as after a deployment: the keys may be divided among other tasks
            self._note_reader.at = float("-inf")
            raise StoreUnavailableError("the application runs another program than a moment ago")
        return shown.snapshot(task.id, store)

    def _confirmed(self, task: SavedTask, found: Snapshot) -> Snapshot:
        return found  # the next pass brings a later one

    def close(self) -> None:
        super().close()
        self._ticker.close()
        with ExitStack() as stack:
            for replica in self._replicas.values():
                stack.callback(replica.close)
            for shown in self._shown.values():
                stack.callback(shown.end)


class _Shown:
    """The views of a replica after a pass. They are closed when the last query ends after the next pass."""

    def __init__(self, replica: Replica, confirmed_at: float | None) -> None:
        self.version = replica.version
        self.commit: Commit | None = None if replica.version is None else replica.commit
        self.confirmed_at = confirmed_at
        self.layout: Layout = replica.layout
        self.saved = replica.saved
        self._views: dict[str, StoreView] = {}
        self._lock = threading.Lock()
        self._users = 1
        for name in {kept.backend for kept in self.layout.values()} if self.version is not None else ():
            own = [store for store, kept in self.layout.items() if kept.backend == name]
            tables = [table for store in own for table in self.layout[store].tables(store)]
            view = replica.backend(own[0]).view(tables)
            if view is None:
                self.end()
                raise ConfigError(
                    f"store backend {name!r} of stores {', '.join(own)} has no views, so replicas on it cannot be "
                    "asked; give these stores another backend"
                )
            self._views.update(dict.fromkeys(own, _SharedView(view)))

    def is_of(self, replica: Replica) -> bool:
        """Return whether a replica shows the same version of the same stores."""
        return (self.version, self.layout, self.saved) == (replica.version, replica.layout, replica.saved)

    def snapshot(self, task: str, store: str) -> Snapshot:
        """Return a store of the replica. Raises StoreUnavailableError for one that it does not have."""
        kept = self.layout.get(store)
        if kept is None:
            raise StoreUnavailableError("its replica does not have the store yet")
        backend: StoreBackend
        if self.version is None:
            backend = MemoryBackend.ephemeral(kept.tables(store))
        else:
            with self._lock:
                if not self._users:
                    raise StoreUnavailableError("its replica has just got a later version")
                self._users += 1
            backend = ViewBackend(self._views[store], self.end)
        return Snapshot(task, self.version, kept, self.commit, self.confirmed_at, backend)

    def end(self) -> None:
        """End a use; the last one closes the views."""
        with self._lock:
            self._users -= 1
            ends = not self._users
        if ends:
            for view in set(self._views.values()):
                view.close()


class _SharedView(StoreView):
    """A view that several threads use by turns."""

    def __init__(self, view: StoreView) -> None:
        self.version = view.version
        self._view = view
        self._lock = threading.Lock()

    def get(self, store: str, key: bytes) -> bytes | None:
        with self._lock:
            return self._view.get(store, key)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._view.range(store, start, end, reverse=reverse)
        while True:
            with self._lock:
                chunk = list(islice(rows, _CHUNK))
            yield from chunk
            if len(chunk) < _CHUNK:
                return

    def close(self) -> None:
        with self._lock:
            self._view.close()
