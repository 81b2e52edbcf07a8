"""Hosts of a simulation: each runs tasks with the engine's own code, in batches or continuously."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path

from greenlet import getcurrent, greenlet

from penstock import Application, FencedError, IncompatibleStateError, LogError, StaleStoreError, TaskId, TopicPartition
from penstock.plugins.runtime.loop.task_loop import TaskLoop
from penstock.plugins.runtime.process_resources import ProcessResources
from penstock.plugins.runtime.task_worker import TaskWorker
from penstock.task.failures import RetryRequested

from .failure import HostDied, SimulatedDiskError, SimulatedOutage
from .host_world import HostWorld
from .log import HostLog


def with_state_in(application: Application, directory: Path) -> Application:
    """Return a prepared application with the state of its tasks in a directory.

    `Application.with_settings` would make another one, which is not prepared.
    """
    made = copy(application)
    made.settings = replace(application.settings, state_dir=str(directory))
    return made


Tasks = Mapping[str, tuple[TopicPartition, ...]]


class Host(ABC):
    """One process with tasks. `number` names it in the story; `application` has the directory of its machine.

    A method raises HostDied where the host dies in it.
    """

    def __init__(self, number: int, application: Application, tasks: Tasks, log: HostLog, world: HostWorld) -> None:
        self.number = number
        self.application = application
        self.all_tasks = tasks
        self.log = log
        self.world = world
        self.resources = ProcessResources(world.world)
        self.is_dead = False
        self._act: greenlet | None = None
        self._is_frozen = False
        self.is_of_earlier_program = False
        """Whether another program was deployed since it started."""
        self.refusals = 0
        """How many of its next operations its disk refuses."""
        self.purgeable: dict[TopicPartition, int] = {}
        """The positions in internal topics below which its tasks have reported that they need no records."""
        self.failures: list[str] = []
        """What tasks failed with that no fault of the simulation explains."""

    def __str__(self) -> str:
        return f"host {self.number}"

    @property
    def machine(self) -> int:
        """The number of its machine, from 0 on."""
        return self.world.machine

    # ------------------------------------------------------------------ acts, which may stop in the middle

    def let(self, act: Callable[[], object]) -> None:
        """Run `act`, something that this host does, until it is done or the host freezes in it."""
        self._act = greenlet(act)
        self._act.switch()

    @property
    def is_frozen(self) -> bool:
        """Whether it stopped in the middle of an act."""
        return self._is_frozen

    def freeze(self) -> None:
        """Stop here, in the middle of an act, until `wake`; meanwhile others act. Raises HostDied if it dies frozen."""
        assert self._act is getcurrent() and self._act.parent is not None
        self._is_frozen = True
        self._act.parent.switch()

    def wake(self) -> None:
        """Go on where the host froze, until the act is done or the host freezes in it again."""
        assert self._act is not None
        self._is_frozen = False
        self._act.switch()

    def bury(self) -> None:
        """Release what a dead host has open in this process; nothing that it does reaches the log any more."""
        self.is_dead = True
        self.world.calls.clear()
        if self._is_frozen and self._act is not None:
            self._is_frozen = False
            self._act.parent = getcurrent()  # another host may be in an act, with which its machine goes down
            self._act.throw(HostDied(str(self)))
        with suppress(HostDied, LogError):
            self.close(commit=False)

    # ------------------------------------------------------------------ tasks

    @abstractmethod
    def run(self, names: Iterable[str]) -> None:
        """Run these tasks from now on, too."""

    @abstractmethod
    def work(self) -> int:
        """Do the next stretch of work; return the number of records processed."""

    @property
    @abstractmethod
    def lost(self) -> set[str]:
        """Tasks that ended since the last call of `run` that named them."""

    @abstractmethod
    def close(self, *, commit: bool) -> None:
        """Close all tasks, with a commit where they have something to commit."""

    def keep(self, names: Collection[str]) -> None:
        """Have no batches of other tasks any more. Tasks that work on their own notice when they are taken over."""
        return

    def judge(self, task: str, error: BaseException) -> None:
        """Note a task's error, unless a fault of the simulation or another owner explains it."""
        made_up = isinstance(error.__cause__, (SimulatedOutage, SimulatedDiskError))
        explained = made_up or isinstance(error, (FencedError, StaleStoreError))
        explained |= self.is_of_earlier_program and isinstance(error, IncompatibleStateError)
        if not explained:
            self.failures.append(f"{self}: task {task} failed: {type(error).__name__}: {error}")


class ContinuousHost(Host):
    """A host whose tasks poll, process and commit on their own: a `TaskLoop`."""

    def __init__(self, number: int, application: Application, tasks: Tasks, log: HostLog, world: HostWorld) -> None:
        super().__init__(number, application, tasks, log, world)
        self._loop = TaskLoop(application, tasks, log, self.resources, world.now_ms)
        self._lost: set[str] = set()

    def run(self, names: Iterable[str]) -> None:
        names = list(names)
        self._lost.difference_update(names)
        self._loop.run(names, {})

    def work(self) -> int:
        try:
            done = self._loop.turn(0)
        finally:
            for failed in self._loop.take_failures():
                self._lost.add(failed.task_id)
                self.judge(failed.task_id, failed.error)
        for report in self._loop.take_reports():
            self.purgeable.update(report.purgeable)
        return done

    @property
    def lost(self) -> set[str]:
        return self._lost

    def close(self, *, commit: bool) -> None:
        self._loop.close(commit=commit)
        self.resources.close()


class BatchHost(Host):
    """A host whose tasks run batches: a `TaskWorker` for each. One stretch of work is a batch of one task."""

    def __init__(self, number: int, application: Application, tasks: Tasks, log: HostLog, world: HostWorld) -> None:
        super().__init__(number, application, tasks, log, world)
        self._workers: dict[str, TaskWorker] = {}
        self._lost: set[str] = set()

    def run(self, names: Iterable[str]) -> None:
        for name in names:
            self._lost.discard(name)
            if name not in self._workers:
                self._workers[name] = TaskWorker(
                    self.application, TaskId.parse(name), self.all_tasks[name], self.log,
                    resources=self.resources, task_count=len(self.all_tasks),
                )  # fmt: skip

    def keep(self, names: Collection[str]) -> None:
        for name in set(self._workers).difference(names):
            self._workers.pop(name).close()

    def work(self) -> int:
        names = [name for name in self._workers if name not in self._lost]
        if not names:
            return 0
        # The one that worked longest ago.
        name, worker = names[0], self._workers.pop(names[0])
        self._workers[name] = worker
        ends = self.log.end_offsets(worker.partitions)
        try:
            report = worker.try_batch(ends, self.world.now_ms())
            self.purgeable.update(report.purgeable)
            return report.records_in
        except RetryRequested:
            return 0
        except Exception as error:
            self._lost.add(name)
            self.judge(name, error)
            return 0

    @property
    def lost(self) -> set[str]:
        return self._lost

    def close(self, *, commit: bool) -> None:
        for worker in self._workers.values():
            worker.close()
        self.resources.close()
