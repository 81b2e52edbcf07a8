"""For `transform`: the proxy that hands a task's batch to a task host, and what the host runs.

Spark's checkpoint is the commit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock import Application, ConfigError, TaskId, TopicPartition
from penstock.plugins.engine.host.client import Client
from penstock.plugins.engine.host.executor_identity import executor_identity
from penstock.plugins.engine.host.log_lines import log_to_stderr
from penstock.plugins.engine.host.slot_engine import Cargo as HostCargo
from penstock.plugins.engine.host.slot_engine import Engine, HostInfo
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.shipping import Arrived
from penstock.plugins.engine.task.temporary import TemporaryDirectory

from ..batches.host_caller import HostCaller
from ..observed import COUNTS, counts_row
from ..worker_errors import message_first
from .stream_commit import SourceOrder, StreamCommit
from .stream_task import Outcome, StreamTask
from .typed.outputs import packed
from .typed.serdes import TypedTopics

if TYPE_CHECKING:
    import pandas
    from pyspark.sql.streaming.state import GroupState

_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_IDLE_SECONDS = 300.0
"""Seconds that an unused task stays open."""

Chunks = dict[str, list[bytes]]


@dataclass(frozen=True)
class Cargo(HostCargo):
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

    def engine(self, host: HostInfo) -> StreamEngine:
        return StreamEngine(self, host)


class StreamFunction:
    """The function for applyInPandasWithState: hands a task's batch to a task host of this executor.

    `slots`: how many hosts an executor has; 0: as many as its machine has cores.
    """

    def __init__(self, hosts: HostCaller, slots: int) -> None:
        self.hosts = hosts
        self.slots = slots
        # Spark shows it in plans, and so in its error for a query with two operators.
        self.__name__ = f"transform of {hosts.title}, once in a query: for several outputs use foreachBatch"

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the host start while Spark's worker still imports pandas: that takes as long."""
        self.__dict__.update(state)
        from pyspark import TaskContext

        if TaskContext.get() is not None:
            with suppress(ConfigError):  # the call raises it
                self._client().begin("first")

    def _client(self) -> Client:
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
        yield _frame(outcome)


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
    cargo: Cargo = arrived.cargo
    task_id, partitions = cargo.tasks[group]
    # A worker of Spark runs other programs, too.
    with arrived.in_place(), TemporaryDirectory("once") as directory, log_to_stderr(cargo.log_level) as logs:
        logs.task = str(task_id)
        application = cargo.application.with_settings(
            data_dir=str(directory), state_dir="state", changelog="directory:changelog"
        )
        task = StreamTask(
            application,
            task_id,
            partitions,
            cargo.fingerprint,
            ProcessResources(),
            stream="once",
            kept=1,
            has_timeouts=True,
            source_order=cargo.source_order,
            typed=cargo.typed,
        )
        try:
            return _frame(_as_chunks(task.run(chunks, clock_ms, None), cargo))
        finally:
            task.close()


def _as_chunks(outcome: Outcome, cargo: Cargo) -> Outcome:
    """Return an outcome with chunks in place of outputs."""
    return replace(outcome, outputs=[], chunks=packed(outcome.outputs, cargo.typed.columns))


def _frame(outcome: Outcome) -> pandas.DataFrame:
    """Return rows of `CHUNKS_SCHEMA`; the last one has the counts."""
    import pandas

    chunks = pandas.Series([*outcome.chunks, None], dtype=object)
    counts = [None] * len(outcome.chunks) + [json.dumps(counts_row(outcome.observed))]
    return pandas.DataFrame({"chunk": chunks, COUNTS: pandas.Series(counts, dtype=object)})


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


class StreamEngine(Engine):
    """The tasks of a query's operator that Spark has sent to this host, by their group keys."""

    def __init__(self, cargo: Cargo, host: HostInfo) -> None:
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
            task = self._tasks[request.group] = self._make(request.group)
        try:
            outcome = _as_chunks(task.run(request.chunks, request.clock_ms, request.known), self._cargo)
        finally:
            self._logs.task = ""
        self._last_used[request.group] = self._resources.world.seconds()
        self._close_idle()
        return outcome

    def _make(self, group: int) -> StreamTask:
        cargo = self._cargo
        task_id, partitions = cargo.tasks[group]
        return StreamTask(
            cargo.application,
            task_id,
            partitions,
            cargo.fingerprint,
            self._resources,
            stream=self._stream,
            kept=cargo.kept,
            has_timeouts=cargo.has_timeouts,
            source_order=cargo.source_order,
            typed=cargo.typed,
        )

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
