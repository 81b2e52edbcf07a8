"""LoggedTask: one task with its log, changelog and local state: opening, committing, closing.

What runs a task derives from it: `TaskWorker` batch by batch, `ContinuousWorker` record by record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from time import perf_counter

from penstock.clock import duration_ms
from penstock.errors import ChangelogError, FencedError, RecordRefusedError
from penstock.log import Commit, Log, TaskCommitter
from penstock.program.layouts import Layouts
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition
from penstock.settings.application import Application
from penstock.task.failures import RetryRequested
from penstock.task.input_queue import TaskInput
from penstock.task.task import Task

from .local_state.state import TaskState
from .local_state.stretch import Stretch
from .locations import open_changelog
from .opening import KnownCommit, LastCommit
from .pending_commit import PendingCommit
from .positions import InputPartitions
from .process_resources import ProcessResources
from .report import NodeCounts, Phases, TaskReport
from .retries import Retries, close_parts
from .taken_over import is_taken_over
from .topic_ids import TopicMadeAgainError, differ

_log = logging.getLogger("penstock.worker")

FIRST = "first"
"""The reason why a task is opened by an object that had not opened it before."""
_MOST_UNPROVEN = 10_000
"""After so many records of internal topics without a change of state, write an empty delta to prove the last commit."""


class LoggedTask:
    """One task with its log, changelog and local state. Not thread-safe.

    Any process may make one for any task at any time. `partitions` are the task's input partitions by their names in
    the log; `task_count` is how many tasks the application has. A new object has nothing open. After an error it has to
    be opened again, from the last commit.
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
        self.id = task_id
        self._application = application
        self._settings = application.settings
        self._log = log
        self._resources = resources
        self._task_count = task_count
        self._subtopology = application.program.subtopology(task_id.subtopology)
        self._inputs = InputPartitions(application, task_id, partitions, log)
        self._last_commit = LastCommit(application, task_id, self._inputs, log)
        self.partitions = tuple(partitions)
        self._committer: TaskCommitter | None = None
        self._state: TaskState | None = None
        self.task: Task | None = None
        self._commit: Commit | None = None
        self._proven: Mapping[TopicPartition, int] | None = None
        self._retries = Retries(application.id, resources)
        self._refusals: dict[str, RecordRefusedError] = {}
        self._grace = duration_ms(self._settings.changelog_grace)
        self._commits, self._has_sent, self._sent_at = 0, False, inf
        self._counts, self._has_adopted = NodeCounts(), False
        self._why_closed = FIRST
        self._before: Commit | None = None  # the last commit in topics that have been made again since

    @property
    def is_open(self) -> bool:
        """Whether the task is open."""
        return self.task is not None

    def next_tick(self) -> int | None:
        """Return when (ms) the open task's next wall-clock punctuator is due; None if there is none."""
        return None if self.task is None else self.task.next_wall_clock_punctuation()

    @property
    def opening(self) -> Stretch | None:
        """The work of `restore`, which any thread may watch and end; None before the last commit is known."""
        state = self._state
        return None if state is None else state.opening

    def commit_expires(self) -> bool:
        """Return whether the open task must repeat its last commit soon, because the log deletes old ones."""
        return self._committer is not None and self._committer.expires()

    @property
    def committer(self) -> TaskCommitter | None:
        """The open committer, for `Log.are_current`."""
        return self._committer

    # ------------------------------------------------------------------ opening

    def _ensure_open(self, wall_clock_ms: int, known: KnownCommit | None, is_current: bool | None) -> str:
        """Open the task unless it is open and current; return why it was opened, "" if it was not."""
        if self.task is not None:
            assert self._committer is not None and self._state is not None and self._commit is not None
            ids = self._inputs.topic_ids
            if differ(ids, self._resources.topic_ids.of(self._log, ids)):
                self._inputs.check_topics()
            if is_current is None:
                is_current = self._committer.is_current()
            if is_current and self._state.is_at(self._commit.version):
                self._last_commit.check(self._commit, known)
                return ""
            self._log_repeated(logging.INFO, "task %s was run by another process meanwhile: opening it again", self.id)
            self.abandon("taken over")
        why = self._why_closed
        self.prepare(wall_clock_ms, known)
        self.restore()
        self._start(wall_clock_ms)
        return why

    def prepare(self, wall_clock_ms: int, known: KnownCommit | None = None) -> None:
        """Do the part of opening that waits for the log, if the task is not open: fence, last commit, first commit.

        One thread may prepare a task while others prepare other tasks; no two call the same task at a time. The next
        batch does the rest. Raises as `run_batch`.
        """
        if self._commit is not None:
            return
        try:
            self._prepare(wall_clock_ms, known)
        except BaseException:
            self.abandon("failed")
            raise

    def _prepare(self, wall_clock_ms: int, known: KnownCommit | None) -> None:
        # Take the fence first: a predecessor cannot change what is read after it.
        committer = self._committer = self._log.open_committer(self._application.id, str(self.id), self.partitions)
        self._inputs.read_topic_ids()
        self._last_commit.check(committer.committed or self._before, known)
        layouts = self._subtopology.layouts or Layouts.of_program(
            self._subtopology.stores, self._settings.store_backend
        )
        changelog = None
        if layouts.now:
            changelog = open_changelog(self._settings, self._application.id, str(self.id), self._log, layouts.now)
        directory = self._resources.task_directory(self._application, str(self.id))
        self._state = TaskState(
            self._application, self.id, directory, changelog, layouts, self._task_count, self._resources.repeats
        )
        self._commit = self._last_commit.of(committer, self._state, wall_clock_ms, self._before)
        self._before = None

    def restore(self, between: Callable[[], None] = lambda: None) -> None:
        """Do the next part of opening, if it is not done: bring local state to the last commit.

        It may take hours, in any thread (see `opening`); `between` is called after each portion, and may wait. Raises
        as `run_batch`; `abandon_after` closes what is open.
        """
        committer, state, commit = self._committer, self._state, self._commit
        assert committer is not None and state is not None and commit is not None
        if state.version is None:
            state.opening.between = between
            state.open(commit.version, self._inputs.refills(commit, self._retries.attempt))
            adopted = replace(commit, engine_state=state.adopt(commit.version, commit.engine_state))
            self._has_adopted, self._commit = adopted != commit, state.settle(adopted, committer.commit)
            state.release()

    def _start(self, wall_clock_ms: int) -> None:
        """Do the rest of opening: processors belong to one thread."""
        state, commit = self._state, self._commit
        assert state is not None and commit is not None
        task = self.task = Task(
            self.id,
            self._subtopology,
            self._application.id,
            self._settings,
            [TaskInput(partition, source, commit.positions[partition]) for partition, source in self._inputs.sources],
            state.stores,
            self._resources.global_stores(self._application),
            topic_name=self._inputs.topic_name,
            partition_count=self._inputs.partition_count,
            saved=commit.engine_state,
            wall_clock_ms=wall_clock_ms,
            attempt=self._retries.attempt,
            refusals=self._refusals,
            stopwatch=perf_counter,
            repeats=self._resources.repeats,
        )
        if self._has_adopted:
            task.progress.note_change()
        state.connect(task)
        self._counts = NodeCounts()

    # ------------------------------------------------------------------ committing

    def _uncommitted_bytes(self) -> int:
        return self._state.size_bytes() if self._state is not None else 0

    def _send(self, outputs: list[OutputBatch], phases: Phases) -> int:
        """Send outputs to the log before the commit; return how many."""
        assert self._committer is not None
        since = perf_counter()
        if not self._has_sent:
            self._has_sent, self._sent_at = True, since
        self._committer.send(outputs)
        phases.add("write", since)
        return sum(map(len, outputs))

    def _make_commit(self, phases: Phases) -> int:
        """Commit whatever changed since the last one; return how many records were produced."""
        pending = self._take_commit(phases)
        if pending is None:
            return 0
        pending.write()
        self._finish(pending, phases)
        return pending.produced

    def _take_commit(self, phases: Phases) -> PendingCommit | None:
        """Return what changed since the last commit; None if nothing did. The task rests until `_finish`."""
        task, state, committer, last = self.task, self._state, self._committer, self._commit
        assert task is not None and state is not None and committer is not None and last is not None
        since = perf_counter()
        made = task.take_commit()
        since = phases.add("process", since)
        state.flush()
        changes = state.changes()
        phases.add("state", since)
        outputs, positions = made.outputs, made.positions
        produced = sum(map(len, outputs))
        unchanged = not changes and not outputs and not made.has_changed and positions == last.positions
        if unchanged and not self._has_sent and not self.commit_expires():
            return None
        if outputs and committer.streams_outputs:
            # Send them now: at least once, only outputs that `send` takes can be read before the commit.
            self._send(outputs, phases)
            outputs = []
        version, delta = last.version, None
        if changes or self._is_far_from_proven(positions):
            version, delta = state.new_version(last.version), changes
            self._proven = last.positions
        return PendingCommit(
            state, committer, last,
            Commit(positions, version, self._inputs.with_topic_ids(task.engine_state())),
            outputs, delta, produced,
        )  # fmt: skip

    def _finish(self, pending: PendingCommit, phases: Phases) -> None:
        """Bring the stores to the version of a commit that was written."""
        assert self._state is not None
        phases.count(pending.phases)
        if pending.delta is not None:
            since = perf_counter()
            self._state.apply(pending.delta, pending.commit.version)
            phases.add("state", since)
        self._commit = pending.commit
        self._commits += 1
        self._has_sent, self._sent_at = False, inf

    def _is_far_from_proven(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Return whether many records wait to be purged until a delta proves that they are not needed again."""
        if not self._inputs.internal or self._state is None or not self._state.keeps_commits:
            return False
        if self._proven is None:
            self._proven = self._log.start_offsets(self._inputs.internal)
        return sum(positions[each] - self._proven.get(each, 0) for each in self._inputs.internal) > _MOST_UNPROVEN

    # ------------------------------------------------------------------ errors, and closing

    def cause_of(self, error: BaseException) -> BaseException:
        """Return FencedError for an error of the changelog if another process has taken the task over, else `error`.

        That process deletes files of the changelog that it does not need itself.
        """
        if isinstance(error, ChangelogError) and self._committer is not None:
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
        """Abandon the task after an error; return whether opening it again at once deals with the error."""
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
        elif isinstance(error, TopicMadeAgainError):
            # Kafka deletes a commit with the topics that it is kept beside.
            self._before = self._commit
            self.abandon("topic made again")
            return True
        else:
            self.abandon("fenced" if is_taken_over(error) else "failed")
        return False

    def _log_repeated(self, level: int, message: str, *arguments: object) -> None:
        """Write a line that each re-opening brings, once a minute with their number."""
        self._resources.repeats.log(_log, level, (self._application.id, message), message, *arguments)

    def _note_refusal(self, refusal: RecordRefusedError) -> bool:
        """Keep the refused record; return whether it is new, so that the task's handler has to see it."""
        before = self._refusals.get(refusal.topic)
        if before is not None and (refusal.above is None or before.above is None or refusal.above >= before.above):
            return False
        self._refusals[refusal.topic] = refusal
        return True

    def abandon(self, reason: str = "closed") -> None:
        """Drop everything since the last commit and close; the next `run_batch` opens the task again, for `reason`."""
        self._why_closed = reason
        task, state, committer = self.task, self._state, self._committer
        self._has_sent, self._sent_at = False, inf
        self.task = self._state = self._committer = self._commit = self._proven = None
        close_parts(self.id, task, state, committer)

    def close(self) -> None:
        """Close the task; what is committed stays. Idempotent."""
        self.abandon()

    def destroy(self) -> None:
        """Close the task and delete its local state."""
        if self._state is not None:
            self._state.destroy()
        self.abandon()

    # ------------------------------------------------------------------ numbers

    def _report(self, phases: Phases, records_in: int, produced: int, opened: str) -> TaskReport:
        task, commit, state = self.task, self._commit, self._state
        assert task is not None and commit is not None and state is not None
        nodes = self._counts.since_last(task.metrics())
        dropped = sum(sum(counts["dropped"].values()) for counts in nodes.values())
        purgeable = (self._proven or {}) if state.keeps_commits else commit.positions
        return TaskReport(
            str(self.id),
            commit.version,
            dict(commit.positions),
            task.stream_time,
            records_in,
            produced,
            dropped,
            self._commits,
            state.take_restored(),
            task.next_wall_clock_punctuation(),
            dict(phases),
            nodes,
            {each: purgeable[each] for each in self._inputs.internal if each in purgeable},
            opened,
        )
