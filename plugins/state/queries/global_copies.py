"""GlobalCopies: this machine's copy of a global store, read beside the tasks; or one that this process fills."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from penstock import (
    Application,
    Commit,
    GlobalStore,
    Log,
    StoreBackend,
    StoreUnavailableError,
    TopicPartition,
    UnknownTopicError,
    World,
)
from penstock.hooks import registry
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.plugins.engine.task.local_state.global_copy import Position, copy_backend, copy_directory, current_number
from penstock.plugins.engine.task.local_state.global_stores import GlobalStores
from penstock.plugins.engine.task.locations import GLOBAL, Places
from penstock.program.layouts import Layouts
from penstock.store.kept_store import KeptStore
from penstock.support.repeats import Repeats

from .copies import MOST_AGE_SECONDS
from .local_copies import LocalCopies, Look
from .snapshots import Snapshot

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

    def _noted_tasks(self) -> Mapping[int, Mapping[str, SavedTask]]:
        """Return what stands for the tasks; the topic may be made again with other partitions."""
        topic = self._spec.source.topics[0]
        try:
            found = self.log.topic(topic)
        except UnknownTopicError:
            return {}
        read = tuple(TopicPartition(topic, number) for number in range(found.partitions))
        task = SavedTask(GLOBAL, read, Layouts({self._spec.store.name: self._kept}), "", None)
        return {self._spec.id: {GLOBAL: task}}

    def _as_noted_now(self, task: SavedTask, at_once: bool) -> SavedTask:
        return task

    def _open(self, task: SavedTask, store: str, *, at_once: bool = False) -> Snapshot:
        view = self._view(task, self._kept, store, at_once)
        version = view.version()
        if version is None:
            view.close()
            raise StoreUnavailableError("this machine's copy of the global store is not filled yet")
        position = Position.from_version(version)
        topic = self._spec.source.topics[0]
        reached = {TopicPartition(topic, int(number)): offset for number, offset in position.positions.items()}
        commit = Commit(reached, _version(reached, version), position.engine.encode())
        found = Snapshot(GLOBAL, commit.version, self._kept, commit, None, view)
        look = self._looks.get(GLOBAL)
        return found if look is None else self._with(found, look)

    def _with(self, found: Snapshot, look: Look) -> Snapshot:
        if look.commit is None or not found.has(look.commit.positions):
            return found
        return replace(found, confirmed_at=look.at)

    def _confirmed(self, task: SavedTask, found: Snapshot) -> Snapshot:
        # The topic may get records all the time: the copy has to reach an end that it had, not that which it has now.
        look = self._looks.get(task.id)
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
