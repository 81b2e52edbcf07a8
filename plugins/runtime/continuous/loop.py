"""TaskLoop: the tasks of one process, which poll, process and commit on their own.

Comes in: records from the log, the time. Goes out: commits, reports, and failures of tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from time import perf_counter

from penstock.errors import LogError, OffsetOutOfRangeError
from penstock.log import Log
from penstock.program.nodes import TaskId
from penstock.record import TopicPartition
from penstock.settings.application import Application
from penstock.task.failures import RetryRequested

from ..following import open_follower
from ..opening import KnownCommit
from ..process_resources import ProcessResources
from ..report import TaskReport
from .pauses import Pauses
from .upkeeps import Upkeeps
from .worker import ContinuousWorker

_MOST_POLLED = 4_000
_CHUNK = 2_000
"""Records that one task processes before the next task gets its turn."""
_LONGEST_WAIT, _SHORT_WAIT, _STALLED_WAIT = 0.05, 0.001, 0.01
_GLOBALS_SECONDS = 0.1
_CLEAN_UP_SECONDS = 60.0
_THREADS = 16

_log = logging.getLogger("penstock.worker")


@dataclass(frozen=True)
class Failed:
    """A task that ended with an error. It stays closed until `TaskLoop.run` names it again."""

    task_id: str
    error: BaseException


class TaskLoop:
    """Runs tasks of one process. All methods are called by one thread.

    `partitions` has the input partitions of every task of the application, by task id. `clock` returns the wall clock
    in ms.
    """

    def __init__(
        self,
        application: Application,
        partitions: Mapping[str, Sequence[TopicPartition]],
        log: Log,
        resources: ProcessResources,
        clock: Callable[[], int],
    ) -> None:
        self._application = application
        self._partitions = partitions
        self._log = log
        self._resources = resources
        self._clock = clock
        self._follower = open_follower(log)
        self._known: dict[str, KnownCommit] = {}
        self._tasks: dict[str, ContinuousWorker] = {}
        self._names: dict[TopicPartition, str] = {}
        self._open_at: dict[str, float] = {}
        self._preparing: dict[str, Future[None]] = {}
        self._writing: dict[str, Future[None]] = {}
        self._busy: dict[str, ContinuousWorker] = {}
        self._pauses = Pauses(self._follower)
        self._has_more = self._stalled = False
        self._ends: Mapping[TopicPartition, int | None] = {}  # as the tasks last worked with them
        self._failures: list[Failed] = []
        self.current = ""
        """The task whose processors or stores the loop's thread calls now."""
        self._globals_at = 0.0 if application.program.global_stores else inf
        self._has_globals = not application.program.global_stores
        self._has_checked_interval = False
        self._clean_up_at = 0.0
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-commits")
        self._upkeeps = Upkeeps(self._fail)

    # ------------------------------------------------------------------ which tasks

    def run(self, names: Iterable[str], known: Mapping[str, KnownCommit]) -> None:
        """Run these tasks from now on, too; open those that are not open, and not about to be.

        `known`: commits that the log must have.
        """
        self._known.update(known)
        for name in names:
            if name not in self._tasks:
                self._tasks[name] = self._make(name)
            if not self._tasks[name].is_open and name not in self._preparing:
                self._open_at.setdefault(name, 0.0)

    def _make(self, name: str) -> ContinuousWorker:
        partitions = self._partitions[name]
        self._names.update(dict.fromkeys(partitions, name))
        return ContinuousWorker(
            self._application,
            TaskId.parse(name),
            partitions,
            self._log,
            resources=self._resources,
            task_count=len(self._partitions),
            phase=list(self._partitions).index(name) / len(self._partitions),
        )

    @property
    def open_tasks(self) -> int:
        """How many tasks are open."""
        return sum(task.is_open for task in self._tasks.values())

    def restored(self) -> int:
        """Return how many changes have been restored for the task that is being opened; any thread may call it."""
        task = self._tasks.get(self.current)
        return 0 if task is None else task.restored()

    # ------------------------------------------------------------------ a turn

    def turn(self, longest_wait: float = _LONGEST_WAIT) -> int:
        """Take records that have come, process them, and commit what is due; return how many were processed.

        Waits for records, at most `longest_wait` seconds. Raises LogError when the log is away for too long.
        """
        self._end_writing()
        self._upkeeps.end_steps()
        self._open_tasks()
        self._poll(min(longest_wait, self._wait_seconds()))
        clock_ms = self._clock()
        self._update_globals(clock_ms)
        done = 0 if not self._has_globals else self._work(clock_ms)
        self._begin_commits(perf_counter())
        self._clean_up()
        return done

    def _wait_seconds(self) -> float:
        """Return how long nothing has to be done if no record comes."""
        if self._has_more:
            return 0.0
        if self._writing or self._preparing:
            return _SHORT_WAIT
        now, clock_ms = perf_counter(), self._clock()
        wait = _STALLED_WAIT if self._stalled else _LONGEST_WAIT
        for name, task in self._tasks.items():
            tick = task.tick_at(clock_ms)
            if tick is not None:
                wait = min(wait, (tick - clock_ms) / 1000)
            wait = min(wait, task.commit_due() - now)
            if name in self._open_at:
                wait = min(wait, self._open_at[name] - now)
        return max(0.0, wait)

    def _poll(self, seconds: float) -> None:
        try:
            batches = self._follower.poll(seconds, _MOST_POLLED)
        except LogError as error:
            if error.partition is None:
                raise
            self._go_on(error.partition, error)
            return
        for batch in batches:
            partition = TopicPartition(batch.topic, batch.partition)
            name = self._names[partition]
            task = self._tasks[name]
            if not task.is_open:
                continue
            task.feed(batch)
            self._busy[name] = task
            self._pauses.note(partition, batch, task.queued(partition))

    def _go_on(self, partition: TopicPartition, error: LogError) -> None:
        """Follow a partition from where `offset_out_of_range` says; after any other error close its task."""
        name = self._names[partition]
        try:
            if not isinstance(error, OffsetOutOfRangeError):
                raise error
            self._follower.remove([partition])
            self._follower.add({partition: self._tasks[name].out_of_range(partition, error)})
        except Exception as failure:
            self._fail(name, failure)

    def _work(self, clock_ms: int) -> int:
        """Let tasks process that have records, or whose punctuators are due."""
        for name, task in self._tasks.items():
            tick = task.tick_at(clock_ms)
            if tick is not None and tick <= clock_ms:
                self._busy[name] = task
        total = 0
        self._has_more = self._stalled = False
        ends = self._ends = self._follower.ends()
        for name, task in list(self._busy.items()):
            if not task.is_open:
                del self._busy[name]
                continue
            if task.rests:
                continue
            self.current = name
            try:
                done = task.work(ends, clock_ms, _CHUNK)
            except BaseException as error:
                self._fail(name, error)
                continue
            total += done
            if not task.has_records():
                del self._busy[name]
            elif done:
                self._has_more = True
            else:
                self._stalled = True
        self.current = ""
        self._pauses.end(lambda each: self._tasks[self._names[each]].queued(each))
        return total

    def _update_globals(self, clock_ms: int) -> None:
        now = perf_counter()
        if now < self._globals_at:
            return
        try:
            self._resources.try_update_globals(self._application, self._log, {}, clock_ms)
            self._has_globals, self._globals_at = True, now + _GLOBALS_SECONDS
        except RetryRequested as retry:
            self._has_globals, self._globals_at = False, now + retry.delay_ms / 1000

    def _clean_up(self) -> None:
        now = perf_counter()
        if now >= self._clean_up_at:
            self._clean_up_at = now + _CLEAN_UP_SECONDS
            self._resources.clean_up(self._application)

    # ------------------------------------------------------------------ commits

    def _begin_commits(self, now: float) -> None:
        for name, task in self._tasks.items():
            if task.commit_due() <= now:
                self._begin_commit(name, task)

    def _begin_commit(self, name: str, task: ContinuousWorker) -> None:
        self.current = name
        try:
            pending = task.begin_commit()
        except BaseException as error:
            self._fail(name, error)
            return
        finally:
            self.current = ""
        if pending is not None:
            self._writing[name] = self._threads.submit(pending.write)

    def _end_writing(self) -> None:
        for name, written in list(self._writing.items()):
            if written.done():
                del self._writing[name]
                self._end_commit(name, written)

    def _end_commit(self, name: str, written: Future[None]) -> None:
        try:
            written.result()
            self._tasks[name].end_commit()
            self._upkeeps.begin_step(name, self._tasks[name])
        except BaseException as error:
            self._fail(name, error)

    # ------------------------------------------------------------------ opening

    def _open_tasks(self) -> None:
        """Begin to open tasks that are due; end the opening of those that have their fence."""
        if not self._has_globals:
            self._update_globals(self._clock())
        if not self._has_globals:
            return
        now, clock_ms = perf_counter(), self._clock()
        for name in [each for each, at in self._open_at.items() if at <= now]:
            del self._open_at[name]
            task = self._tasks[name]
            self._preparing[name] = self._threads.submit(task.prepare, clock_ms, self._known.get(name))
        for name, prepared in list(self._preparing.items()):
            if prepared.done():
                del self._preparing[name]
                self._open(name, prepared, clock_ms)

    def _open(self, name: str, prepared: Future[None], clock_ms: int) -> None:
        task = self._tasks[name]
        self.current = name
        try:
            prepared.result()
            positions = task.open(clock_ms, self._known.get(name))
            if not self._has_checked_interval:
                task.check_commit_interval()
                self._has_checked_interval = True
            self._follower.add(positions)
        except BaseException as error:
            self._fail(name, error)
            return
        finally:
            self.current = ""
        self._busy[name] = task

    # ------------------------------------------------------------------ failures

    def _fail(self, name: str, error: BaseException) -> None:
        """Close a task after an error; open it again where that helps."""
        task = self._tasks[name]
        partitions = self._partitions[name]
        if (written := self._writing.pop(name, None)) is not None:
            written.exception()  # the committer cannot be closed in the middle; what came of it is read from the log
        error = task.cause_of(error)
        self._busy.pop(name, None)
        self._pauses.forget(partitions)
        self._follower.remove(partitions)
        now = perf_counter()
        if task.abandon_after(error):
            self._open_at[name] = now
        elif isinstance(error, RetryRequested):
            self._open_at[name] = now + error.delay_ms / 1000
        elif isinstance(error, Exception):
            # Not opened again here: if another process has the task, that would take it away. The driver may be frozen,
            # and its successor's hosts run the task.
            self._failures.append(Failed(name, error))
        else:
            raise error

    # ------------------------------------------------------------------ what came of it

    def take_failures(self) -> list[Failed]:
        """Return the failures since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def take_reports(self) -> list[TaskReport]:
        """Return what tasks committed since the last call."""
        return [report for task in self._tasks.values() for report in task.take_reports()]

    # ------------------------------------------------------------------ steps, and the end

    def process_to(self, ends: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        """Process until tasks have read up to `ends`, or wait for records that are not there; then commit."""
        self._globals_at = min(self._globals_at, 0.0 if self._application.program.global_stores else inf)
        while True:
            is_working = self.turn(_SHORT_WAIT) or self._preparing or self._writing or self._upkeeps.are_running
            is_opening = any(at <= perf_counter() for at in self._open_at.values())
            if not is_working and not is_opening and all(map(self._has_read, ends, ends.values())):
                break
        self.commit_all()

    def _has_read(self, name: str, ends: Mapping[TopicPartition, int]) -> bool:
        """Return whether a task has read up to `ends`, and waits for no end; one that is not open reads nothing."""
        task = self._tasks[name].task
        if task is None:
            return True
        if any(self._ends.get(each) is None for each in self._partitions[name]):
            return False
        fetched = task.inputs.fetched()
        return all(fetched[partition] >= end for partition, end in ends.items())

    def commit_all(self, names: Collection[str] | None = None) -> None:
        """Commit what tasks have processed, and wait until that is written."""
        self._finish_writing()
        for name, task in self._tasks.items():
            if task.is_open and (names is None or name in names):
                self._begin_commit(name, task)
        self._finish_writing()

    def _finish_writing(self) -> None:
        for name, written in list(self._writing.items()):
            del self._writing[name]
            self._end_commit(name, written)

    def close(self, *, commit: bool = True) -> None:
        """Commit, unless `commit` is False, and close every task."""
        try:
            if commit:
                self.commit_all()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)
            for task in self._tasks.values():
                task.close()
            self._upkeeps.close()
            self._follower.close()
