"""LoggedTask: one task of an application on its log: opening it, and closing it after errors.

What runs a task derives from it: `TaskWorker` batch by batch, `ContinuousWorker` record by record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock import (
    Application,
    ChangelogError,
    Commit,
    Failure,
    FencedError,
    IncompatibleStateError,
    Log,
    OffsetOutOfRangeError,
    ProcessingError,
    RecordRefusedError,
    SinkMovedError,
    SinkRefusedError,
    SinkUnavailableError,
    Stage,
    StoreError,
    TaskCommitter,
    TaskId,
    TopicPartition,
    duration_ms,
    version_counter,
)
from penstock.program.layouts import Layouts
from penstock.task.failures import RetryRequested, key_of
from penstock.task.sinks import RefusedBySinkError
from penstock.task.task import Task, partitions_read
from penstock.task.visits import PORTION, Visit

from .commit import TaskCommits, make_first
from .local_state.restoring import RestoreProgress, Stretch
from .local_state.task_state import TaskState
from .locations import open_changelog
from .positions import InputPartitions
from .process_resources import ProcessResources
from .refusals import NO_COMMIT, check_layout, ways_on
from .report import Histogram, Phases, TaskCounts, TaskReport
from .sinks import OpenSinks
from .task_runner import TaskRunner, is_taken_over
from .topic_ids import TopicMadeAgainError, differ

_log = logging.getLogger("penstock.worker")

_MAY_BE_OF_SUCCESSOR = ChangelogError, IncompatibleStateError, OffsetOutOfRangeError, ProcessingError, StoreError
"""Errors that a takeover by another process may cause."""
_AWAY = "target"
"""The call that failed where a target is away."""
_FIRST_DELAY_MS, _LONGEST_DELAY_MS = 100, 30_000
"""The wait after a target was away once, and the longest one."""
FIRST = "first"
"""The reason why a task is opened by an object that had not opened it before."""


class LoggedTask(TaskRunner):
    """One task with its log. Not thread-safe.

    `partitions` are the task's input partitions by their names in the log; `task_count`: number of tasks of the
    application.
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
    ) -> None:
        super().__init__(application, task_id, resources)
        self._log = log
        self._task_count = task_count
        self._inputs = InputPartitions(application, task_id, partitions, log)
        self._where = f"application {application.id!r}, task {task_id}"
        self.partitions = tuple(partitions)
        self._refusals: dict[str, list[RecordRefusedError]] = {}
        self._sinks = OpenSinks(application, task_id, resources.world)
        self._refused_by_sinks: dict[str, dict[int, SinkRefusedError]] = {}
        self._grace = duration_ms(self._settings.changelog_grace)
        self._has_adopted = False
        self._failed_restore: BaseException | None = None
        self._opening_seconds = 0.0
        """How long `prepare` and `restore` have taken since the task was open last, in any thread."""
        self._phases = Phases(resources.world.seconds)
        self._opened = ""
        self._begin_counting()
        self._latency, self._lateness = Histogram(), Histogram()
        self._why_closed = FIRST
        self._waiting: TaskCommitter | None = None  # closed, of a task that waits before a retry
        self._visits: tuple[Sequence[Visit] | None, int] = None, PORTION
        self._before: Commit | None = None  # the last commit in topics that have been made again since

    @property
    def is_open(self) -> bool:
        """Whether the task is open."""
        return self.task is not None

    @property
    def commit(self) -> Commit | None:
        """The last commit of the open task."""
        return None if self._commits is None else self._commits.last

    def ask(self, visits: Sequence[Visit] | None, portion: int = PORTION) -> None:
        """Let the task make the requested visits; None: they are unknown. See `Visits.ask`."""
        self._visits = visits, portion
        if self.task is not None:
            self.task.visits.ask(visits, portion)

    @property
    def opening(self) -> Stretch | None:
        """The work of `restore`, which any thread may watch and end; None before the last commit is known."""
        state = self._state
        return None if state is None else state.backends.opening

    @property
    def restoring(self) -> RestoreProgress | None:
        """How far `restore` is; None if it restores nothing now. Any thread may ask."""
        state = self._state
        return None if state is None else state.backends.restoring.progress()

    def commit_expires(self) -> bool:
        """Return whether the task must repeat its last commit soon, because the log deletes old ones.

        The task is open, or closed while it waits for a retry.
        """
        return (committer := self._committer or self._waiting) is not None and committer.expires()

    def renew(self, wall_clock_ms: int, known: Commit | None = None) -> None:
        """Repeat the last commit of a task that works on nothing, if it expires. Raises as `run_batch`."""
        if not self.commit_expires():
            return
        if self._commits is None:
            self.prepare(wall_clock_ms, known)
            self.abandon("retry")
            return
        assert self._committer is not None
        try:
            self._committer.commit(self._commits.last, [])
        except BaseException as raised:
            error = self.cause_of(raised)
            self.abandon_after(error)
            raise error from raised

    @property
    def committer(self) -> TaskCommitter | None:
        """The open committer, for `Log.are_current`."""
        return self._committer

    # ------------------------------------------------------------------ opening

    def _ensure_open(self, wall_clock_ms: int, known: Commit | None, is_current: bool | None) -> str:
        """Open the task unless it is open and current; return the reason of the opening, "" without one."""
        if self.task is not None:
            assert self._committer is not None and self._state is not None and self._commits is not None
            last, ids = self._commits.last, self._inputs.topic_ids
            if differ(ids, self._resources.topic_ids.of(self._log, ids)):
                self._inputs.check_topics()
            if is_current is None:
                is_current = self._committer.is_current()
            if is_current and self._state.is_at(last.version):
                self._check_known(last, known)
                return ""
            self._log_repeated(logging.INFO, "task %s was run by another process meanwhile: opening it again", self.id)
            self.abandon("taken over")
        why, ahead = self._why_closed, self._opening_seconds
        self.prepare(wall_clock_ms, known)
        failed, self._failed_restore = self._failed_restore, None
        if failed is not None:
            raise failed
        self.restore()
        self.open_targets()
        self._start(wall_clock_ms)
        # The caller counts the time of this call.
        self._phases.count({"restore": ahead})
        self._opening_seconds = 0.0
        return why

    def prepare(self, wall_clock_ms: int, known: Commit | None = None) -> None:
        """Do the part of opening that waits for the log, if the task is not open: fence, last commit, first commit.

        One thread may prepare a task while others prepare other tasks; no two call the same task at a time. The next
        batch does the rest. Raises as `run_batch`.
        """
        if self._commits is not None:
            return
        began = self._phases.now()
        try:
            self._prepare(wall_clock_ms, known)
            self._opening_seconds += self._phases.now() - began
        except BaseException as raised:
            error = self.cause_of(raised)  # the committer can say so until the task is abandoned
            self.abandon("fenced" if is_taken_over(error) else "failed")
            if error is raised:
                raise
            raise error from raised

    def _prepare(self, wall_clock_ms: int, known: Commit | None) -> None:
        # Take the fence first: a predecessor cannot change what is read after it, nor begin an epoch unseen.
        committer = self._committer = self._open_committer()
        self._resources.check_epoch(self._application, self._log, str(self.id))
        self._inputs.read_topic_ids()
        self._check_known(committer.committed or self._before, known)
        layouts = self._subtopology.layouts or Layouts.of_program(
            self._subtopology.stores, self._settings.store_backend
        )
        changelog = None
        if layouts.now:
            changelog = open_changelog(self._settings, self._application.id, str(self.id), self._log, layouts.now)
        directory = self._resources.task_directory(self._application, str(self.id))
        state = self._state = self.state_class(
            self._application, self.id, directory, changelog, layouts, self._task_count, self._resources.repeats,
            self._resources.world,
        )  # fmt: skip
        last = self._first_commit(committer, state, wall_clock_ms)
        if self._subtopology.layouts is not None:
            check_layout(self._where, last.version, layouts)
        self._commits = TaskCommits(state, committer, last, self._phases, self._inputs)
        self._before = None

    def _first_commit(self, committer: TaskCommitter, state: TaskState, wall_clock_ms: int) -> Commit:
        """Return the commit to start from, with a position for each partition; commit first if there is none like that.

        Raises IncompatibleStateError when the log has lost a commit or a position.
        """
        last = committer.committed
        commit = last or self._before
        if commit is None:
            return self._make_first(committer, state, wall_clock_ms)
        commit = self._inputs.moved_to_new_topics(commit)
        if set(commit.positions) != set(self.partitions):
            commit = self._with_new_partitions(commit, wall_clock_ms)
        # A task that waits for a retry is opened again and again, and may never come to a commit of its own.
        if commit != last or committer.expires():
            committer.commit(commit, [])
        return commit

    def _check_known(self, commit: Commit | None, known: Commit | None) -> None:
        """Raise IncompatibleStateError when the log has no commit, or one that is older than `known`.

        `known` was certainly made: the log must have it or a later one.
        """
        if known is None:
            return
        if commit is None:
            raise IncompatibleStateError(
                f"{self._where}: Spark's checkpoint knows a commit (state version {known.version}), "
                f"but the log has none: {NO_COMMIT}. {ways_on(self._settings)}"
            )
        # Elsewhere `offset_out_of_range` may have moved a position back.
        checked = self.partitions if self._settings.offset_out_of_range == "fail" else self._inputs.internal
        behind = [
            f"{partition} {commit.positions[partition]} < {position}"
            for partition, position in known.positions.items()
            if partition in commit.positions and commit.positions[partition] < position and partition in checked
        ]
        if version_counter(commit.version) < version_counter(known.version) or behind:
            raise IncompatibleStateError(
                f"{self._where}: the log's commit (version "
                f"{commit.version}{'; ' + ', '.join(behind) if behind else ''}) is older than one that was made before "
                f"(version {known.version}): the log lost data or is another one. {ways_on(self._settings)}"
            )

    def _make_first(self, committer: TaskCommitter, state: TaskState, wall_clock_ms: int) -> Commit:
        """Commit the starting positions and the empty version, so that a task without a commit has never run.

        Raises IncompatibleStateError when the changelog proves that it had one.
        """
        # `penstock reset` commits positions without a task's commit. If it was killed, it has not cleared the
        # changelog.
        given = self._log.committed(self._application.id, self.partitions)
        if all(position is None for position in given.values()) and (proven := state.proven()):
            raise IncompatibleStateError(
                f"{self._where}: the log has no commit of it, but its changelog proves one "
                f"(state version {max(proven)}): {NO_COMMIT}. {ways_on(self._settings)}"
            )
        positions = self._inputs.starting_positions(given, wall_clock_ms)
        commit = Commit(positions, state.new_version(None), self._inputs.with_topic_ids(b""))
        make_first(state, committer, commit)
        return commit

    def _with_new_partitions(self, commit: Commit, wall_clock_ms: int) -> Commit:
        """Return `commit` with starting positions for the partitions of a topic that was added.

        Raises IncompatibleStateError for a partition that the task has read before and whose position is gone.
        """
        new = [partition for partition in self.partitions if partition not in commit.positions]
        lost = sorted(map(str, set(new) & partitions_read(commit.engine_state)))
        if lost:
            raise IncompatibleStateError(
                f"{self._where}: it has read {', '.join(lost)}, and its commit has no position there: "
                "the topic was deleted and made again, or the log lost data. "
                f"What it would read now is not what follows on its state. {ways_on(self._settings, partly=True)}. "
                "Where the topic is another now, `offset_out_of_range`: earliest or latest goes on with what it has"
            )
        given = self._log.committed(self._application.id, self.partitions)
        starting = self._inputs.starting_positions(given, wall_clock_ms)
        for partition in new:
            _log.info("%s: reads %s from now on, from offset %d", self._where, partition, starting[partition])
        positions = {partition: commit.positions.get(partition, starting[partition]) for partition in self.partitions}
        return Commit(positions, commit.version, self._inputs.with_topic_ids(commit.engine_state))

    def _open_committer(self) -> TaskCommitter:
        return self._log.open_committer(self._application.id, str(self.id), self.partitions)

    def restore(self, between: Callable[[], None] = lambda: None) -> None:
        """Do the next part of opening, if it is not done: bring local state to the last commit.

        It may take hours, in any thread (see `opening`); `between` is called after each portion, and may wait. Raises
        as `run_batch`; `abandon_after` closes what is open.
        """
        state, commits = self._state, self._commits
        assert state is not None and commits is not None
        if state.version is None:
            began, last = self._phases.now(), commits.last
            adopted = replace(last, engine_state=state.adopt(last.version, last.engine_state))
            state.backends.opening.between = between
            state.open(last.version, self._inputs.refills(last, self._retries.attempt))
            self._has_adopted = adopted != last
            commits.settle(adopted)
            state.backends.release()
            self._opening_seconds += self._phases.now() - began

    def open_targets(self) -> None:
        """Do the next part of opening, if it is not done: open the targets outside of the log.

        It waits for targets that are slow, in any thread. Raises as `run_batch`.
        """
        assert self._commits is not None
        self._sinks.open(self._inputs.sources, self._inputs.topic_ids, self._log, self._refused_by_sinks)
        self._commits.sinks = self._sinks

    def restore_ahead(self) -> None:
        """Do as `restore` and `open_targets`, in a thread beside the task's.

        The next opening raises its error, so that it ends as that of an opening does.
        """
        try:
            self.restore()
            self.open_targets()
        except BaseException as error:
            self._failed_restore = error

    def _start(self, wall_clock_ms: int) -> None:
        """Do the rest of opening: processors belong to one thread."""
        task = self._make_task(
            self._inputs.sources,
            wall_clock_ms,
            topic_name=self._inputs.topic_name,
            partition_count=self._inputs.partition_count,
            refusals=self._refusals,
            stopwatch=self._phases.now,
            sinks=self._sinks.opened,
        )
        task.visits.ask(*self._visits)
        if self._has_adopted:
            task.progress.note_change()
        self._begin_counting()

    # ------------------------------------------------------------------ errors, and closing

    def cause_of(self, error: BaseException) -> BaseException:
        """Return FencedError for an error that another process causes which has taken the task over, else `error`.

        It deletes files and records that this process needs, and writes to the changelog, to this machine's stores and
        to targets. Return RetryRequested for a target that is away.
        """
        if isinstance(error, SinkUnavailableError):
            return self._retry_of(error)
        if isinstance(error, SinkMovedError):
            return FencedError(
                f"{error}: another process has run the task meanwhile; nothing was changed: open it again"
            )
        if isinstance(error, _MAY_BE_OF_SUCCESSOR) and self._committer is not None:
            try:
                is_current = self._committer.is_current()
            except Exception:
                _log.debug("task %s: whether it is still this process's is unknown", self.id, exc_info=True)
            else:
                if not is_current:
                    return FencedError(
                        f"task {self.id} of application {self._application.id!r} was taken over by another process: "
                        f"nothing was changed; open it again. This process found: {error}"
                    )
        return error

    def abandon_after(self, error: BaseException) -> bool:
        """Abandon the task after an error; return whether reopening it at once handles the error."""
        if isinstance(error, RetryRequested):
            times = (-1, -1) if self.task is None else (self.task.stream_time, self.task.wall_clock)
            self._retries.note(error, *times)
            self.abandon("retry")
        elif isinstance(error, RecordRefusedError):
            self.abandon("record refused")
            if self._note_refusal(error):
                self._log_repeated(
                    logging.WARNING,
                    "task %s: %s; again from the last commit, to find where it came from",
                    self.id,
                    error,
                )
                return True
        elif isinstance(error, RefusedBySinkError):
            self.abandon("record refused")
            self._refused_by_sinks.setdefault(error.node, {}).update(error.refusals)
            return True
        elif isinstance(error, TopicMadeAgainError):
            # Kafka deletes a commit with the topics that it is kept beside.
            self._before = None if self._commits is None else self._commits.last
            self.abandon("topic made again")
            return True
        else:
            self.abandon("fenced" if is_taken_over(error) else "failed")
        return False

    def _retry_of(self, error: SinkUnavailableError) -> RetryRequested:
        """Return the request to open the task again later: after each failure in a row, twice as late."""
        failure = Failure(Stage.PRODUCTION, error, "", str(self.id), None, None, None)
        attempt = self._retries.attempt(key_of(failure, _AWAY))
        delay_ms = min(_FIRST_DELAY_MS << min(attempt - 1, 20), _LONGEST_DELAY_MS)
        return RetryRequested(replace(failure, attempt=attempt), delay_ms, _AWAY)

    def _log_repeated(self, level: int, message: str, *arguments: object) -> None:
        """Write a line that each re-opening brings, once a minute with their number."""
        self._resources.repeats.log(_log, level, (self._application.id, message), message, *arguments)

    def _note_refusal(self, refusal: RecordRefusedError) -> bool:
        """Store the refused record; return whether it is new, so that the task's handler has to see it."""
        before = self._refusals.setdefault(refusal.topic, [])
        if not all(map(refusal.refuses_more_than, before)):
            return False
        before.append(refusal)
        return True

    def abandon(self, reason: str = "closed") -> None:
        """Drop everything since the last commit and close; the next `run_batch` opens the task again, for `reason`."""
        self._why_closed = reason
        if self._committer is not None or reason != "retry":
            self._waiting = self._committer if reason == "retry" else None
        super().abandon(reason)
        self._sinks.close()

    # ------------------------------------------------------------------ numbers

    def _begin_counting(self) -> None:
        self._counts, self._decoded_before, self._called_before = TaskCounts(), 0.0, 0

    def _note_processed(self, task: Task, records: int, clock_ms: int, since: float) -> None:
        """Count the latency and lateness of processed records; the last record stands for all.

        `clock_ms`: the wall clock when the stopwatch was at `since`.
        """
        last = task.progress.last_timestamp
        self._latency.observe((clock_ms - last) / 1000 + self._phases.now() - since, records)
        self._lateness.observe((task.stream_time - last) / 1000, records)

    def _times(self, commits: TaskCommits) -> dict[str, list[float]]:
        histograms = {"latency": self._latency, "lateness": self._lateness, "commit": commits.took}
        return {name: taken for name, each in histograms.items() if (taken := each.take())}

    def _report(self) -> TaskReport:
        """Return a report of the time since the last one; all of it must be committed."""
        task, commits, state = self.task, self._commits, self._state
        assert task is not None and commits is not None and state is not None
        commit = commits.last
        decoded, counted = task.decode_seconds(), self._counts.since_last(task)
        self._phases.move("process", "decode", decoded - self._decoded_before)
        purgeable = (commits.proven or {}) if state.keeps_commits else commit.positions
        report = TaskReport(
            str(self.id),
            commit.version,
            dict(commit.positions),
            task.stream_time,
            task.next_wall_clock_punctuation(),
            {each: purgeable[each] for each in self._inputs.internal if each in purgeable},
            records_in=counted.records_in,
            records_out=commits.produced,
            dropped=counted.dropped,
            commits=commits.made,
            restored=state.take_restored(),
            openings={self._opened: 1} if self._opened else {},
            phases=dict(self._phases),
            nodes=counted.nodes,
            times=self._times(commits),
            store_changes=dict(commits.changed),
            punctuations=task.punctuations - self._called_before,
            state_bytes=commits.state_bytes,
            store_calls={
                name: taken
                for name, each in state.stores.items()
                if each.calls is not None and (taken := each.calls.take())
            },
            visits=task.visits.counts(),
            calls=task.in_flight.take_counts(),
            in_flight=task.in_flight.count(),
        )
        for refusals in self._refusals.values():  # sinks look into these lists
            refusals[:] = [refusal for refusal in refusals if not refusal.moves_with_the_clock]
        self._phases.clear()
        self._decoded_before, self._opened = decoded, ""
        self._called_before = task.punctuations
        commits.made = commits.produced = 0
        commits.changed.clear()
        commits.state_bytes = None
        return report
