"""ProcessResources: the shared parts of one process's tasks: world, directories, and copies of global stores."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Mapping
from math import inf
from pathlib import Path

from penstock import Application, Log, TopicPartition, World, duration_ms
from penstock.support.repeats import Repeats
from penstock.support.system_errors import raise_open_files_limit
from penstock.task.failures import RetryRequested

from .epoch import EpochCheck
from .local_state.directories import remove_unused
from .local_state.global_stores import GlobalStores
from .local_state.restoring import Stretch
from .locations import GLOBAL, Places
from .topic_ids import RecentIds

_CLEAN_UP_MS = 60_000

_log = logging.getLogger("penstock.state")


def tune_garbage_collector() -> None:
    """Tune this process's garbage collector for a worker: collect rarely, and skip objects allocated by imports.

    Records are allocated and freed by the million and never form cycles. With Python's defaults a third of the time
    goes into scanning them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
    gc.enable()


def tune_garbage_collector_to_answer() -> None:
    """Tune this process's garbage collector for a server: skip objects allocated by imports, and collect often.

    Clients wait meanwhile, some 0.7 microseconds for each object that is garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000, 5, 5)


class ProcessResources:
    """The world, directories and global stores that the tasks of one process share. There is one per process.

    The clock of `world` is for upkeep only: tasks get the time of their batch.
    """

    def __init__(self, world: World | None = None) -> None:
        raise_open_files_limit()
        self.world = world = world or World()
        self.repeats = Repeats(world.clock.now_ms)
        """Writes log lines that may come with every record."""
        self.filling = Stretch("the copy of the global stores")
        """Filling the global stores: any thread may watch and end it."""
        self._globals: dict[Path, GlobalStores] = {}
        self._next_clean_up: dict[str, int] = {}
        self._started_ms = world.clock.now_ms()
        self.is_settled = True
        """Whether every task of the application is open somewhere, as far as the driver knows, if there is one. Before
        that, unused local state may belong to another process that is about to start.
        """
        self.topic_ids = RecentIds(world.seconds)
        """The ids of the topics that open tasks read."""
        self._epochs: dict[str, EpochCheck] = {}
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Return the machine's time in ms."""
        return self.world.clock.now_ms()

    def wait_ms(self, delay_ms: int) -> None:
        """Wait before a retry."""
        self.world.sleep(delay_ms / 1000)

    def check_epoch(self, application: Application, log: Log, task_id: str) -> None:
        """Raise FencedError if the application's epoch has changed. Call it with the fence of the task."""
        self._epochs.setdefault(application.id, EpochCheck()).check(application, log, task_id)

    def task_directory(self, application: Application, task_id: str) -> Path:
        """Return the directory of a task's local state; made when first used."""
        return Places.of(application).task(task_id)

    def globals_of(self, application: Application) -> GlobalStores:
        """Return the global stores of an application; it may have none."""
        key = Places.of(application).root.absolute()
        with self._lock:
            found = self._globals.get(key)
            if found is None:
                found = self._globals[key] = GlobalStores(
                    application, self.task_directory(application, GLOBAL), self.repeats, self.filling
                )
            return found

    def update_globals(
        self,
        application: Application,
        log: Log,
        ends: Mapping[TopicPartition, int],
        now_ms: int,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        """Read the global stores on to the ends that were planned at `now_ms`; without a plan, to the present ends.

        `topic_ids`: the ids of their topics in that plan.
        """
        while application.program.global_stores:
            try:
                self.globals_of(application).update(log, ends, now_ms, topic_ids)
                return
            except RetryRequested as retry:
                self.wait_ms(retry.delay_ms)

    def close_globals(self, application: Application) -> None:
        """Close the copies of the global stores; the next update opens them anew. Tasks that read them must be closed.

        For copies whose files were removed, or written by another process.
        """
        with self._lock:
            found = self._globals.pop(Places.of(application).root.absolute(), None)
        if found is not None:
            found.close()

    def clean_up(self, application: Application) -> None:
        """Once a minute, delete local state of tasks that moved away, and write log lines that wait.

        Nothing is deleted before that delay has passed since the start, nor until `is_settled`: the application may
        have rested.
        """
        self.repeats.write_due()
        now_ms = self.now_ms()
        if now_ms < self._next_clean_up.get(application.id, 0):
            return
        self._next_clean_up[application.id] = now_ms + _CLEAN_UP_MS
        root = Places.of(application).root
        delay_ms: float = duration_ms(application.settings.state_cleanup_delay)
        if not self.is_settled or now_ms - self._started_ms < delay_ms:
            delay_ms = inf
        for task in remove_unused(root, delay_ms, now_ms, self.world.token(4)):
            _log.info("application %s, task %s: removed this host's copy, unused for a while", application.id, task)

    def close(self) -> None:
        """Close the global stores, and write waiting log lines."""
        self.repeats.write_rest()
        with self._lock:
            for each in self._globals.values():
                each.close()
            self._globals.clear()
