"""Hosts: processes of a simulation, with tasks or beside them, which run the engine's own code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from greenlet import getcurrent, greenlet

from penstock import (
    Application,
    ChangelogError,
    Commit,
    FencedError,
    IncompatibleStateError,
    LogError,
    OffsetOutOfRangeError,
    PenstockError,
    ProductionError,
    StaleStoreError,
    TaskId,
    TopicPartition,
    UnknownTopicError,
)
from penstock.plugins.engine.program.preparation import Prepared
from penstock.plugins.engine.program.visits import asked_visits
from penstock.plugins.engine.run.planning.control import Control, OwnOrders, PlannedApplication
from penstock.plugins.engine.run.planning.planner import BatchPlanner
from penstock.plugins.engine.task.fronts import UNKNOWN
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.state.copies import Replica, saved_tasks
from penstock.plugins.state.copies.standbys import Standbys
from penstock.task.failures import RetryRequested
from penstock.task.progress import Front
from penstock.task.schedules import NEVER
from penstock.task.visits import Visit

from .disk import HostFiles
from .host_world import HostDied, HostWorld, SimulatedDiskError, SimulatedOutage, described
from .log import HostLog


def with_state_in(application: Application, directory: Path) -> Application:
    """Return a prepared application with its state in a directory; that of `with_settings` is not prepared."""
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
    def __init__(self, act: Callable[[], object], world: HostWorld) -> None:
        super().__init__(act)
        self.world = world


def spend(seconds: float) -> None:
    """Let time pass in a processor that a simulated host calls, as if its work took so long; elsewhere, do nothing."""
    act = getcurrent()
    if isinstance(act, _Act):
        act.world.world.sleep(seconds)


class Host(ABC):
    """A process with tasks. `application` has its machine's directory. Methods raise HostDied where the host dies."""

    kind = "host"
    """What the story calls it."""

    def __init__(self, number: int, application: Application, log: HostLog, world: HostWorld) -> None:
        self.number = number
        self.application = application
        self.log = log
        self.world = world
        self.resources = ProcessResources(world.world)
        self.is_dead = False
        self.is_frozen = False
        """Whether it stopped in the middle of an act."""
        self._act: _Act | None = None
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
        return f"{self.kind} {self.number}"

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
    def can_act(self) -> bool:
        """Whether it can act: it has neither died nor stopped in the middle of an act."""
        return not self.is_frozen and not self.is_dead

    def freeze(self) -> None:
        """Stop here, in the middle of an act, until `wake`; meanwhile others act. Raises HostDied if it dies frozen."""
        assert self._act is getcurrent() and self._act.parent is not None, f"{self} freezes outside of its act"
        self.is_frozen = True
        self._act.parent.switch()

    def wake(self) -> None:
        """Go on where the host froze, until the act is done or the host freezes in it again."""
        assert self._act is not None, f"{self} wakes, and has never acted"
        self.is_frozen = False
        self._act.parent = getcurrent()  # another process may be in an act, between whose steps this one wakes
        self._act.switch()

    def bury(self) -> None:
        """Release a dead host's open objects in this process; its later calls do not reach the log."""
        self.is_dead = True
        self.world.calls.clear()
        if self.is_frozen and self._act is not None:
            self.is_frozen = False
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
        """Whether there are plans that the host has not begun."""
        return False

    def keep(self, names: Collection[str]) -> None:
        """Have no batches of other tasks any more. Tasks that work on their own notice when they are taken over."""
        return

    def take(self, report: TaskReport) -> None:
        """Record a task's report."""
        self.purgeable.update(report.purgeable)
        self.reported[report.task_id] = Commit(report.positions, report.version)
        self.opened.add(report.task_id)
        self.ticks[report.task_id] = NEVER if report.next_tick is None else report.next_tick

    def judge(self, task: str, error: BaseException) -> None:
        """Record a task's error, unless a simulated fault or another owner explains it."""
        cause = error.__cause__
        while cause is not None and cause.__cause__ is not None:
            cause = cause.__cause__
        log, files = self.log.shared, self.world.world.files
        explained = isinstance(cause, (SimulatedOutage, SimulatedDiskError)) or task in self.unanswered
        explained |= isinstance(error, (FencedError, StaleStoreError))
        self.unanswered.discard(task)
        if self.is_of_earlier_program:
            # A layout that was given up loses its topics, too, and the records that it has not read.
            explained |= isinstance(error, (IncompatibleStateError, OffsetOutOfRangeError))
            explained |= isinstance(error, (UnknownTopicError, ProductionError)) and "does not exist" in str(error)
            explained |= log.resets > 0  # its topics and files are deleted
        if log.lossy_topics:
            ends = self.application.settings.offset_out_of_range == "fail" and isinstance(error, IncompatibleStateError)
            explained |= ends or isinstance(error, OffsetOutOfRangeError)
        if isinstance(files, HostFiles):
            explained |= isinstance(error, ChangelogError) and files.has_read_damage
            explained |= isinstance(cause, FileNotFoundError) and files.disk.has_lost_directory
        if not explained:
            self.failures.append(f"{self}: task {task} failed: {described(error)}")


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


LEASE_SECONDS = 15.0
"""How long the lease of an application lasts."""


class DriverHost(Host):
    """A driver with the lease of its application. `owners`: by task, the host that runs it, which gets its plans.

    Making one raises LogError while another one has the lease, and `work` FencedError after one has taken it.
    """

    kind = "driver"

    def __init__(
        self, number: int, application: Application, log: HostLog, world: HostWorld, prepared: Prepared,
        owners: Callable[[], Mapping[str, Host]],
    ) -> None:  # fmt: skip
        super().__init__(number, application, log, world)
        self._owners = owners
        self._lease = log.lease(application.id, str(self), int(LEASE_SECONDS * 1000))
        self._control, self._orders = OwnOrders(), Control()
        plan = PlannedApplication.of(prepared, len(prepared.tasks()), str(self))
        self._planner = BatchPlanner(plan, log, world, world.world.sleep, world.world.seconds, self._control)
        self._offset = self._planner.first()

    def work(self) -> int:
        """Renew the lease, and plan one batch, if there is one."""
        self._lease.renew()
        owners = dict(self._owners())
        ticks = {task: host.ticks[task] for task, host in owners.items() if task in host.opened}
        orders = Control(
            unopened=[task for task, host in owners.items() if task not in host.opened],
            next_tick=min(ticks.values(), default=None),
        )
        if orders != self._orders:
            self._orders = orders
            self._control.write(orders)
        following = self._planner.next(self._offset, None)
        if following != self._offset:
            self._offset = following
            for plan in self._planner.plans(following):
                for task, ends in plan.ends.items():
                    owners[task].planned[task] = Planned(ends, plan.clock_ms, plan.front_of(task))
            of_all = self._planner.plans(following)[0]
            for task in [each for each, tick in ticks.items() if tick <= of_all.clock_ms]:
                owners[task].planned.setdefault(task, Planned({}, of_all.clock_ms, of_all.front_of(task)))
        return 0

    def close(self, *, commit: bool) -> None:
        """Give up the lease, where it ends as it should; a driver that dies keeps it until it expires."""
        if commit:
            self._lease.release()
        super().close(commit=commit)


class ReplicaHost(Host):
    """Has a replica of each task with stores, in `directory` by task. No two may have the same one at a time.

    `check` gets this host, a task and its replica, whenever the replica may be read.
    """

    kind = "replica host"

    def __init__(
        self, number: int, application: Application, log: HostLog, world: HostWorld, directory: Path,
        check: Callable[[Host, str, Replica], None],
    ) -> None:  # fmt: skip
        super().__init__(number, application, log, world)
        self._directory, self._check = directory, check
        self._replicas: dict[str, Replica] = {}

    def work(self) -> int:
        """Bring each replica to the last commit, as far as its task lets it."""
        for task in saved_tasks(self.application.id, self.log):
            try:
                self._follow(task)
            except HostDied:
                raise
            except Exception as error:
                self.judge(f"{task}, its replica", error)
                self._close(task)
        return 0

    def _follow(self, task: str) -> None:
        if task not in self._replicas:
            place = self._directory / task
            self._replicas[task] = Replica(self.application, task, self.log, place, world=self.world.world)
        replica = self._replicas[task]
        self._check(self, task, replica)
        if replica.catch_up(lambda: self._check(self, task, replica)) and replica.commit is not None:
            assert replica.version == replica.commit.version, f"its commit is {replica.commit}, not {replica.version}"
        self._check(self, task, replica)

    def version(self, task: str) -> str | None:
        """Return the version that the replica of a task shows."""
        return self._replicas[task].version if task in self._replicas else None

    def stores(self, task: str) -> set[str]:
        """Return the stores of a task that its replica has."""
        return set(self._replicas[task].layout) if task in self._replicas else set()

    def _close(self, task: str) -> None:
        replica = self._replicas.pop(task, None)
        if replica is not None:
            with suppress(HostDied, LogError):
                replica.close()

    def close(self, *, commit: bool) -> None:
        """Close all replicas; their copies stay."""
        for task in list(self._replicas):
            self._close(task)
        super().close(commit=commit)


class StandbyHost(Host):
    """A process with the standbys of all tasks. `application` has the directory of its machine."""

    kind = "standby host"

    def __init__(self, number: int, application: Application, log: HostLog, world: HostWorld) -> None:
        super().__init__(number, application, log, world)
        self._standbys = Standbys(application, log, world=world.world)

    def work(self) -> int:
        """Bring on the copies that are due."""
        self.world.tick()
        while self.world.calls:
            self.world.run(0)
        return 0

    def unsettled(self) -> list[str]:
        """Return the tasks whose copies are neither at the last commit nor taken by their task, and why."""
        states = self._standbys.status()
        return [] if self._standbys.are_current else [f"{state.task} {state.state} {state.error}" for state in states]

    def close(self, *, commit: bool) -> None:
        """Leave the copies; those of a process that has died are left where they are."""
        if not commit:
            self._standbys._running.clear()  # no thread of it lives
        with suppress(HostDied, LogError):
            self._standbys.close()
        super().close(commit=commit)


_TURN_SECONDS = 0.25
"""So long a process waits, in all, before others act."""
_RESTS = 0.05
"""Before how many of its operations others act."""


class ToolHost(Host):
    """A process that does one thing, `act`, and then `is_done`, with `error`, or `made`: what `act` returned.

    Where it waits, and before some of its operations on log and disk, it rests, and others act until it is woken.
    """

    def __init__(
        self, number: int, application: Application, log: HostLog, world: HostWorld, random: Random, kind: str,
        act: Callable[[ToolHost], str],
    ) -> None:  # fmt: skip
        super().__init__(number, application, HostLog(log.shared, self._edge), world)
        self.kind = kind
        self._inner, self._do = log, act
        self._random = random
        files = world.world.files
        assert isinstance(files, HostFiles), f"{self} has the files of a real machine"
        self.own_world = replace(world.world, sleep=self._rest, files=files.preceded(self._rest_sometimes))
        self.is_done = self.rests = False
        self.made = ""
        self.error: PenstockError | None = None
        self._waited = 0.0

    def _rest(self, seconds: float) -> None:
        self.world.world.sleep(seconds)
        self._waited += seconds
        if self._waited >= _TURN_SECONDS:
            self._let_others_act()

    def _edge(self, what: str, call: Callable[[], Any], changes: bool) -> Any:
        self._rest_sometimes()
        return self._inner.do(what, call, changes)

    def _rest_sometimes(self) -> None:
        if not self.is_dead and self._random.random() < _RESTS:
            self._let_others_act()

    def _let_others_act(self) -> None:
        self._waited, self.rests = 0.0, True
        self.freeze()
        self.rests = False

    def work(self) -> int:
        try:
            self.made = self._do(self)
        except PenstockError as error:
            self.error = error
        self.is_done = True
        return 0
