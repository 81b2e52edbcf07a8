"""StreamEngine: the engine of a task host for a query of `transform`. StreamTask: one of its tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import (
    Application,
    ChangelogError,
    Commit,
    ConfigError,
    IncompatibleStateError,
    OutputBatch,
    SourceNode,
    StaleStoreError,
    TaskId,
    TopicPartition,
    duration_ms,
)
from penstock.plugins.engine.host.client import HostClient
from penstock.plugins.engine.host.executor_identity import executor_identity
from penstock.plugins.engine.host.log_lines import log_to_stderr
from penstock.plugins.engine.host.reports import Observed
from penstock.plugins.engine.host.slot_engine import Cargo as HostCargo
from penstock.plugins.engine.host.slot_engine import HostEngine, HostInfo
from penstock.plugins.engine.task.commit import PendingCommit, TaskCommits
from penstock.plugins.engine.task.local_state.task_state import TaskState
from penstock.plugins.engine.task.locations import open_deltas
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.report import Phases, TaskCounts
from penstock.plugins.engine.task.shipping import Arrived
from penstock.plugins.engine.task.task_runner import TaskRunner
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.program.layouts import Layouts, layout_of_fingerprint
from penstock.task.failures import RetryRequested
from penstock.task.schedules import NEVER
from penstock.task.task import Task

from ..worker import COUNTS, HostCaller, WorkerFunction, counts_row, release_memory, use_system_allocator
from .checkpoint import (
    SourceOrder,
    SparkCommitter,
    StreamCommit,
    check_continues,
    next_anchors,
    oldest_needed,
    stores_in,
)
from .packing import ARRAYS_SCHEMA, CHUNKS_SCHEMA, Rows, arrays, message_first, packed, packed_arrays
from .typed_serdes import TypedTopics

if TYPE_CHECKING:
    import pandas
    from pyspark.sql.streaming.state import GroupState


_CHUNK = 10_000
"""Records that are decoded at once."""


@dataclass(frozen=True)
class Outcome:
    """A batch of a task: its commit, if Spark commits it, its outputs, and when the next punctuator is due (ms).

    `observed`: its counts. `chunks`: the outputs, packed, in place of `outputs`.
    """

    commit: StreamCommit
    outputs: list[OutputBatch]
    next_tick: int | None
    observed: Observed
    chunks: list[bytes] = field(default_factory=list)


class StreamTask(TaskRunner):
    """One task of a query.

    Spark's checkpoint is the commit point. A batch appends its delta to the changelog. The delta's version is part of
    the group's state, which Spark drops when the batch fails. The changes wait in the commit buffers until the next
    batch brings that version: only then is the batch committed, and they are written to the local store. So the store,
    or a copy made from the changelog, can continue from whatever state Spark brings. `stream` is a query's own name;
    `kept`: number of past batches that Spark may still roll back to. `typed`: topics
    whose keys or values are columns of Spark's types.
    """

    def __init__(
        self,
        application: Application,
        task_id: TaskId,
        partitions: Sequence[TopicPartition],
        fingerprint: Mapping[str, Any],
        resources: ProcessResources,
        *,
        stream: str,
        kept: int,
        has_timeouts: bool,
        source_order: SourceOrder,
        typed: TypedTopics | None = None,
    ) -> None:
        super().__init__(application, task_id, resources)
        self._typed = typed or TypedTopics()
        self._subtopology = self._typed.applied(self._subtopology, application.settings)
        sources = {
            topic: self._typed.source(source, topic) for source in self._subtopology.sources for topic in source.topics
        }
        self._inputs: list[tuple[TopicPartition, SourceNode]] = [
            (partition, sources[partition.topic]) for partition in partitions
        ]
        self._fingerprint = fingerprint
        self._stream = stream
        self._directory_name = f"{task_id}.{stream}"
        self._kept = kept
        self._has_timeouts = has_timeouts
        self._source_order = source_order
        self._checkpoint = SparkCommitter(None)
        self._commit: StreamCommit | None = None
        self._counts = TaskCounts()

    def run(self, chunks: Mapping[str, Sequence[bytes]], clock_ms: int, known: StreamCommit | None) -> Outcome:
        """Process a batch: packed rows by topic, after `known`, the commit in Spark's checkpoint (None: a new task).

        The same batch after the same commit gives the same outputs. Raises the handlers' errors, IncompatibleStateError
        when the program does not fit the saved state, and the errors of changelog and stores. The next call then starts
        from its own `known`.
        """
        while True:
            try:
                outcome = self._run(chunks, clock_ms, known)
                self._retries.clear()
                return outcome
            except RetryRequested as retry:
                self.abandon()
                self._retries.wait(retry)
            except BaseException:
                self.abandon()
                raise

    def _run(self, chunks: Mapping[str, Sequence[bytes]], clock_ms: int, known: StreamCommit | None) -> Outcome:
        if known is None or not self._goes_on_from(known):
            self.abandon()
            self._open(known, clock_ms)
        task, state, commits, last = self.task, self._state, self._commits, self._commit
        assert task is not None and state is not None and commits is not None and last is not None
        rows = [
            Rows(each, chunks.get(each.topic, ()), last.read.get(each.topic, 0), self._typed.value_column(each.topic))
            for each, _ in self._inputs
        ]
        by_partition = {row.partition: row for row in rows}
        task.plan({row.partition: row.next_offset + row.left for row in rows}, clock_ms)
        self._process(task, by_partition)
        task.punctuate_wall_clock()
        self._process(task, by_partition)  # punctuators may have made calls
        # A snapshot here shows the state that Spark has committed: this batch's changes are not written yet.
        self._maintain_changelog(state, last)
        pending = commits.take(task)
        next_tick = self._next_tick(task)
        outputs: list[OutputBatch] = []
        if pending is not None:
            pending.write()
            self._commit, outputs = self._stream_commit(last, pending), pending.outputs
        state.backends.release()
        self._resources.clean_up(self._application)
        return Outcome(self._commit or last, outputs, next_tick, self._observed(task, state, commits))

    def _observed(self, task: Task, state: TaskState, commits: TaskCommits) -> Observed:
        """Return the counts of this batch."""
        counted = self._counts.since_last(task)
        produced, commits.produced = commits.produced, 0
        made = int(commits.pending is not None)
        counts = replace(counted, records_out=produced, commits=made, restored=state.take_restored())
        return Observed(counts, state_rows=commits.state_rows)

    def _process(self, task: Task, by_partition: Mapping[TopicPartition, Rows]) -> None:
        """Process all rows. The batch has all of them, so the task does not wait for another topic's."""
        in_flight, world = task.in_flight, self._resources.world
        began = world.seconds()
        while True:
            for want in task.wants():
                task.feed(by_partition[want.partition].take(_CHUNK))
            if task.process(_CHUNK) < _CHUNK and not task.wants():
                # Spark may have no other batch, so this one ends with all results.
                calls, again = in_flight.under_way(), in_flight.next_retry()
                if not calls and again == NEVER:
                    waited_ms = round((world.seconds() - began) * 1000)
                    if not task.hand_to_calls(waited_ms) and not in_flight.calls_under_way:
                        return
                    continue
                if calls:
                    world.wait(calls, _LOOK_SECONDS)
                else:
                    world.sleep(max(0.0, (again - task.wall_clock) / 1000 - (world.seconds() - began)))
                in_flight.settle(round((world.seconds() - began) * 1000))

    def _stream_commit(self, last: StreamCommit, pending: PendingCommit) -> StreamCommit:
        """Return a commit as Spark's checkpoint keeps it."""
        made = pending.commit
        return StreamCommit(
            self._resources.world.token(8),
            made.version,
            made.engine_state.decode(),
            {partition.topic: position for partition, position in made.positions.items()},
            last.anchors if made.version == last.version else next_anchors(last.anchors, made.version, self._kept),
            self._fingerprint,
            self._source_order.topics,
            self._application.id,
        )

    def _maintain_changelog(self, state: TaskState, last: StreamCommit) -> None:
        """Write a snapshot and delete old history, except what leads to a state that Spark may roll back to."""
        # Spark has no fence. A later attempt on this machine shows in the store. One on another machine does not; its
        # files are safe because their counters are not below that of `oldest`.
        is_current = partial(state.is_at, last.version)
        if state.snapshot_when_due(is_current):
            oldest = oldest_needed(last.anchors, last.version, self._kept)
            if oldest is not None:
                grace_ms, now_ms = duration_ms(self._settings.changelog_grace), self._resources.now_ms()
                state.upkeep.clean(oldest, grace_ms, now_ms, is_current)

    def _next_tick(self, task: Task) -> int | None:
        tick = task.next_wall_clock_punctuation()
        if tick is not None and not self._has_timeouts:
            raise ConfigError(
                f"application {self._application.id!r}, task {self.id}: node "
                f"{', '.join(map(repr, task.wall_clock_nodes()))} schedules by the wall clock, "
                "which in a Spark pipeline needs Spark's timeouts: transform(..., wall_clock=True). With it the "
                'query runs batches without data too, and never ends under "availableNow"; or schedule by stream time'
            )
        return tick

    # ------------------------------------------------------------------ opening

    def _goes_on_from(self, known: StreamCommit) -> bool:
        """Commit the last batch locally if it was this object's attempt; return whether the task can continue there."""
        state, commits, mine = self._state, self._commits, self._commit
        if state is None or commits is None or mine is None or mine.attempt != known.attempt:
            return False
        if state.version is None or not state.is_at(state.version):
            return False
        if commits.pending is not None:
            try:
                self._checkpoint.note(commits.finish())
            except StaleStoreError:
                return False
        return True

    def _open(self, known: StreamCommit | None, clock_ms: int) -> None:
        if known is not None:
            check_continues(self._application, self.id, self._stream, known, self._fingerprint)
            problem = self._source_order.problem(known.source_order)
            if problem is not None:
                raise IncompatibleStateError(
                    f"application {self._application.id!r}, task {self.id}: {problem}. Spark has already planned a "
                    "batch with these offsets: restore the checkpoint from a copy, or delete the files in its folders "
                    "'offsets' and 'sources' that are newer than the newest file in 'commits'"
                )
        builders = self._subtopology.stores
        layouts = Layouts.of_program(builders, self._settings.store_backend)
        if known is not None:
            saved = stores_in(known.fingerprint, self.id.subtopology)
            layouts = Layouts(layout_of_fingerprint(saved)).followed_by(layouts.now)
        changelog = open_deltas(self._settings, self._application.id, self._directory_name) if builders else None
        directory = self._resources.task_directory(self._application, self._directory_name)
        state = self._state = TaskState(
            self._application, self.id, directory, changelog, layouts, repeats=self._resources.repeats,
            world=self._resources.world,
        )  # fmt: skip
        self._commit = known or StreamCommit("", state.new_version(None))
        version = self._commit.version
        adopted = state.adopt(version, self._commit.engine_state.encode())
        if known is None:
            state.append_delta({}, version)
        try:
            state.open(version)
        except ChangelogError as error:
            raise ChangelogError(
                f"application {self._application.id!r}, task {self.id}: the checkpoint of Spark's query "
                f"{self._stream}, which was made with the application id {self._commit.application or 'unknown'!r}, "
                f"needs the state version {version}, and it is not there: bring its files back with this id, or start "
                f"the query with a new checkpoint, and without state. The changelog says: {error}"
            ) from error
        last = Commit({each: self._commit.read.get(each.topic, 0) for each, _ in self._inputs}, version, adopted)
        self._checkpoint = SparkCommitter(None if known is None else last)
        self._commits = TaskCommits(state, self._checkpoint, last, Phases(self._resources.world.seconds))
        self._make_task(self._inputs, clock_ms, takes_whole_batches=True)
        self._counts = TaskCounts()

    # ------------------------------------------------------------------ closing

    def abandon(self, reason: str = "closed") -> None:
        """Drop uncommitted work and close; the next `run` opens the task again."""
        self._commit = None
        super().abandon(reason)


_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_LOOK_SECONDS = 0.01
"""Seconds between two looks for results of calls that are under way."""
_IDLE_SECONDS = 300.0
"""Seconds that an unused task stays open."""

Chunks = dict[str, list[bytes]]


@dataclass(frozen=True)
class StreamCargo(HostCargo):
    """The cargo of a query's hosts: the application, and its tasks by group key, with the partitions of each.

    `kept`: number of past batches that Spark may still roll back to. `has_timeouts`: Spark also calls tasks that have
    no rows. `log_level`: the driver's. `typed`: topics whose keys or values are columns of Spark's types.
    """

    application: Application
    tasks: Mapping[int, tuple[TaskId, tuple[TopicPartition, ...]]]
    fingerprint: Mapping[str, Any]
    kept: int
    has_timeouts: bool
    source_order: SourceOrder
    log_level: int
    typed: TypedTopics = field(default_factory=TypedTopics)

    @property
    def is_typed(self) -> bool:
        """Whether results have typed columns, and not bytes alone."""
        return bool(self.typed.columns)

    @property
    def schema(self) -> str:
        """The schema of the operator's rows."""
        return CHUNKS_SCHEMA if self.is_typed else ARRAYS_SCHEMA

    def engine(self, host: HostInfo) -> StreamEngine:
        return StreamEngine(self, host)

    def task(self, group: int, resources: ProcessResources, stream: str) -> StreamTask:
        """Return the task of a group key, not open; `stream` as for StreamTask."""
        task_id, partitions = self.tasks[group]
        return StreamTask(
            self.application,
            task_id,
            partitions,
            self.fingerprint,
            resources,
            stream=stream,
            kept=self.kept,
            has_timeouts=self.has_timeouts,
            source_order=self.source_order,
            typed=self.typed,
        )


class StreamFunction(WorkerFunction):
    """The function for applyInPandasWithState: hands a task's batch to a task host of this executor.

    `slots`: number of hosts of an executor; 0: as many as its machine has cores. `is_typed`: see `_frame`.
    """

    def __init__(self, hosts: HostCaller, slots: int, is_typed: bool) -> None:
        self.hosts = hosts
        self.slots = slots
        self.is_typed = is_typed
        # Spark shows it in plans, and so in its error for a query with two operators.
        self.__name__ = f"transform of {hosts.title}, once in a query: for several outputs use foreachBatch"

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the host start while Spark's worker still imports pandas: that takes as long."""
        super().__setstate__(state)
        from pyspark import TaskContext

        if TaskContext.get() is not None:
            with suppress(ConfigError):  # the call raises it
                self._client().begin("first")

    def _client(self) -> HostClient:
        stream, partition = _stream()
        return self.hosts.client(partition % (self.slots or os.cpu_count() or 1), executor_identity(), stream)

    def __call__(
        self, key: tuple[int], frames: Iterator[pandas.DataFrame], state: GroupState
    ) -> Iterator[pandas.DataFrame]:
        """Run one task's batch: chunks in, records out; the state keeps the task's commit."""
        chunks: Chunks = {}
        for frame in frames:
            _collect(frame, chunks)
        known = StreamCommit.from_state(state.get) if state.exists else None
        clock_ms = state.getCurrentProcessingTimeMs()
        with message_first():
            self.hosts.check(executor_identity())
            outcome: Outcome = self._client().call(StreamBatch(key[0], chunks, clock_ms, known), "first")
        if outcome.commit != known:
            state.update(outcome.commit.to_state())
        if outcome.next_tick is not None:
            state.setTimeoutDuration(max(1, outcome.next_tick - clock_ms))
        yield _frame(outcome, self.is_typed)
        del outcome, chunks
        release_memory()


def once_function(cargo: bytes, clock_ms: int) -> Callable[[tuple[int], pandas.DataFrame], pandas.DataFrame]:
    """Return the function for applyInPandas: all rows of a task at once, with state that is not kept.

    The wall clock is `clock_ms`.
    """

    # Spark looks at the arguments, and takes those of an object's `__call__` for one too many.
    def run_once(key, frame):  # type: ignore[no-untyped-def]
        with message_first():
            return _run_once(cargo, clock_ms, key[0], frame)

    return run_once


def _run_once(packed: bytes, clock_ms: int, group: int, frame: pandas.DataFrame) -> pandas.DataFrame:
    chunks: Chunks = {}
    _collect(frame, chunks)
    arrived = Arrived(packed)
    cargo: StreamCargo = arrived.cargo
    # A worker of Spark runs other programs, too.
    with arrived.in_place(), TemporaryDirectory("once") as directory, log_to_stderr(cargo.log_level) as logs:
        application = cargo.application.with_settings(
            data_dir=str(directory), state_dir="state", changelog="directory:changelog"
        )
        cargo = replace(cargo, application=application, kept=1, has_timeouts=True)
        task = cargo.task(group, ProcessResources(), "once")
        logs.task = str(task.id)
        try:
            return _frame(_as_chunks(task.run(chunks, clock_ms, None), cargo), cargo.is_typed)
        finally:
            task.close()


def _as_chunks(outcome: Outcome, cargo: StreamCargo) -> Outcome:
    """Return an outcome with chunks in place of outputs."""
    outputs = outcome.outputs
    chunks = packed(outputs, cargo.typed.columns) if cargo.is_typed else packed_arrays(outputs)
    return replace(outcome, outputs=[], chunks=chunks)


def _frame(outcome: Outcome, is_typed: bool) -> pandas.DataFrame:
    """Return rows of `CHUNKS_SCHEMA` for typed results, else of `ARRAYS_SCHEMA`; the last row has the counts."""
    import pandas

    counts = json.dumps(counts_row(outcome.observed))
    if is_typed:
        rows: list[tuple[Any, ...]] = [(chunk, None) for chunk in outcome.chunks]
        return pandas.DataFrame([*rows, (None, counts)], columns=["chunk", COUNTS], dtype=object)
    rows = [(*arrays(chunk), None) for chunk in outcome.chunks]
    names = ["topic", "key", "value", "timestamp", "headers", COUNTS]
    return pandas.DataFrame([*rows, (None, None, None, None, None, counts)], columns=names, dtype=object)


def _collect(frame: pandas.DataFrame, chunks: Chunks) -> None:
    for topic, chunk in zip(frame["topic"], frame["chunk"], strict=True):
        # A row without a chunk is a call by timeout, so that a task without rows runs, too.
        if chunk is not None:
            chunks.setdefault(topic, []).append(chunk)


def _stream() -> tuple[str, int]:
    """Return the id of the query, which its checkpoint keeps, and the number of Spark's partition.

    Each query of a program has its own state.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if context is None or found is None:
        raise ConfigError("this DataFrame runs outside of a streaming query; start one with writeStream")
    if context.getLocalProperty(_CHECK) == "false":
        raise ConfigError(
            f"{_CHECK}=false: Spark would run a query with two operators of `transform`, or two branches of one, which "
            "would work on one state; leave it at true. For several outputs of one `transform` write each batch in "
            "foreachBatch"
        )
    return found, context.partitionId()


@dataclass(frozen=True)
class StreamBatch:
    """A proxy's request: run a task's batch. The arguments are those of `StreamTask.run`."""

    group: int
    chunks: Chunks
    clock_ms: int
    known: StreamCommit | None


class StreamEngine(HostEngine):
    """The tasks of a query's operator that Spark has sent to this host, by their group keys."""

    def __init__(self, cargo: StreamCargo, host: HostInfo) -> None:
        use_system_allocator()
        self._cargo = cargo
        self._stream = host.scope
        self._resources = ProcessResources(host.world)
        self._stack = ExitStack()
        self._logs = self._stack.enter_context(log_to_stderr(cargo.log_level))
        self._tasks: dict[int, StreamTask] = {}
        self._last_used: dict[int, float] = {}

    def handle(self, request: StreamBatch) -> Outcome:
        """Run a batch of one task."""
        self._logs.task = str(self._cargo.tasks[request.group][0])
        task = self._tasks.get(request.group)
        if task is None:
            task = self._cargo.task(request.group, self._resources, self._stream)
            self._tasks[request.group] = task
        try:
            outcome = _as_chunks(task.run(request.chunks, request.clock_ms, request.known), self._cargo)
        finally:
            self._logs.task = ""
        self._last_used[request.group] = self._resources.world.seconds()
        self._close_idle()
        release_memory()
        return outcome

    def _close_idle(self) -> None:
        """Close tasks that have not run here for a while: they have moved, or have no records."""
        limit = self._resources.world.seconds() - _IDLE_SECONDS
        for group in [group for group, used in self._last_used.items() if used < limit]:
            del self._last_used[group]
            self._tasks.pop(group).close()

    def close(self) -> None:
        for task in self._tasks.values():
            task.close()
        self._resources.close()
        self._stack.close()
