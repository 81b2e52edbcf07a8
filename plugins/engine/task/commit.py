"""TaskCommits: the commit of a task, in three steps: changelog, commit point, store; before the second, its targets.

Comes in: a task's work since its last commit. Goes out: outputs, positions, engine state and a new version of the
state, all of it or nothing.

1. Changelog: append the delta from the last version to a new one, durably. It counts only once a commit names it. A
   changelog in topics of the log appends nothing here: its records are outputs of step 2.
2. Commit point: one step makes outputs, positions, engine state and the name of the version visible. It is the task's
   `TaskCommitter`: a transaction of the log, or Spark's checkpoint. From here on everything counts.
3. Store: write the delta to the store backends of this host. They are never ahead of the commit point.

Records for targets outside of the log (`Sink`) are written between steps 1 and 2, each target in a transaction of its
own that has its position. So a target is ahead of the commit point or equal to it, and never behind; what it has
already is skipped when the records are processed again. A target without transactions (`StagedSink`) gets there what
the commit before has decided: after a crash it is written again, and alike.

After an error in step 1 nothing is committed; a delta that was written is an orphan. After an error in step 2 nothing
is committed, or the outcome is unknown (`TaskCommitter.commit` names the errors). In each case, and after an error in
step 3, the task is closed, and the next opening reads the last commit from the commit point and brings the stores to
its version. Nothing continues from memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from penstock import Commit, OutputBatch, StaleStoreError, TaskCommitter, TopicPartition
from penstock.store import Changes
from penstock.task.sinks import SinkWrite, StagedWrite
from penstock.task.task import Task

from .local_state.directories import disk_bytes
from .local_state.task_state import TaskState
from .positions import InputPartitions
from .report import Histogram, Phases
from .sinks import OpenSinks

_MOST_UNPROVEN = 10_000
"""After so many records of internal topics without a change of state, write an empty delta to prove the last commit."""

_MEASURE_SECONDS = 30.0
"""Seconds between two looks at the size of the local state."""


@dataclass
class PendingCommit:
    """A commit between `TaskCommits.take` and `TaskCommits.finish`.

    `delta` has the changes of the state; None if the version stays. `kept` is the commit before it, which the changelog
    keeps for `reset --from-state`. `writes` are for the targets `sinks`. `measures`: whether `write` measures the local
    state, for `state_bytes`.
    """

    state: TaskState
    committer: TaskCommitter
    commit: Commit
    outputs: list[OutputBatch]
    delta: Changes | None
    kept: Commit | None
    phases: Phases
    measures: bool = False
    state_bytes: int | None = None
    sinks: OpenSinks | None = None
    writes: Sequence[SinkWrite | StagedWrite] = ()

    def write(self) -> None:
        """Do steps 1 and 2: append the delta to the changelog, write to targets, and make the commit.

        Another thread may call it while the task rests. Raises as `DeltaChangelog.append`, `OpenSinks.write` and
        `TaskCommitter.commit`.
        """
        since, outputs = self.phases.now(), self.outputs
        if self.delta is not None:
            outputs = outputs + self.state.append_delta(self.delta, self.commit.version, self.kept)
            since = self.phases.add("changelog", since)
        if self.sinks is not None:
            self.sinks.write(self.writes)
        self.committer.commit(self.commit, outputs)
        since = self.phases.add("write", since)
        if self.measures:
            self.state_bytes = disk_bytes(self.state.directory)
            self.phases.add("state", since)


@dataclass(eq=False)
class TaskCommits:
    """The commits of one open task, in order. The task's thread calls all methods.

    `last` is the commit that the state is at. `phases` gets the time that commits take. `inputs`: the task's partitions
    of a log; None where the commit point is no log. `sinks`: its targets outside of the log, if it has a log.
    """

    state: TaskState
    committer: TaskCommitter
    last: Commit
    phases: Phases
    inputs: InputPartitions | None = None
    sinks: OpenSinks | None = None

    def __post_init__(self) -> None:
        self.made = self.produced = 0
        """Numbers of commits and of outputs since the last report."""
        self.has_sent = False
        """Whether outputs of the next commit were sent ahead of it."""
        self.took = Histogram()
        """The seconds that commits took since the last report."""
        self.changed: Counter[str] = Counter()
        """Rows that commits wrote since the last report, by store."""
        self.state_bytes: int | None = None
        """The size of the local state on disk, if it was measured since the last report."""
        self.state_rows: int | None = None
        """Number of entries of the stores, as of the last commit or opening."""
        self.pending: PendingCommit | None = None
        """The commit that was taken and is not finished."""
        self.proven: Mapping[TopicPartition, int] | None = None
        """Positions whose commit is proven without the log: by a delta that follows it, or by a snapshot."""
        self._sent_at = inf
        self._taken_at = 0.0
        self._measure_at = 0.0

    @property
    def latest(self) -> float:
        """The time (of the stopwatch of `phases`) by which the next commit has to be made."""
        return self._sent_at + self.committer.commit_within

    def send(self, outputs: list[OutputBatch]) -> None:
        """Send outputs to the log ahead of the commit. Only where the log streams outputs."""
        since = self.phases.now()
        if not self.has_sent:
            self.has_sent, self._sent_at = True, since
        self.committer.send(outputs)
        self.phases.add("write", since)
        self.produced += sum(map(len, outputs))

    def make(self, task: Task) -> None:
        """Do all three steps, if anything has changed since the last commit."""
        pending = self.take(task)
        if pending is not None:
            pending.write()
            self.finish()

    def take(self, task: Task) -> PendingCommit | None:
        """Return the changes since the last commit; None if there are none.

        The task rests until `finish`. After an error of `PendingCommit.write` nothing is taken any more. Raises
        StaleStoreError if another process has changed the local state that the task has read.
        """
        assert self.pending is None, "the outcome of the commit before is unknown"
        state, last, phases = self.state, self.last, self.phases
        self._taken_at = since = phases.now()
        made = task.take_commit()
        since = phases.add("process", since)
        state.flush()
        changes = state.changes()
        phases.add("state", since)
        outputs, positions = made.outputs, made.positions
        has_changed = changes or outputs or made.has_changed or positions != last.positions
        if not has_changed and not self.has_sent and not self.committer.expires():
            return None
        if not state.is_at(last.version):
            # Another process has restored or written this copy, so what was read from it since may be wrong.
            raise StaleStoreError(
                f"task {state.task_id} of application {state.application_id!r}: its local state is no longer at "
                f"version {last.version}: another process wrote it; nothing was changed: open the task again"
            )
        self.state_rows = state.count_rows()
        if outputs and self.committer.streams_outputs:
            # Send them now: at least once, only outputs that `send` takes can be read before the commit.
            self.send(outputs)
            outputs = []
        self.produced += sum(map(len, outputs))
        version, delta = last.version, None
        if changes or not state.is_settled or self._is_far_from_proven(positions):
            version, delta = state.new_version(last.version), changes
            self.proven = last.positions
        engine_state, kept = task.engine_state(), None
        if self.inputs is not None:
            engine_state, kept = self.inputs.with_topic_ids(engine_state), last
        commit = Commit(positions, version, engine_state)
        measures = bool(state.stores) and since >= self._measure_at
        self.pending = PendingCommit(
            state, self.committer, commit, outputs, delta, kept, Phases(phases.now), measures,
            sinks=self.sinks, writes=made.writes,
        )  # fmt: skip
        return self.pending

    def finish(self) -> Commit:
        """Do step 3 for the commit that was written: bring the stores to its version. Return the commit."""
        pending, self.pending = self.pending, None
        assert pending is not None
        self.phases.count(pending.phases)
        if pending.delta is not None:
            since = self.phases.now()
            self.state.apply(pending.delta, pending.commit.version)
            self.phases.add("state", since)
            self.changed.update({store: len(rows) for store, rows in pending.delta.items()})
        if pending.state_bytes is not None:
            self._note_size(pending.state_bytes)
        self.took.observe(self.phases.now() - self._taken_at)
        self.last = pending.commit
        self.made += 1
        self.has_sent, self._sent_at = False, inf
        return pending.commit

    def settle(self, adopted: Commit) -> None:
        """Continue from `adopted`, the last commit adapted to the program's stores.

        If its version is of an earlier layout, commit one of the present layout, in the same three steps. Call it
        before the stores are used.
        """
        self.last = adopted
        if not self.state.is_settled:
            commit = replace(adopted, version=self.state.new_version(adopted.version))
            outputs = self.state.append_layout(adopted, commit)
            self.committer.commit(commit, outputs)
            self.state.apply_layout(commit.version)
            self.last = commit
        self.state_rows = self.state.count_rows()
        if self.state.stores:
            self._note_size(disk_bytes(self.state.directory))

    def _note_size(self, state_bytes: int) -> None:
        self.state_bytes, self._measure_at = state_bytes, self.phases.now() + _MEASURE_SECONDS

    def _is_far_from_proven(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Return whether many records cannot be purged until a further delta proves their commit."""
        inputs = self.inputs
        if inputs is None or not inputs.internal or not self.state.keeps_commits:
            return False
        if self.proven is None:
            self.proven = inputs.proven_at_first()
        return sum(positions[each] - self.proven.get(each, 0) for each in inputs.internal) > _MOST_UNPROVEN


def make_first(state: TaskState, committer: TaskCommitter, commit: Commit) -> None:
    """Make the first commit of a task: the empty delta that begins the chain of versions, then `commit`."""
    state.append_delta({}, commit.version, commit)
    committer.commit(commit, [])
