"""Hosts of a simulation: each runs tasks with the engine's own code, in batches or continuously."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from greenlet import getcurrent, greenlet

from penstock import (
    Application,
    ChangelogError,
    Commit,
    FencedError,
    IncompatibleStateError,
    LogError,
    OffsetOutOfRangeError,
    ProductionError,
    StaleStoreError,
    TaskId,
    TopicPartition,
    UnknownTopicError,
)
from penstock.plugins.engine.program.visits import asked_visits
from penstock.plugins.engine.task.fronts import UNKNOWN
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.task.failures import RetryRequested
from penstock.task.progress import Front
from penstock.task.schedules import NEVER
from penstock.task.visits import Visit

from .failure import HostDied, SimulatedDiskError, SimulatedOutage, described
from .host_files import HostFiles
from .host_log import HostLog
from .host_world import HostWorld


def with_state_in(application: Application, directory: Path) -> Application:
    """Return a prepared application with the state of its tasks in a directory.

    `Application.with_settings` would make another one, which is not prepared.
    """
    made = copy(application)
    made.settings = replace(application.settings, state_dir=str(directory))
    return made


Tasks = Mapping[str, tuple[TopicPartition, ...]]


class Planned(NamedTuple):
    """What a driver has planned for one task: how far it reads, the batch's wall clock (ms), and what is in front."""

    ends: Mapping[TopicPartition, int]
    clock_ms: int
    front: Front = UNKNOWN


class _Act(greenlet):  # type: ignore[misc]
    """Something that a host does, which may stop in the middle."""

    def __init__(self, act: Callable[[], object], world: HostWorld) -> None:
        super().__init__(act)
        self.world = world


def spend(seconds: float) -> None:
    """Let time pass in a processor that a simulated host calls, as if its work took so long; elsewhere, do nothing."""
    act = getcurrent()
    if isinstance(act, _Act):
        act.world.world.sleep(seconds)


class Host(ABC):
    """One process with tasks. `number` names it in the story; `application` has the directory of its machine.

    A method raises HostDied where the host dies in it.
    """

    def __init__(self, number: int, application: Application, log: HostLog, world: HostWorld) -> None:
        self.number = number
        self.application = application
        self.log = log
        self.world = world
        self.resources = ProcessResources(world.world)
        self.is_dead = False
        self._act: _Act | None = None
        self._is_frozen = False
        self.is_of_earlier_program = False
        """Whether another program was deployed since it started."""
        self.unanswered: set[str] = set()
        """Tasks of which it asked whether they are its own while the log was away: an error may be of a successor."""
        self.refusals = 0
        """How many of its next operations its disk refuses."""
        self.purgeable: dict[TopicPartition, int] = {}
        """The positions in internal topics below which its tasks have reported that they need no records."""
        self.topic_ids = {name: info.id for name, info in log.shared.topics().items()}
        """The topics that were there when it started: its driver deletes records of these, and of no later ones."""
        self.planned: dict[str, Planned] = {}
        """What the driver has planned for tasks, in batches."""
        self.opened: set[str] = set()
        """The tasks that it has reported since it was given them."""
        self.ticks: dict[str, int] = {}
        """When (ms) the next punctuator of each task is due that it has reported."""
        self.reported: dict[str, Commit] = {}
        """The last commit of each task that it has reported."""
        self.known: Mapping[str, Commit] = {}
        """The last commits that the driver knows of, by task: the log must have them, or later ones."""
        self.failures: list[str] = []
        """What tasks failed with that no fault of the simulation explains."""
        self.lost: set[str] = set()
        """Tasks that ended since the last call of `run` that named them."""

    def __str__(self) -> str:
        return f"host {self.number}"

    @property
    def machine(self) -> int:
        """The number of its machine, from 0 on."""
        return self.world.machine

    # ------------------------------------------------------------------ acts, which may stop in the middle

    def let(self, act: Callable[[], object]) -> None:
        """Run `act`, something that this host does, until it is done or the host freezes in it."""
        self._act = _Act(act, self.world)
        self._act.switch()

    @property
    def is_frozen(self) -> bool:
        """Whether it stopped in the middle of an act."""
        return self._is_frozen

    def freeze(self) -> None:
        """Stop here, in the middle of an act, until `wake`; meanwhile others act. Raises HostDied if it dies frozen."""
        assert self._act is getcurrent() and self._act.parent is not None, f"{self} freezes outside of its act"
        self._is_frozen = True
        self._act.parent.switch()

    def wake(self) -> None:
        """Go on where the host froze, until the act is done or the host freezes in it again."""
        assert self._act is not None, f"{self} wakes, and has never acted"
        self._is_frozen = False
        self._act.parent = getcurrent()  # another process may be in an act, between whose steps this one wakes
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

    def run(self, names: Iterable[str]) -> None:
        """Run these tasks from now on, too; a process beside the application runs none."""
        return

    @abstractmethod
    def work(self) -> int:
        """Do the next stretch of work; return the number of records processed."""

    def close(self, *, commit: bool) -> None:
        """Close all tasks, with a commit where they have something to commit."""
        self.resources.close()

    @property
    def has_plans(self) -> bool:
        """Whether a driver has planned what it has not begun."""
        return False

    def keep(self, names: Collection[str]) -> None:
        """Have no batches of other tasks any more. Tasks that work on their own notice when they are taken over."""
        return

    def take(self, report: TaskReport) -> None:
        """Note what a task has reported."""
        self.purgeable.update(report.purgeable)
        self.reported[report.task_id] = Commit(report.positions, report.version)
        self.opened.add(report.task_id)
        self.ticks[report.task_id] = NEVER if report.next_tick is None else report.next_tick

    def judge(self, task: str, error: BaseException) -> None:
        """Note a task's error, unless a fault of the simulation or another owner explains it."""
        cause = error.__cause__
        while cause is not None and cause.__cause__ is not None:
            cause = cause.__cause__
        explained = isinstance(cause, (SimulatedOutage, SimulatedDiskError))
        explained |= isinstance(error, (FencedError, StaleStoreError)) or task in self.unanswered
        self.unanswered.discard(task)
        explained |= self.is_of_earlier_program and isinstance(error, IncompatibleStateError)
        # A layout that was given up loses its topics, too, and the records that it has not read.
        explained |= self.is_of_earlier_program and isinstance(error, OffsetOutOfRangeError)
        missing = isinstance(error, (UnknownTopicError, ProductionError)) and "does not exist" in str(error)
        explained |= self.is_of_earlier_program and missing
        explained |= self.is_of_earlier_program and self.log.shared.resets > 0  # its topics and files are deleted
        explained |= self._misses_records(error) or self._has_read_damage(error)
        explained |= isinstance(cause, FileNotFoundError) and self._disk_has_lost_directory
        if not explained:
            self.failures.append(f"{self}: task {task} failed: {described(error)}")

    @property
    def _disk_has_lost_directory(self) -> bool:
        files = self.world.world.files
        return isinstance(files, HostFiles) and files.disk.has_lost_directory

    def _misses_records(self, error: BaseException) -> bool:
        fails = self.application.settings.offset_out_of_range == "fail"
        kinds = (OffsetOutOfRangeError, IncompatibleStateError) if fails else OffsetOutOfRangeError
        return bool(self.log.shared.lossy_topics) and isinstance(error, kinds)

    def _has_read_damage(self, error: BaseException) -> bool:
        files = self.world.world.files
        return isinstance(error, ChangelogError) and isinstance(files, HostFiles) and files.has_read_damage


class ContinuousHost(Host):
    """A host whose tasks poll, process and commit on their own: a `TaskLoop`."""

    def __init__(self, number: int, application: Application, log: HostLog, world: HostWorld, tasks: Tasks) -> None:
        super().__init__(number, application, log, world)
        self._loop = TaskLoop(application, tasks, log, self.resources, world.now_ms)
        self._visits: list[Visit] = []

    def run(self, names: Iterable[str]) -> None:
        names = list(names)
        self.lost.difference_update(names)
        self._loop.run(names, self.known, visits=self._visits)

    def work(self) -> int:
        visits = asked_visits(self.application.id, self.log)
        if visits != self._visits:
            self._visits = visits
            self._loop.run((), self.known, visits=visits)
        try:
            done = self._loop.turn(0)
        finally:
            for failed in self._loop.take_failures():
                self.lost.add(failed.task_id)
                self.judge(failed.task_id, failed.error)
        for report in self._loop.take_reports():
            self.take(report)
        return done

    def close(self, *, commit: bool) -> None:
        self._loop.close(commit=commit)
        super().close(commit=commit)


class BatchHost(Host):
    """A host whose tasks run batches: a `TaskWorker` for each. One stretch of work is a batch of one task."""

    def __init__(self, number: int, application: Application, log: HostLog, world: HostWorld, tasks: Tasks) -> None:
        super().__init__(number, application, log, world)
        self._tasks = tasks
        self._workers: dict[str, TaskWorker] = {}

    def run(self, names: Iterable[str]) -> None:
        for name in names:
            self.lost.discard(name)
            self.opened.discard(name)
            if name not in self._workers:
                self._workers[name] = TaskWorker(
                    self.application, TaskId.parse(name), self._tasks[name], self.log,
                    resources=self.resources, task_count=len(self._tasks),
                )  # fmt: skip

    def keep(self, names: Collection[str]) -> None:
        for name in set(self._workers).difference(names):
            self._workers.pop(name).close()

    def work(self) -> int:
        visits = asked_visits(self.application.id, self.log)
        for each in self._workers.values():
            each.ask(visits)
        names = [name for name in self._workers if name not in self.lost and self._has_work(name)]
        if not names:
            return 0
        # The one that worked longest ago.
        name, worker = names[0], self._workers.pop(names[0])
        self._workers[name] = worker
        planned = self.planned.pop(name, None) or Planned({}, self.world.now_ms())
        try:
            # Every second host goes on with a visit in the same batch.
            seconds = float(self.number % 2)
            ends, clock_ms, front = planned
            report = worker.try_batch(ends, clock_ms, self.known.get(name), visit_seconds=seconds, front=front)
            self.take(report)
            return report.records_in
        except RetryRequested:
            self.planned.setdefault(name, planned)  # a host tries again in the same batch
            return 0
        except Exception as error:
            self.lost.add(name)
            self.opened.discard(name)
            self.judge(name, error)
            return 0

    @property
    def has_plans(self) -> bool:
        return any(name in self.planned for name in self._workers if name not in self.lost)

    def _has_work(self, name: str) -> bool:
        worker = self._workers[name]
        is_due = worker.task is not None and worker.task.is_wall_clock_due(self.world.now_ms())
        return name in self.planned or is_due or worker.commit_expires()

    def close(self, *, commit: bool) -> None:
        for worker in self._workers.values():
            worker.close()
        super().close(commit=commit)
