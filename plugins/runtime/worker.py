"""TaskWorker: runs one task against its log: open, restore, fetch, process, commit. Every driver uses it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Any

from penstock.changelog import version_counter
from penstock.clock import duration_ms
from penstock.errors import (
    IncompatibleStateError,
    OffsetOutOfRangeError,
    RecordRefusedError,
    TopologyError,
    UnknownTopicError,
)
from penstock.log import Commit, Log, TaskCommitter
from penstock.program.layouts import Layouts
from penstock.program.nodes import SourceNode, Subtopology, TaskId, decorate
from penstock.record import OutputBatch, RecordBatch, TopicPartition
from penstock.settings.application import Application
from penstock.task.task import RetryRequested, Task, partitions_read

from .host import Host
from .locations import open_changelog
from .lost_commits import NO_COMMIT, ways_on
from .retries import Retries, close_parts
from .state import TaskState

_log = logging.getLogger("penstock.worker")

_CHUNK = 2_000
"""Records between two looks at the commit limits."""
_MOST_UNPROVEN = 10_000
"""After so many records of internal topics without a change of state, a delta without changes proves the last commit."""
_SENT_BYTES = 256 * 1024
"""So many bytes of outputs are sent ahead of the commit, where the log takes them."""


@dataclass
class TaskReport:
    """What a task did in one batch. Counts are of this batch; times are seconds, by phase.

    `positions` and `version` are the last commit. `purgeable`: positions in internal topics below which the task needs no record
    again, not even if the log loses its commits and `reset --from-state` goes back to one that the changelog keeps. `next_tick` is the wall-clock time (ms) at which a punctuator is due.
    """

    task_id: str
    version: str
    positions: Mapping[TopicPartition, int]
    stream_time: int
    records_in: int = 0
    records_out: int = 0
    dropped: int = 0
    commits: int = 0
    restored: int = 0
    next_tick: int | None = None
    phases: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    purgeable: Mapping[TopicPartition, int] = field(default_factory=dict)


class _Phases(dict[str, float]):
    """Seconds spent, by phase."""

    def add(self, phase: str, since: float) -> float:
        now = perf_counter()
        self[phase] = self.get(phase, 0.0) + now - since
        return now

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count some of what one phase took for another."""
        self[source] -= seconds
        self[target] = self.get(target, 0.0) + seconds


class TaskWorker:
    """One task and its edges. Not thread-safe; any process may make one for any task at any time.

    `partitions` are the task's input partitions by their names in the log. Making one opens nothing;
    `run_batch` does, and after an error the next `run_batch` starts from the last commit.
    """

    def __init__(
        self, application: Application, task_id: TaskId, partitions: Sequence[TopicPartition], log: Log, *, host: Host
    ) -> None:
        self.id = task_id
        self._application = application
        self._settings = application.settings
        self._log = log
        self._host = host
        self._subtopology = _find_subtopology(application, task_id)
        self._inputs = [(partition, self._source_of(partition)) for partition in partitions]
        self.partitions = tuple(partitions)
        self._committer: TaskCommitter | None = None
        self._state: TaskState | None = None
        self.task: Task | None = None
        self._commit: Commit | None = None
        internal = {self._topic_name(topic) for topic in application.program.internal_topics}
        self._internal = [each for each in partitions if each.topic in internal]
        self._proven: Mapping[TopicPartition, int] | None = None
        self._retries = Retries(task_id, host)
        self._refusals: dict[str, RecordRefusedError] = {}
        self._commit_interval = duration_ms(self._settings.commit_interval) / 1000
        self._grace = duration_ms(self._settings.changelog_grace)
        self._commits = 0
        self._has_sent, self._sent_at = False, inf
        self._counted: dict[str, tuple[int, int, dict[str, int]]] = {}

    # ------------------------------------------------------------------ a batch

    def run_batch(
        self,
        ends: Mapping[TopicPartition, int],
        wall_clock_ms: int,
        known: tuple[str, Mapping[TopicPartition, int]] | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> TaskReport:
        """Process every input partition up to its planned end, fire what is due at `wall_clock_ms`, and commit.

        `known` is a commit (version, positions) that the caller knows was made; a log that has an older one or none is refused.
        `topic_ids`: ids of the global stores' topics, if `ends` names their partitions. Raises FencedError when another process took the task over; the handlers' errors; and what log, changelog and
        stores raise. Nothing after the last commit counts then, and this object can be used again.
        """
        while True:
            try:
                return self._run_batch(ends, wall_clock_ms, known, topic_ids)
            except RetryRequested as retry:
                self.abandon()
                self._retries.wait(retry)
            except RecordRefusedError as refusal:
                self.abandon()
                if not self._note_refusal(refusal):
                    raise
                _log.warning("task %s: %s; again from the last commit, to find where it came from", self.id, refusal)
            except BaseException:
                self.abandon()
                raise

    def _note_refusal(self, refusal: RecordRefusedError) -> bool:
        """Keep what the log refused; return whether the task does not know it yet, so that its handler has not been asked."""
        before = self._refusals.get(refusal.topic)
        if before is not None and (refusal.above is None or before.above is None or refusal.above >= before.above):
            return False
        self._refusals[refusal.topic] = refusal
        return True

    def _run_batch(
        self,
        ends: Mapping[TopicPartition, int],
        wall_clock_ms: int,
        known: tuple[str, Mapping[TopicPartition, int]] | None,
        topic_ids: Mapping[str, str] | None,
    ) -> TaskReport:
        phases = _Phases()
        began = perf_counter()
        # Before the task is opened: its processors may look into them in `init`.
        self._host.update_globals(self._application, self._log, ends, wall_clock_ms, topic_ids)
        is_new = self._ensure_open(wall_clock_ms, known)
        since = phases.add("restore", began)
        task, committer, commit = self.task, self._committer, self._commit
        assert task is not None and committer is not None and commit is not None
        task.advance_wall_clock(wall_clock_ms)
        self._commits = 0
        records_before = task.records_in
        produced = 0
        last_commit = since
        position = dict(commit.positions)
        # A task that waits for one input keeps what it has of the others.
        fetched_to = {
            partition: at if (queued := task.queued_to(partition)) is None else queued
            for partition, at in position.items()
        }
        if is_new:
            self._check_ends(task, fetched_to)
        for partition in self.partitions:
            task.expect(partition, fetched_to[partition] < ends.get(partition, 0))
        limit = _CHUNK
        while True:
            since = perf_counter()
            for partition in self.partitions:
                end = ends.get(partition, 0)
                if fetched_to[partition] < end and task.is_empty(partition):
                    self._fetch(task, partition, fetched_to, end)
            since = phases.add("read", since)
            done = task.process(limit)
            since = phases.add("process", since)
            finished = done < limit and not any(
                fetched_to[partition] < ends.get(partition, 0) and task.is_empty(partition)
                for partition in self.partitions
            )
            if finished and not task.commit_requested:
                break
            waiting = task.output_bytes()
            if committer.streams_outputs and waiting > _SENT_BYTES:
                produced += self._send(task.take_outputs(), phases)
                waiting = 0
            if (
                task.commit_requested
                or since - last_commit > self._commit_interval
                or since - self._sent_at > committer.commit_within
                or waiting + self._held_bytes() > self._settings.commit_bytes
            ):
                produced += self._make_commit(phases)
                last_commit = perf_counter()
        next_tick = task.next_wall_clock_punctuation()
        if self._has_sent and next_tick is not None and next_tick <= task.wall_clock:
            # A punctuator may take longer than what was sent may wait.
            produced += self._make_commit(phases)
        since = perf_counter()
        task.punctuate_wall_clock()
        phases.add("process", since)
        produced += self._make_commit(phases)
        phases.move("process", "decode", task.decode_seconds)
        task.decode_seconds = 0.0
        since = perf_counter()
        assert self._state is not None and self._commit is not None
        if self._state.tend_changelog(self._grace, self._host.now_ms(), self._commit, committer.is_current):
            self._proven = self._commit.positions
        phases.add("snapshot", since)
        self._state.release()
        self._host.clean_up(self._application)
        self._retries.clear()
        return self._report(phases, task.records_in - records_before, produced)

    def _fetch(self, task: Task, partition: TopicPartition, fetched_to: dict[TopicPartition, int], end: int) -> None:
        try:
            batches = self._log.fetch(partition, fetched_to[partition], end, self._settings.fetch_bytes)
        except OffsetOutOfRangeError as error:
            batches = [_nothing_up_to(partition, self._going_on(task, partition, fetched_to[partition], error))]
        if not batches:
            if self._log.end_offsets([partition])[partition] < end:
                raise OffsetOutOfRangeError(
                    f"application {self._application.id!r}, task {self.id}: {partition} was planned to be read up to offset {end} and ends before "
                    "it: the log lost records, or the topic was deleted and made again. What was committed stays; run it under a new application id"
                )
            # Compaction or transaction markers left nothing below the end: the position still moves there.
            batches = [_nothing_up_to(partition, end)]
        for batch in batches:
            fetched_to[partition] = batch.next_offset
            task.add_records(batch, more=batch.next_offset < end)

    def _check_ends(self, task: Task, fetched_to: dict[TopicPartition, int]) -> None:
        """Treat a position after the log's end as out of range: records that come later would be skipped without a word."""
        ends = self._log.end_offsets(self.partitions, stable=False)
        for partition, position in fetched_to.items():
            if position > ends[partition]:
                try:
                    self._log.fetch(partition, position, position + 1, 1)
                except OffsetOutOfRangeError as error:
                    fetched_to[partition] = self._going_on(task, partition, position, error)
                    task.add_records(_nothing_up_to(partition, fetched_to[partition]))

    def _going_on(self, task: Task, partition: TopicPartition, offset: int, error: OffsetOutOfRangeError) -> int:
        """Return where to go on when the log does not have `offset`, as `offset_out_of_range` says. Raises OffsetOutOfRangeError.

        Nothing is skipped in an internal topic: its records are the application's own, and are deleted behind its commits only.
        """
        where = f"application {self._application.id!r}, task {self.id}"
        policy, source = self._settings.offset_out_of_range, dict(self._inputs)[partition]
        start = self._log.start_offsets([partition])[partition]
        beyond = (
            "The topic ends before what was processed: the log lost records, or the topic was deleted and made again"
        )
        if partition.topic in map(self._topic_name, self._application.program.internal_topics):
            version = self._commit.version if self._commit is not None else "none"
            behind = (
                "Only this application deletes records there, and only those that a commit has passed. So the log lost a later commit than "
                f"the one it has (state version {version}), or somebody else deleted records"
            )
            raise OffsetOutOfRangeError(
                f"{where}: {error}. {behind if offset < start else beyond}. It is an internal topic: what is missing is missing in the state, so "
                "nothing is skipped, whatever `offset_out_of_range` says. What was committed stays; bring back what the log lost, run the application "
                "under a new id, or `penstock reset` it"
            ) from error
        if policy == "fail":
            behind = "The records in between were deleted before they were processed"
            raise OffsetOutOfRangeError(
                f"{where}: {error}. {behind if offset < start else beyond}. What was committed stays; to go on with what the log still has, set "
                "`offset_out_of_range` to earliest or latest, run it under a new application id, or `penstock reset` it"
            ) from error
        going_on = start if policy == "earliest" else self._log.end_offsets([partition])[partition]
        skipped = max(0, going_on - offset)
        _log.warning(
            "%s: %s; goes on from offset %d (offset_out_of_range=%s), %d offsets are skipped",
            where, error, going_on, policy, skipped,
        )  # fmt: skip
        task.node_metrics[source.name].drop("offset_out_of_range", skipped)
        return going_on

    def _held_bytes(self) -> int:
        return self._state.size_bytes() if self._state is not None else 0

    # ------------------------------------------------------------------ opening

    def _ensure_open(self, wall_clock_ms: int, known: tuple[str, Mapping[TopicPartition, int]] | None) -> bool:
        """Open the task unless it is open and current; return whether it was opened."""
        if self.task is not None:
            assert self._committer is not None and self._state is not None and self._commit is not None
            if self._committer.is_current() and self._state.is_at(self._commit.version):
                self._check_known(self._commit, known)
                return False
            _log.info("task %s was run by another process meanwhile: opening it again", self.id)
            self.abandon()
        try:
            self._open(wall_clock_ms, known)
        except BaseException:
            self.abandon()
            raise
        return True

    def _open(self, wall_clock_ms: int, known: tuple[str, Mapping[TopicPartition, int]] | None) -> None:
        # The fence first: whatever is read after it cannot be changed by a predecessor any more.
        committer = self._committer = self._log.open_committer(self._application.id, str(self.id), self.partitions)
        commit = committer.committed
        self._check_known(commit, known)
        builders = self._subtopology.stores
        layouts = self._subtopology.layouts or Layouts.of_program(builders, self._settings.store_backend)
        changelog = None
        if layouts.now:
            changelog = open_changelog(self._settings, self._application.id, str(self.id), self._log, layouts.now)
        state = self._state = TaskState(
            builders,
            self._host.task_directory(self._application, str(self.id)),
            changelog,
            self._settings,
            self._application.id,
            str(self.id),
            layouts,
        )
        if commit is None:
            commit = self._first_commit(state, committer)
        elif set(commit.positions) != set(self.partitions):
            commit = self._with_new_partitions(commit)
            committer.commit(commit, [])
        state.open(commit.version)
        self._commit = commit = state.settle(commit, committer.commit)
        task = self.task = Task(
            self.id,
            self._subtopology,
            self._application.id,
            self._settings,
            self._inputs,
            state.stores,
            self._host.global_stores(self._application),
            topic_names=self._topic_name,
            partition_counts=self._partition_count,
            saved=commit.engine_state,
            wall_clock_ms=wall_clock_ms,
            attempt=self._retries.attempt,
            refusals=self._refusals,
            stopwatch=perf_counter,
        )
        state.serve(task, self._subtopology)
        self._counted = {}

    def _first_commit(self, state: TaskState, committer: TaskCommitter) -> Commit:
        """Commit the starting positions and the empty version, so that a task without a commit has never run.

        Raises IncompatibleStateError when the changelog proves that it had one.
        """
        # Positions without a commit: `penstock reset` says where to begin. One that was killed leaves the changelog.
        told = self._log.committed(self._application.id, self.partitions)
        if all(position is None for position in told.values()) and (proven := state.proven()):
            raise IncompatibleStateError(
                f"application {self._application.id!r}, task {self.id}: the log has no commit of it, but its changelog proves one "
                f"(state version {max(proven)}): {NO_COMMIT}. {ways_on(self._settings)}"
            )
        version = state.new_version(None)
        commit = Commit(self._starting_positions(told), version)
        state.append_delta({}, version, commit)
        committer.commit(commit, [])
        return commit

    def _starting_positions(self, told: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        starts = self._log.start_offsets(self.partitions)
        ends = self._log.end_offsets(self.partitions)
        positions = {}
        for partition, source in self._inputs:
            latest = (source.offset_reset or self._settings.offset_reset) == "latest"
            positions[partition] = ends[partition] if latest else starts[partition]
        return positions | {partition: position for partition, position in told.items() if position is not None}

    def _with_new_partitions(self, commit: Commit) -> Commit:
        """Return `commit` with starting positions for partitions that the task did not read before, of a topic that was added.

        Raises IncompatibleStateError for one that it did read, whose position is gone.
        """
        new = [partition for partition in self.partitions if partition not in commit.positions]
        lost = sorted(map(str, set(new) & partitions_read(commit.engine_state)))
        where = f"application {self._application.id!r}, task {self.id}"
        if lost:
            raise IncompatibleStateError(
                f"{where}: it has read {', '.join(lost)}, and its commit has no position there: the topic was deleted and made again, "
                f"or the log lost data. What it would read now is not what follows on its state. {ways_on(self._settings, partly=True)}"
            )
        starting = self._starting_positions(self._log.committed(self._application.id, self.partitions))
        for partition in new:
            _log.info("%s: reads %s from now on, from offset %d", where, partition, starting[partition])
        positions = {partition: commit.positions.get(partition, starting[partition]) for partition in self.partitions}
        return Commit(positions, commit.version, commit.engine_state)

    def _check_known(self, commit: Commit | None, known: tuple[str, Mapping[TopicPartition, int]] | None) -> None:
        if known is None:
            return
        version, positions = known
        where = f"application {self._application.id!r}, task {self.id}"
        if commit is None:
            raise IncompatibleStateError(
                f"{where}: Spark's checkpoint knows a commit (state version {version}), but the log has none: {NO_COMMIT}. "
                f"{ways_on(self._settings)}"
            )
        behind = [
            f"{partition} {commit.positions[partition]} < {position}"
            for partition, position in positions.items()
            if partition in commit.positions and commit.positions[partition] < position
        ]
        if version_counter(commit.version) < version_counter(version) or behind:
            raise IncompatibleStateError(
                f"{where}: the log's commit (version {commit.version}{'; ' + ', '.join(behind) if behind else ''}) is older than one that was made before "
                f"(version {version}): the log lost data or is another one. {ways_on(self._settings)}"
            )

    # ------------------------------------------------------------------ committing

    def _send(self, outputs: list[OutputBatch], phases: _Phases) -> int:
        """Hand outputs to the log ahead of the commit; return how many."""
        assert self._committer is not None
        since = perf_counter()
        if not self._has_sent:
            self._has_sent, self._sent_at = True, since
        self._committer.send(outputs)
        phases.add("write", since)
        return sum(map(len, outputs))

    def _make_commit(self, phases: _Phases) -> int:
        """Commit whatever changed since the last one; return how many records were produced."""
        task, state, committer, last = self.task, self._state, self._committer, self._commit
        assert task is not None and state is not None and committer is not None and last is not None
        since = perf_counter()
        state.flush()
        changes = state.changes()
        since = phases.add("state", since)
        outputs = task.take_outputs()
        produced = sum(map(len, outputs))
        positions = {
            partition: last.positions[partition] if (position := task.position(partition)) is None else position
            for partition in self.partitions
        }
        unchanged = not changes and not outputs and not task.changed_engine_state and positions == last.positions
        if unchanged and not self._has_sent and not committer.expires():
            task.committed()
            return 0
        if outputs and committer.streams_outputs:
            # Not with the commit: at least once, only what is sent ahead can be read before it.
            self._send(outputs, phases)
            outputs, since = [], perf_counter()
        version = last.version
        has_delta = bool(changes) or self._is_far_from_proven(positions)
        if has_delta:
            version = state.new_version(last.version)
            outputs += state.append_delta(changes, version, last)
            self._proven = last.positions
            since = phases.add("changelog", since)
        commit = Commit(positions, version, task.engine_state())
        committer.commit(commit, outputs)
        since = phases.add("write", since)
        if has_delta:
            state.apply(changes, version)
            phases.add("state", since)
        self._commit = commit
        self._commits += 1
        self._has_sent, self._sent_at = False, inf
        task.committed()
        return produced

    def _is_far_from_proven(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Return whether records of internal topics wait to be purged until a delta proves that they are not needed again."""
        if not self._internal or self._state is None or not self._state.keeps_commits:
            return False
        if self._proven is None:
            self._proven = self._log.start_offsets(self._internal)
        return sum(positions[each] - self._proven.get(each, 0) for each in self._internal) > _MOST_UNPROVEN

    # ------------------------------------------------------------------ closing

    def abandon(self) -> None:
        """Forget everything since the last commit and close; the next `run_batch` opens the task again."""
        task, state, committer = self.task, self._state, self._committer
        self._has_sent, self._sent_at = False, inf
        self.task = self._state = self._committer = self._commit = self._proven = None
        close_parts(self.id, task, state, committer)

    def close(self) -> None:
        """Close the task; what is committed stays. Idempotent."""
        self.abandon()

    def destroy(self) -> None:
        """Close the task and delete this host's copy of its state."""
        if self._state is not None:
            self._state.destroy()
        self.abandon()

    # ------------------------------------------------------------------ names and numbers

    def _source_of(self, partition: TopicPartition) -> SourceNode:
        internal = self._application.program.internal_topics
        for source in self._subtopology.sources:
            for topic in source.topics:
                if decorate(self._application.id, topic, internal) == partition.topic:
                    return source
        for source in self._subtopology.sources:
            if source.pattern is not None and source.pattern.fullmatch(partition.topic):
                return source
        raise TopologyError(
            f"application {self._application.id!r}, task {self.id}: no source of sub-topology {self.id.subtopology} reads {partition}"
        )

    def _topic_name(self, topic: str) -> str:
        return decorate(self._application.id, topic, self._application.program.internal_topics)

    def _partition_count(self, topic: str) -> int:
        try:
            return self._log.topic(topic).partitions
        except UnknownTopicError as error:
            raise TopologyError(
                f"topic {topic!r} does not exist in the log; create it: penstock topics create {topic}"
            ) from error

    def _report(self, phases: _Phases, records_in: int, produced: int) -> TaskReport:
        task, commit, state = self.task, self._commit, self._state
        assert task is not None and commit is not None and state is not None
        nodes: dict[str, dict[str, Any]] = {}
        dropped = 0
        for name, metrics in task.metrics().items():
            before_in, before_out, before_dropped = self._counted.get(name, (0, 0, {}))
            drops = {
                reason: count - before_dropped.get(reason, 0)
                for reason, count in metrics.dropped.items()
                if count > before_dropped.get(reason, 0)
            }
            nodes[name] = {
                "in": metrics.records_in - before_in,
                "out": metrics.records_out - before_out,
                "dropped": drops,
            }
            dropped += sum(drops.values())
            self._counted[name] = (metrics.records_in, metrics.records_out, dict(metrics.dropped))
        restored, state.restored_changes = state.restored_changes, 0
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
            restored,
            task.next_wall_clock_punctuation(),
            dict(phases),
            nodes,
            {each: purgeable[each] for each in self._internal if each in purgeable},
        )


def _nothing_up_to(partition: TopicPartition, next_offset: int) -> RecordBatch:
    """Return a batch that only moves the position."""
    return RecordBatch(partition.topic, partition.partition, [], [], [], [], None, next_offset)


def _find_subtopology(application: Application, task_id: TaskId) -> Subtopology:
    for subtopology in application.program.subtopologies:
        if subtopology.id == task_id.subtopology:
            return subtopology
    raise TopologyError(
        f"application {application.id!r} has no sub-topology {task_id.subtopology}; it has "
        + ", ".join(str(each.id) for each in application.program.subtopologies)
    )
