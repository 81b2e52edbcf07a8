"""In Spark's workers, for `transform`: a task's batch in applyInPandasWithState; Spark's checkpoint is the commit."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.plugins.runtime.process_resources import ProcessResources, tune_garbage_collector
from penstock.plugins.runtime.temporary import TemporaryDirectory
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition
from penstock.settings.application import Application

from ..worker_process import OpenProgram, WorkerProcess
from .commit import StreamCommit
from .task import Outcome, StreamTask

if TYPE_CHECKING:
    import pandas
    from pyspark.sql.streaming.state import GroupState

OUTPUT_SCHEMA = "topic string, key binary, value binary, timestamp long, headers array<struct<key:string,value:binary>>"
_FRAME_ROWS = 10_000

Chunks = dict[str, list[bytes]]


@dataclass(frozen=True)
class Cargo:
    """What is sent to the workers: the application, and its tasks by group key, with the partitions of each.

    `kept`: number of past batches that Spark may still roll back to. `has_timeouts`: Spark also calls tasks that have
    no rows.
    """

    application: Application
    tasks: Mapping[int, tuple[TaskId, tuple[TopicPartition, ...]]]
    fingerprint: Mapping[str, Any]
    kept: int
    has_timeouts: bool


class StreamFunction:
    """The function for applyInPandasWithState. `cargo` is a pickled `Cargo`, unpacked once in each process."""

    def __init__(self, cargo: bytes) -> None:
        self.cargo = cargo
        self.digest = hashlib.sha256(cargo).hexdigest()

    def __call__(
        self, key: tuple[int], frames: Iterator[pandas.DataFrame], state: GroupState
    ) -> Iterator[pandas.DataFrame]:
        """Run one task's batch: chunks in, records out; the state keeps the task's commit."""
        chunks: Chunks = {}
        for frame in frames:
            _collect(frame, chunks)
        known = StreamCommit.from_state(state.get) if state.exists else None
        clock_ms, stream, process = state.getCurrentProcessingTimeMs(), _stream(), _this_process()
        outcome: Outcome = process.submit(lambda: process.run(self, key[0], stream, chunks, clock_ms, known)).result()
        if outcome.commit != known:
            state.update(outcome.commit.to_state())
        if outcome.next_tick is not None:
            state.setTimeoutDuration(max(1, outcome.next_tick - clock_ms))
        yield from to_frames(outcome.outputs)


def once_function(cargo: bytes, clock_ms: int) -> Callable[[tuple[int], pandas.DataFrame], pandas.DataFrame]:
    """Return the function for applyInPandas: all rows of a task at once, with state that is not kept.

    The wall clock is `clock_ms`.
    """

    # Spark looks at the arguments, and takes those of an object's `__call__` for one too many.
    def run_once(key, frame):  # type: ignore[no-untyped-def]
        return _run_once(cargo, clock_ms, key[0], frame)

    return run_once


def _run_once(packed: bytes, clock_ms: int, group: int, frame: pandas.DataFrame) -> pandas.DataFrame:
    import pandas

    chunks: Chunks = {}
    _collect(frame, chunks)
    cargo: Cargo = pickle.loads(packed)
    task_id, partitions = cargo.tasks[group]
    with TemporaryDirectory("once") as directory:
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
        )
        try:
            outputs = task.run(chunks, clock_ms, None).outputs
        finally:
            task.close()
    empty = pandas.DataFrame({name: [] for name in ("topic", "key", "value", "timestamp", "headers")}, dtype=object)
    return pandas.concat(list(to_frames(outputs)) or [empty])


def to_frames(outputs: Sequence[OutputBatch]) -> Iterator[pandas.DataFrame]:
    """Yield rows of `OUTPUT_SCHEMA`."""
    import pandas

    for batch in outputs:
        for start in range(0, len(batch), _FRAME_ROWS):
            part = slice(start, start + _FRAME_ROWS)
            keys = batch.keys[part]
            headers: list[Any] = [None] * len(keys)
            if batch.headers is not None:
                headers = [
                    [{"key": name, "value": value} for name, value in each] or None for each in batch.headers[part]
                ]
            yield pandas.DataFrame(
                {
                    "topic": batch.topic,
                    "key": pandas.Series(keys, dtype=object),
                    "value": pandas.Series(batch.values[part], dtype=object),
                    "timestamp": batch.timestamps[part],
                    "headers": pandas.Series(headers, dtype=object),
                }
            )


def _collect(frame: pandas.DataFrame, chunks: Chunks) -> None:
    for topic, chunk in zip(frame["topic"], frame["chunk"], strict=True):
        # A row without a chunk is a call by timeout, so that a task without rows runs, too.
        if chunk is not None:
            chunks.setdefault(topic, []).append(chunk)


def _stream() -> str:
    """Return the id of the query, which its checkpoint keeps; each query of a program has its own state."""
    from pyspark import TaskContext

    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if found is None:
        raise ConfigError("this DataFrame runs outside of a streaming query; start one with writeStream")
    return found


class _OpenOperator(OpenProgram[int, StreamTask]):
    """A query's operator in this process, with tasks by their group keys."""

    def __init__(self, function: StreamFunction, stream: str) -> None:
        super().__init__()
        self.digest = function.digest
        self._cargo: Cargo = pickle.loads(function.cargo)
        self._stream = stream

    def open_task(self, name: int) -> StreamTask:
        cargo = self._cargo
        task_id, partitions = cargo.tasks[name]
        return StreamTask(
            cargo.application,
            task_id,
            partitions,
            cargo.fingerprint,
            self.resources,
            stream=self._stream,
            kept=cargo.kept,
            has_timeouts=cargo.has_timeouts,
        )


class _Process(WorkerProcess[str, _OpenOperator]):
    """What this worker process keeps open of queries."""

    def run(
        self,
        function: StreamFunction,
        group: int,
        stream: str,
        chunks: Chunks,
        clock_ms: int,
        known: StreamCommit | None,
    ) -> Outcome:
        """Run a batch of one task."""
        opened = self.programs.get(stream)
        if opened is None or opened.digest != function.digest:
            if opened is not None:
                # The same query, started again with other code or settings.
                del self.programs[stream]
                opened.close()
            elif not self.programs:
                tune_garbage_collector()
            opened = self.programs[stream] = _OpenOperator(function, stream)
        outcome = opened.task(group).run(chunks, clock_ms, known)
        opened.close_idle()
        return outcome


_process: _Process | None = None


def _this_process() -> _Process:
    global _process
    if _process is None:
        _process = _Process()
    return _process
