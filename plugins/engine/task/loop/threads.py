"""The threads beside a loop's own: they open tasks, write their commits, and keep their changelogs short."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from penstock import Commit, World

from ..local_state.restoring import RestoreProgress
from .continuous_worker import ContinuousWorker, Upkeep, Upkept

_log = logging.getLogger("penstock.worker")

_MANY, _FEW = 16, 2
_MOST_RESTORED = 2
"""How many tasks are restored at once: each takes processor time from the tasks that work."""
_MOST_UPKEPT = 2
"""How many changelogs are worked on at once."""
_LAST_SECONDS = 5.0


class Pools:
    """Pools of threads by their work. Commits and fences wait for the log; `rest` fills global stores, cleans up."""

    def __init__(self, world: World) -> None:
        self.commits = world.threads(_MANY, "penstock-commits")
        self.fences = world.threads(_MANY, "penstock-fences")
        self.restores = world.threads(_MANY, "penstock-restores")
        self.rest = world.threads(_FEW, "penstock-rest")

    def do(self, what: str, call: Callable[[], object]) -> None:
        """Do something that nobody waits for; an error is only logged."""
        self.rest.submit(_logged, what, call)

    def close(self) -> None:
        """Begin nothing more; wait for nothing."""
        for pool in (self.commits, self.fences, self.restores, self.rest):
            pool.shutdown(wait=False, cancel_futures=True)


def _logged(what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        _log.warning("%s: %s", what, error)


class Turnstile:
    """Lets a few threads work at once; the others wait in the order of arrival."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Wait for a place."""
        place = threading.Event()
        with self._lock:
            if self._free and not self._waiting:
                self._free -= 1
                return
            self._waiting.append(place)
        place.wait()

    def leave(self) -> None:
        """Give the place to the thread that waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def let_others_in(self) -> None:
        """Let the threads that wait have their turn, if any do."""
        if self._waiting:
            self.leave()
            self.enter()


@dataclass
class _Opening:
    """A task that is being prepared. `is_renewal`: the task only repeats its commit, and stays closed."""

    task: ContinuousWorker
    future: Future[None]
    is_renewal: bool = False


class Openings:
    """Prepares tasks. The loop's thread calls all methods; any thread may call `still` and `restoring`.

    Fences wait for the log, many at once. Restoring works: a few tasks at once, in turns, a portion each, so that a
    task with little to restore does not wait for one with much.
    """

    def __init__(self, pools: Pools, world: World) -> None:
        self._pools = pools
        self._world = world
        self._turnstile = Turnstile(_MOST_RESTORED)
        self._all: dict[str, _Opening] = {}
        self._restoring: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._all)

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def begin(self, name: str, task: ContinuousWorker, clock_ms: int, known: Mapping[str, Commit]) -> None:
        """Begin to prepare a task."""
        future = self._pools.fences.submit(task.prepare, clock_ms, known.get(name))
        self._all[name] = _Opening(task, future)

    def renew(self, name: str, task: ContinuousWorker, clock_ms: int, known: Mapping[str, Commit]) -> None:
        """Begin to repeat the commit of a task that waits before a retry, unless that has begun."""
        if name not in self._all:
            future = self._pools.fences.submit(task.renew, clock_ms, known.get(name))
            self._all[name] = _Opening(task, future, is_renewal=True)

    def take_ended(self) -> Iterator[tuple[str, BaseException | None]]:
        """Yield tasks that are prepared, with the error if that failed. The caller may stop after any of them."""
        for name, opening in list(self._all.items()):
            if not opening.future.done():
                continue
            error = opening.future.exception()
            if error is None and opening.is_renewal:
                del self._all[name]
                continue
            if error is None and name not in self._restoring:
                self._restoring.add(name)
                opening.future = self._pools.restores.submit(self._restore, opening.task)
                if not opening.future.done():
                    continue
                error = opening.future.exception()
            del self._all[name]
            self._restoring.discard(name)
            yield name, error

    def _restore(self, task: ContinuousWorker) -> None:
        stretch = task.opening
        assert stretch is not None
        with stretch.waiting():
            self._turnstile.enter()
        try:
            task.restore(self._turnstile.let_others_in)
        finally:
            self._turnstile.leave()
        with stretch.waiting():  # a target that does not answer holds up no restore
            task.open_targets()

    def restoring(self) -> dict[str, RestoreProgress]:
        """Return the restore progress of each task. Any thread may call it."""
        found = {name: opening.task.restoring for name, opening in list(self._all.items())}
        return {name: progress for name, progress in found.items() if progress is not None}

    def still(self) -> tuple[float, str]:
        """Return the seconds without progress of a task's restore, and the task; 0.0 if none is restored.

        Waiting for the log is not restoring; it ends by itself, with an error.
        """
        now, longest = self._world.seconds(), (0.0, "")
        for name, opening in list(self._all.items()):
            if name in self._restoring and (stretch := opening.task.opening) is not None:
                longest = max(longest, (stretch.still(now), f"the restoring of task {name}"))
        return longest

    def close(self, seconds: float) -> dict[str, Future[None]]:
        """Drop jobs that have not begun, end the others, and return the ones that take longer than `seconds` to end."""
        begun = {name: each for name, each in self._all.items() if not each.future.cancel()}
        self._all.clear()
        for each in begun.values():
            if each.task.opening is not None:
                each.task.opening.end()
        self._world.wait([each.future for each in begun.values()], seconds)
        return {name: each.future for name, each in begun.items() if not each.future.done()}


@dataclass(eq=False)
class Commits:
    """Begins and ends commits; between the two, their tasks rest. The loop's thread calls all methods.

    `threads` write them. `working` gets the task whose processors are used, then "". `fail` gets a task and its error.
    """

    tasks: Mapping[str, ContinuousWorker]
    threads: Executor
    world: World
    upkeeps: Upkeeps
    working: Callable[[str], None]
    fail: Callable[[str, BaseException], None]

    def __post_init__(self) -> None:
        self._writing: dict[str, Future[None]] = {}
        self._late_errors: dict[str, BaseException] = {}

    def __bool__(self) -> bool:
        return bool(self._writing)

    def begin_due(self, now: float, *, but: str | None = None) -> None:
        """Begin the commits that are due. `but`: before a possibly long step of this task, also all others'."""
        for name, task in self.tasks.items():
            if task.commit_due() <= now or (but is not None and name != but and task.has_uncommitted):
                self.begin(name)

    def rest(self, seconds: float) -> int:
        """Begin the commits of all tasks that have processed something, and wait for them, or so long; return 0."""
        for name, task in self.tasks.items():
            if task.has_uncommitted:
                self.begin(name)
        if self._writing:
            self.world.wait(self._writing.values(), seconds)
        else:
            self.world.sleep(seconds)
        return 0

    def begin(self, name: str) -> None:
        """Begin a task's commit, if it has anything to commit."""
        self.working(name)
        try:
            pending = self.tasks[name].begin_commit()
        except BaseException as error:
            self.fail(name, error)
            return
        finally:
            self.working("")
        if pending is not None:
            self._writing[name] = self.threads.submit(pending.write)

    def end_written(self, *, patiently: bool = False) -> None:
        """End the commits that are written; `patiently`: wait for all, and begin nothing that takes long after them."""
        if patiently:
            self.world.wait(self._writing.values())
        for name, written in list(self._writing.items()):
            if written.done():
                error = written.exception()
                del self._writing[name]
                self._end(name, self._late_errors.pop(name, error), may_take_long=not patiently)

    def _end(self, name: str, error: BaseException | None, may_take_long: bool) -> None:
        try:
            if error is not None:
                raise error
            self.tasks[name].end_commit()
            if may_take_long:
                self.upkeeps.begin_step(name, self.tasks[name])
        except BaseException as raised:
            self.fail(name, raised)

    def fail_later(self, name: str, error: BaseException) -> bool:
        """Let a task fail once its commit is written; return False if none is being written."""
        # The committer cannot be closed in the middle; what came of it is read from the log.
        if name in self._writing:
            self._late_errors.setdefault(name, error)
        return name in self._writing

    def close(self, seconds: float) -> dict[str, Future[None]]:
        """Drop jobs that have not begun, wait for the others, and return the ones that take longer than `seconds`."""
        begun = {name: written for name, written in self._writing.items() if not written.cancel()}
        self._writing.clear()
        self.world.wait(begun.values(), seconds)
        return {name: written for name, written in begun.items() if not written.done()}


class Upkeeps:
    """Runs steps of upkeep, one at a time for each task, in threads of its own: commits must not wait for snapshots.

    The loop's thread calls all methods. `fail` gets a task's name and the error that its step raised.
    """

    def __init__(self, world: World, fail: Callable[[str, BaseException], None]) -> None:
        self._fail = fail
        self._wait = world.wait
        self._threads = world.threads(_MOST_UPKEPT, "penstock-upkeep")
        self._steps: dict[str, tuple[ContinuousWorker, Upkeep | None, Future[Upkept]]] = {}

    @property
    def are_running(self) -> bool:
        """Whether there is a step that has not been ended."""
        return bool(self._steps)

    def begin_step(self, name: str, task: ContinuousWorker) -> None:
        """Begin a task's next step, if there is one and a thread is free. Raises as `Upkeep.next_step`."""
        # None waits for a thread: its stores would be as of an earlier time than necessary.
        if name not in self._steps and len(self._steps) < _MOST_UPKEPT:
            upkeep, commit = task.upkeep, task.commit
            step = None if upkeep is None or commit is None else upkeep.next_step(commit)
            if step is not None:
                self._steps[name] = task, upkeep, self._threads.submit(step)

    def end_steps(self) -> None:
        """Take the results of steps that have ended."""
        for name, (task, upkeep, step) in list(self._steps.items()):
            if step.done() and not task.is_committing:
                del self._steps[name]
                if task.upkeep is not upkeep:
                    continue  # the task was closed since: an error of the step says nothing of the task now
                try:
                    task.end_upkeep(step.result())
                    self.begin_step(name, task)
                except BaseException as error:
                    self._fail(name, error)

    def close(self) -> None:
        """Wait some seconds for steps, which end when their tasks are closed."""
        self._threads.shutdown(wait=False)
        self._wait([step for *_, step in self._steps.values()], _LAST_SECONDS)
