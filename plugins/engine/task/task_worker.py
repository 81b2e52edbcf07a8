"""TaskWorker: runs one task batch by batch: fetch, process, commit.

Comes in: for each batch the end offsets to read to, and the time. Goes out: commits in the log (outputs, positions and
state in one step), and a `TaskReport`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from penstock import Commit, SinkUnavailableError, TaskCommitter, TopicPartition, duration_ms
from penstock.task.failures import RetryRequested
from penstock.task.progress import Front
from penstock.task.schedules import NEVER
from penstock.task.task import Task

from .commit import TaskCommits
from .local_state.task_state import TaskState
from .logged_task import LoggedTask
from .report import TaskReport

COMMIT_INTERVAL = "30s"
"""The longest time between two commits inside a batch where `commit_interval` is not set."""
_RESULT_SECONDS, _LOOK_SECONDS = 1.0, 0.01
"""How long a batch waits for calls that are under way, unless it is the last one, and between two looks at them."""
_CHUNK, _SENT_BYTES = 2_000, 256 * 1024
"""Number of records after which the commit limits are checked; bytes of outputs to send early, if the log can."""


class TaskWorker(LoggedTask):
    """A task that runs in batches: micro-batches of Spark, and steps of the test driver. Not thread-safe."""

    def run_batch(
        self,
        ends: Mapping[TopicPartition, int],
        wall_clock_ms: int,
        known: Commit | None = None,
        *,
        visit_seconds: float = inf,
        front: Front | None = None,
    ) -> TaskReport:
        """Process every input partition up to its planned end, call punctuators that are due, and commit.

        `visit_seconds`: for how long it visits entries after that, a portion at least. `front`: see `Task.plan`. A
        log whose last commit is older than `known`, or that has none, is refused. Raises FencedError when another
        process took the task over; SinkUnavailableError for a target that is away; the handlers' errors; and what log,
        changelog and stores raise. After an error only the last commit counts, and this object can be used again.
        """
        while True:
            try:
                return self.try_batch(ends, wall_clock_ms, known, visit_seconds=visit_seconds, front=front)
            except RetryRequested as retry:
                if isinstance(retry.failure.error, SinkUnavailableError):
                    raise retry.failure.error from retry
                self._resources.wait_ms(retry.delay_ms)

    def try_batch(
        self,
        ends: Mapping[TopicPartition, int],
        wall_clock_ms: int,
        known: Commit | None = None,
        topic_ids: Mapping[str, str] | None = None,
        *,
        is_current: bool | None = None,
        seconds: float = inf,
        visit_seconds: float = inf,
        is_paused: bool = False,
        front: Front | None = None,
    ) -> TaskReport:
        """Run a batch as `run_batch`, but raise RetryRequested instead of waiting before a retry.

        `topic_ids`: ids of the global stores' topics, if `ends` has their partitions. `is_current`: the present result
        of the committer's `is_current`, if the caller has it (`Log.are_current`). `seconds`: time for fetching records,
        at least once; it processes what it has fetched, as far as it need not wait for more of another input, and
        leaves the rest to the next batch. `visit_seconds`: for how long it visits entries after that, a portion at
        least. `is_paused`: open the task, and process nothing. `front`: see `Task.plan`.
        """
        while True:
            try:
                return self._run_batch(
                    ends, wall_clock_ms, known, topic_ids, is_current, seconds, visit_seconds, is_paused, front
                )
            except BaseException as raised:
                error = self.cause_of(raised)
                if not self.abandon_after(error):
                    if error is raised:
                        raise
                    raise error from raised

    def _run_batch(
        self,
        ends: Mapping[TopicPartition, int],
        wall_clock_ms: int,
        known: Commit | None,
        topic_ids: Mapping[str, str] | None,
        is_current: bool | None,
        seconds: float,
        visit_seconds: float,
        is_paused: bool,
        front: Front | None,
    ) -> TaskReport:
        phases = self._phases
        phases.clear()
        since = phases.now()
        # Before the task is opened: processors may read global stores in `init`.
        self._resources.update_globals(self._application, self._log, ends, wall_clock_ms, topic_ids)
        self._opened = self._ensure_open(wall_clock_ms, known, is_current)
        task, state, committer, commits = self.task, self._state, self._committer, self._commits
        assert task is not None and state is not None and committer is not None and commits is not None
        if self._opened:
            self._inputs.check_ends(task, commits.last)
        since = phases.add("restore", since)
        if not is_paused:
            task.plan(ends, wall_clock_ms, front)
            self._process_all(task, state, committer, commits, since + seconds)
            is_last = front is not None and front.is_last
            while self._await_results(task, commits, inf if is_last else _RESULT_SECONDS):
                self._process_all(task, state, committer, commits, since + seconds)
            next_tick = task.next_wall_clock_call()
            if commits.has_sent and next_tick is not None and next_tick <= task.wall_clock:
                # Commit first: the punctuator may outlast the transaction.
                commits.make(task)
            self._punctuate(task, state, commits, visit_seconds)
            # Punctuators and visits may have made calls, too.
            while self._await_results(task, commits, inf if is_last else 0.0):
                self._process_all(task, state, committer, commits, since + seconds)
        commits.make(task)
        while task.commit_requested:
            commits.make(task)  # an external sink writes what the commit before has decided
        since = phases.now()
        last = commits.last
        if state.maintain_changelog(self._grace, self._resources.now_ms(), last, committer.is_current):
            commits.proven = last.positions
        phases.add("snapshot", since)
        state.backends.release()
        self._resources.clean_up(self._application)
        self._retries.forget_done(last.positions, task.stream_time, task.wall_clock, task.in_flight.places)
        return self._report()

    @property
    def _commit_interval(self) -> int:
        return duration_ms(self._settings.commit_interval or COMMIT_INTERVAL)

    def _await_results(self, task: Task, commits: TaskCommits, seconds: float) -> bool:
        """Wait for calls that are under way, or are to be made again, for about so long.

        Batches and record caches hand on what they hold first, and once more when all calls have a result: there may be
        calls behind them. What has no result after that stays in flight, as state. Return whether records wait that
        there is room for now.
        """
        in_flight, phases, world = task.in_flight, self._phases, self._resources.world
        began = since = phases.now()
        interval = self._commit_interval / 1000
        commit_at = began + interval
        was_full = in_flight.is_full
        while task.hand_to_calls() and world.calls.are_held:
            pass
        while not world.calls.are_held:
            calls, left, due = in_flight.under_way(), began + seconds - since, in_flight.next_retry()
            again = (due - task.wall_clock) / 1000 + began - since
            if left <= 0:
                break
            if not calls and (due == NEVER or again > left):
                if not task.hand_to_calls(round((since - began) * 1000)) and not in_flight.calls_under_way:
                    break
                continue
            if calls:
                world.wait(calls, _LOOK_SECONDS)
            elif again > 0:
                world.sleep(min(again, _RESULT_SECONDS))
            since = phases.now()
            if since > min(commit_at, commits.latest):
                commits.make(task)
                commit_at = since + interval
            in_flight.settle(round((since - began) * 1000))
            if was_full and not in_flight.is_full:
                break
        phases.add("punctuate", began)
        if in_flight.is_full:
            task.inputs.rewind()
        return was_full and not in_flight.is_full

    def _punctuate(self, task: Task, state: TaskState, commits: TaskCommits, visit_seconds: float) -> None:
        """Call due punctuators, and continue visits, portion by portion, with the commits that this needs."""
        phases = self._phases
        began = since = phases.now()
        task.punctuate_wall_clock()
        while task.visits.are_due and (now := phases.now()) - began < visit_seconds:
            if (
                task.commit_requested
                or now > commits.latest
                or task.output_bytes() + task.sink_bytes() + state.size_bytes() > self._settings.commit_bytes
            ):
                phases.add("punctuate", since)
                commits.make(task)
                since = phases.now()
            task.punctuate_wall_clock()
        phases.add("punctuate", since)

    def _process_all(
        self, task: Task, state: TaskState, committer: TaskCommitter, commits: TaskCommits, until: float
    ) -> None:
        """Process the planned records, and commit on the way at limits; after `until` fetch no more."""
        phases, is_over = self._phases, False
        began = last_commit = phases.now()
        interval = self._commit_interval / 1000
        while True:
            since = phases.now()
            for want in () if is_over else task.wants():
                for batch in self._inputs.fetch(task, want, commits.last.version):
                    task.feed(batch)
            since = phases.add("read", since)
            done = task.process(_CHUNK)
            since = phases.add("process", since)
            if done:
                self._note_processed(task, done, task.wall_clock, began)
            if done < _CHUNK and not task.commit_requested and (is_over or not task.wants()):
                break
            is_over = since >= until
            waiting = task.output_bytes()
            if committer.streams_outputs and waiting > _SENT_BYTES:
                commits.send(task.take_outputs())
                waiting = 0
            if (
                task.commit_requested
                or since - last_commit > interval
                or since > commits.latest
                or waiting + task.sink_bytes() + state.size_bytes() > self._settings.commit_bytes
            ):
                commits.make(task)
                last_commit = phases.now()
        if is_over:
            task.inputs.rewind()


class LastingTaskWorker(TaskWorker):
    """A task that a tool runs once: its last commit counts until an application commits, however late that is."""

    def _open_committer(self) -> TaskCommitter:
        return self._log.open_lasting_committer(self._application.id, str(self.id), self.partitions)
