"""ContinuousWorker: runs one task as its records arrive, and keeps its changelog short meanwhile.

Comes in: batches of records, known ends, the time. Goes out: outputs as soon as they are made, a commit now and then,
and a `TaskReport` when asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import NamedTuple

from penstock import (
    Application,
    Commit,
    Log,
    OffsetOutOfRangeError,
    RecordBatch,
    TaskCommitter,
    TaskId,
    TopicPartition,
    World,
    duration_ms,
)
from penstock.task.progress import Front
from penstock.task.task import Task

from ..commit import PendingCommit
from ..fronts import UNKNOWN
from ..local_state.task_state import StateContent, TaskState
from ..logged_task import LoggedTask
from ..process_resources import ProcessResources
from ..report import TaskReport

_log = logging.getLogger("penstock.worker")

COMMIT_INTERVALS = {"exactly_once": 0.1, "at_least_once": 1.0}
"""Seconds between two commits where `commit_interval` is not set, by guarantee."""
_SLOW_SECONDS = 1.0
"""A task whose last call of `work` took longer may take as long again."""
_BEHIND_SHARE, _BEHIND_SECONDS = 100.0, 5.0
"""The least time between two commits of a task that is behind, as a multiple of the last commit's duration, and its
limit in seconds. The backlog decides the latency then, and more commits would make the backlog longer."""
_BEHIND_RECORDS = 4
"""A task is behind while so many times the records that wait are more than it has processed since its last commit.
Tasks that read its repartition topics are then behind, too: their next records have not been written yet.
"""
_MOVED_SECONDS = 5.0
"""Seconds after which positions are committed that have only passed offsets without a record."""
_UPKEEP_SECONDS = 5.0
"""Seconds between two looks whether a snapshot is due."""
_MOST_ASKED = 3


class ContinuousWorker(LoggedTask):
    """A task that runs without planned ends. One thread calls it.

    Others may `prepare`, `restore` and write a `PendingCommit`. After `open` the loop feeds it records and calls
    `work`. `begin_commit` returns what is to be written; the task then rests until `end_commit`. After an error that
    any of these raises the loop calls `abandon_after`, and opens the task again, from the last commit. `phase`: the
    time of the task's commits within the commit interval, from 0.0 to 1.0.
    """

    def __init__(
        self,
        application: Application,
        task_id: TaskId,
        partitions: Sequence[TopicPartition],
        log: Log,
        *,
        resources: ProcessResources,
        task_count: int = 1,
        phase: float = 0.0,
    ) -> None:
        super().__init__(application, task_id, partitions, log, resources=resources, task_count=task_count)
        given = self._settings.commit_interval
        guarantee = self._settings.processing_guarantee
        self.interval = COMMIT_INTERVALS[guarantee] if given is None else duration_ms(given) / 1000
        self._phase = phase
        self._seconds = resources.world.seconds
        self._reports: list[TaskReport] = []
        self._has_news = False
        self._is_dirty = self._has_moved = False
        self._committed_at = self._due = -inf
        self._upkeep: Upkeep | None = None
        self._is_slow, self._rings_slowly = False, True  # the first punctuator may take any time
        self._has_postponed = False
        self._waits = False  # whether the last call of `work` found nothing that it could process
        self._commit_took, self._committed_records = 0.0, 0  # of the last commit: its seconds, the records before it
        self._front: Front | None = UNKNOWN
        self._of_step: tuple[Front, Mapping[TopicPartition, int] | None] | None = None
        self._is_stepping = False
        self.is_paused = False
        """Whether the task processes no records and calls no punctuators for now; the loop sets it."""
        self.upstream: list[ContinuousWorker] = []
        """Tasks of this process that write to this one's input topics, themselves or through other tasks."""

    # ------------------------------------------------------------------ opening

    def open(self, clock_ms: int, known: Commit | None = None) -> Mapping[TopicPartition, int]:
        """Open the task; return the offsets from which its inputs are to be read. Raises as `TaskWorker.run_batch`."""
        since = self._seconds()
        self._opened = self._ensure_open(clock_ms, known, None)
        task, commits, state, committer = self.task, self._commits, self._state, self._committer
        assert task is not None and commits is not None and state is not None and committer is not None
        self._inputs.check_ends(task, commits.last)
        self._upkeep = Upkeep(state, committer, self._grace, self._resources.world)
        self._phases.add("restore", since)
        self._has_news, self._is_dirty, self._has_moved = True, False, False
        self._committed_records = 0
        self._has_postponed = False
        return task.inputs.fetched()

    def out_of_range(self, partition: TopicPartition, error: OffsetOutOfRangeError) -> int:
        """Continue in a partition with lost records, as `offset_out_of_range` says; return from where, or raise."""
        assert self.task is not None and self._commits is not None
        self._is_dirty = True
        version = self._commits.last.version
        return self._inputs.move(self.task, partition, self.task.inputs.fetched()[partition], error, version)

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The ids of the topics that the open task reads; another object after each opening."""
        return self._inputs.topic_ids

    def fit_interval(self, least: float) -> float:
        """Let at least so many seconds pass between two commits; return them. Negative: ask the open task's changelog.

        It may measure that, so it is no reason to refuse the setting: a process that is frozen measures any time.
        """
        assert self._state is not None
        if least < 0 and (least := self._state.least_commit_interval()) > self.interval:
            _log.warning(
                "a commit writes a file to the changelog, which took %.0f ms when it was tried just now: tasks commit "
                "every %.0f ms, and not every %.0f ms as the setting commit_interval says. Set it to that, or keep the "
                'state in the log, which has no such limit (changelog="topic:")',
                least * 500, least * 1000, self.interval * 1000,
            )  # fmt: skip
        self.interval = max(self.interval, least)
        return least

    # ------------------------------------------------------------------ records

    def feed(self, batch: RecordBatch) -> None:
        """Queue records of one input partition."""
        assert self.task is not None
        self.task.feed(batch)
        self._has_moved = True

    @property
    def rests(self) -> bool:
        """Whether the task waits for its commit to be written, or for a snapshot that reads its stores themselves."""
        return self.is_committing or (self._upkeep is not None and self._upkeep.holds_stores)

    @property
    def is_committing(self) -> bool:
        """Whether a commit of the task is being written."""
        return self._commits is not None and self._commits.pending is not None

    def end_soon(self) -> None:
        """End `work` after the record or punctuator of now; any thread may call it."""
        task = self.task
        if task is not None:
            task.progress.end_soon()

    def may_take_long(self, clock_ms: int) -> bool:
        """Return whether `work` may exceed its time: it did before, or a punctuator did that is due now.

        `clock_ms` is the present time of the machine's clock.
        """
        if self._is_slow or not self._rings_slowly:
            return self._is_slow
        tick = self.tick_at(clock_ms)
        return tick is not None and tick <= clock_ms

    def work(self, ends: Mapping[TopicPartition, int | None], clock_ms: int, limit: int) -> int:
        """Process up to `limit` records, call due punctuators, and send the outputs; return the number of records."""
        task, committer, commits, phases = self.task, self._committer, self._commits, self._phases
        assert task is not None and committer is not None and commits is not None
        assert not self.rests, f"task {self.id} may not work while its commit is written: that would undo the work"
        since = self._seconds()
        if self._of_step is not None:
            task.inputs.mark(*self._of_step)
        task.plan(ends, clock_ms, self._front)
        had_postponed = self._has_postponed
        if had_postponed:
            self._punctuate(task)
        done = 0
        if not task.progress.is_out_of_time:
            began = self._seconds()
            done = task.process(limit)
            self._is_slow = self._seconds() - began > _SLOW_SECONDS
            self._waits = not done
        if done:
            self._is_dirty = True
            self._note_processed(task, done, clock_ms, since)
        if not had_postponed:
            self._punctuate(task, may_postpone=True)
        phases.add("process", since)
        if task.output_bytes() and committer.streams_outputs:
            commits.send(task.take_outputs())
            self._is_dirty = True
        return done

    def _punctuate(self, task: Task, *, may_postpone: bool = False) -> None:
        """Fire the punctuators of the wall clock that are due, or postpone them, once, to the next call of `work`.

        That is done where time is over, and where a punctuator may take longer than the present transaction may.
        """
        tick = task.next_wall_clock_call()
        is_due = tick is not None and tick <= task.wall_clock
        has_to_wait = task.progress.is_out_of_time or (self._is_dirty and self._rings_slowly)
        self._has_postponed = is_due and may_postpone and has_to_wait
        if is_due and not self._has_postponed:
            began = self._seconds()
            if task.punctuate_wall_clock():
                self._is_dirty = True
            took = self._seconds() - began
            self._phases.move("process", "punctuate", took)  # `work` counts it as processing
            self._rings_slowly = took > _SLOW_SECONDS

    def tick_at(self, clock_ms: int) -> int | None:
        """Return when (ms, by the machine's clock) the next wall-clock punctuator is due; None if there is none.

        A paused task has none. `clock_ms` is the time of that clock now.
        """
        if self.is_paused or self.task is None:
            return None
        progress = self.task.progress
        progress.note_driver_clock(clock_ms)
        tick = self.task.next_wall_clock_call()
        return None if tick is None else progress.driver_time_of(tick)

    @property
    def calls_under_way(self) -> int:
        """The number of calls of the task whose answers it may take when they come."""
        return 0 if self.task is None or self.is_paused or self.rests else self.task.in_flight.calls_under_way

    @property
    def answers(self) -> int:
        """The number of answers of calls that the task has not taken."""
        return 0 if self.task is None else self.task.in_flight.answers

    @property
    def waits_for_front(self) -> bool:
        """Whether a due punctuator waits for inputs in front of the task, which `FrontLooks` looks for."""
        if self.task is None or self._is_stepping or self.is_paused or self.rests:
            return False
        return self.task.waits_for_front

    @property
    def is_settling(self) -> bool:
        """Whether the task has still to read up to the ends of an earlier `settle`."""
        return self.task is not None and self.task.inputs.are_settling

    def settle(self, front: Front, ends: Mapping[TopicPartition, int]) -> None:
        """Set the front that the task has read once its inputs are read up to `ends`."""
        if self.task is not None:
            self.task.inputs.mark(front, ends)

    def step(self, front: Front | None, ends: Mapping[TopicPartition, int] | None) -> None:
        """Work by a step of a test, up to `ends`, with the front known to its planner; see `Task.plan`."""
        self._front = None if front is None else UNKNOWN
        self._of_step = None if front is None else (front, ends)
        self._is_stepping = True
        if self.task is not None and self._of_step is not None:
            self.task.inputs.mark(*self._of_step)

    def queued(self, partition: TopicPartition | None = None) -> int:
        """Return the number of queued records of an input, or of all."""
        return 0 if self.task is None else self.task.inputs.queued(partition)

    def has_records(self) -> bool:
        """Return whether records wait, or punctuators that records made due."""
        task = self.task
        return task is not None and (task.progress.is_firing or not task.inputs.are_empty())

    # ------------------------------------------------------------------ commits

    def commit_due(self) -> float:
        """Return when (on the stopwatch) the next commit is due; infinity if there is nothing to commit."""
        task, state, commits = self.task, self._state, self._commits
        if task is None or state is None or commits is None or self.rests:
            return inf
        if not (self._is_dirty or task.progress.has_changed):
            if self._has_moved:
                return self._committed_at + _MOVED_SECONDS
            return 0.0 if self.commit_expires() else inf
        if (
            task.commit_requested
            or self._has_postponed
            or task.output_bytes() + task.sink_bytes() + state.size_bytes() > self._settings.commit_bytes
        ):
            return 0.0
        due = self._due
        # Asked for at each turn, so others are looked at only once the interval has passed.
        if due <= self._seconds() and (self.is_behind or any(each.is_behind for each in self.upstream)):
            due = max(due, self._committed_at + min(_BEHIND_SHARE * self._commit_took, _BEHIND_SECONDS))
        return min(due, commits.latest)

    @property
    def is_behind(self) -> bool:
        """Whether the task has so many records to process that a commit would only make them wait longer."""
        task = self.task
        return (
            task is not None
            and not (self._waits or self.is_paused)
            and _BEHIND_RECORDS * task.inputs.waiting() > task.records_in - self._committed_records
        )

    @property
    def has_uncommitted(self) -> bool:
        """Whether the task has processed something since its last commit, and does not rest."""
        return self.is_open and self._is_dirty and not self.rests

    def begin_commit(self) -> PendingCommit | None:
        """Return the commit to write; None if nothing has changed. The task rests until `end_commit`."""
        assert self.task is not None and self._commits is not None
        now = self._committed_at = self._seconds()
        self._due, self._is_dirty, self._has_moved = now + self.interval, False, False
        self._committed_records = self.task.records_in
        if self.interval:
            # Tasks commit one after the other, each at its place in the interval: at once, all would wait for all.
            self._due -= (now - self._phase * self.interval + self.interval / 2) % self.interval - self.interval / 2
        return self._commits.take(self.task)

    def end_commit(self) -> None:
        """Go on after the commit was written."""
        assert self._commits is not None and self._state is not None and self.task is not None
        self._commit_took = self._seconds() - self._committed_at
        commit = self._commits.finish()
        self._state.backends.release()
        task = self.task
        self._retries.forget_done(commit.positions, task.stream_time, task.wall_clock, task.in_flight.places)
        self._has_news = True
        if not self._reports:
            self._add_report()

    # ------------------------------------------------------------------ upkeep

    @property
    def upkeep(self) -> Upkeep | None:
        """The upkeep of the open task, another object after each opening; None if the task is closed."""
        return self._upkeep

    def end_upkeep(self, upkept: Upkept) -> None:
        """Take the result of a step."""
        if self._upkeep is not None:
            self._upkeep.end_step()
        self._phases.count({"snapshot": upkept.seconds})
        commit, commits = upkept.commit, self._commits
        if commit is not None and commits is not None and commit.version == commits.last.version:
            commits.proven = commit.positions

    def abandon(self, reason: str = "closed") -> None:
        """Close the task; a step of its upkeep that runs ends as soon as it can."""
        if self._upkeep is not None:
            self._upkeep.end()
            self._upkeep = None
        super().abandon(reason)

    def close_after(self, _: object) -> None:
        """Close the task at the end of an opening, or of a commit, that took too long."""
        self.close()

    # ------------------------------------------------------------------ numbers

    def take_reports(self) -> list[TaskReport]:
        """Return reports of the time since the last call; none without a commit.

        Only committed work counts: after a crash the rest is processed, and counted, again.
        """
        if self.task is not None and self._has_news and not self._is_dirty and not self.is_committing:
            self._add_report()
        taken, self._reports = self._reports, []
        return taken

    def _add_report(self) -> None:
        self._reports.append(self._report())
        self._has_news = False


class Upkept(NamedTuple):
    """The result of a step: its seconds, and the commit of its snapshot, if it wrote one."""

    seconds: float = 0.0
    commit: Commit | None = None


class Upkeep:
    """Looks now and then whether a snapshot is due; writes it, and deletes history that is not needed after it.

    The task's thread calls `next_step`; another thread runs the step that it returns. There is never more than one.
    """

    def __init__(self, state: TaskState, committer: TaskCommitter, grace_ms: int, world: World) -> None:
        self._state = state
        self._committer = committer
        self._grace_ms = grace_ms
        self._world = world
        self._look_at = 0.0
        self._is_due = self._has_ended = False
        self._content: StateContent | None = None
        self.holds_stores = False
        """Whether a step uses the stores, until `end_step`: nobody else may."""
        self._left_stores: Future[None] = Future()

    def next_step(self, commit: Commit) -> Callable[[], Upkept] | None:
        """Return the next step, for another thread; None if there is none. `commit` is the task's last one.

        Where the stores have no views, it reads the stores themselves: the task rests while it `holds_stores`.
        """
        if self._is_due:
            self._is_due = False
            self._content = self._state.content(commit)
            if self._content is not None:
                return partial(self._run, partial(self._write, self._content))
            self.holds_stores = True
            self._left_stores = Future()
            return partial(self._run, partial(self._maintain, commit))
        now = self._world.seconds()
        if now < self._look_at or not self._state.keeps_commits:
            return None
        self._look_at = now + _UPKEEP_SECONDS
        return partial(self._run, self._look)

    def end_step(self) -> None:
        """End the last step."""
        self.holds_stores = False

    def end(self) -> None:
        """End the step that runs, as soon as it can; it raises nothing."""
        self._has_ended = True
        if self._content is not None:
            self._content.end()
        if self.holds_stores:
            self._world.wait([self._left_stores])  # they are closed next

    # ------------------------------------------------------------------ in the other thread

    def _run(self, step: Callable[[], Commit | None]) -> Upkept:
        began = self._world.seconds()
        try:
            commit = step()
        except Exception as error:
            if not self._has_ended:
                raise
            _log.debug("task %s was closed in the middle of its upkeep: %s", self._state.task_id, error)
            commit = None
        return Upkept(self._world.seconds() - began, commit)

    def _look(self) -> None:
        self._is_due = not self._has_ended and self._state.upkeep.wants_snapshot(self._is_current)

    def _write(self, content: StateContent) -> Commit | None:
        version = content.commit.version
        try:
            if not self._state.upkeep.write_snapshot(version, content.rows(), content.commit):
                return None
        finally:
            content.close()
        self._state.upkeep.clean(version, self._grace_ms, self._world.clock.now_ms(), self._is_current)
        return content.commit

    def _maintain(self, commit: Commit) -> Commit | None:
        try:
            written = self._state.maintain_changelog(
                self._grace_ms, self._world.clock.now_ms(), commit, self._is_current
            )
            return commit if written else None
        finally:
            self._left_stores.set_result(None)

    def _is_current(self) -> bool:
        # While a commit of the task's own is being written, its committer may say no once.
        return any(not self._has_ended and self._committer.is_current() for _ in range(_MOST_ASKED))
