"""In Spark's workers, for `penstock run`: a task's batch in applyInPandasWithState, which commits to the log."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.plugins.hosts.plan import SlotPlan
from penstock.plugins.runtime.locations import open_log
from penstock.plugins.runtime.opening import KnownCommit
from penstock.plugins.runtime.process_resources import tune_garbage_collector
from penstock.plugins.runtime.worker import TaskWorker
from penstock.program.nodes import TaskId
from penstock.record import TopicPartition
from penstock.settings.application import Application

from .reports import TaskFailure, WorkerMessage, positions_from_list, positions_to_list
from .worker_logs import WorkerLogHandler
from .worker_process import OpenProgram, WorkerProcess

if TYPE_CHECKING:
    import pandas
    from pyspark.sql.streaming.state import GroupState

OUTPUT_SCHEMA = "message string"
STATE_SCHEMA = "commits string"


@dataclass(frozen=True)
class Cargo:
    """What is sent to the workers: the application, its tasks' partitions, and where log lines go."""

    application: Application
    tasks: Mapping[str, tuple[TopicPartition, ...]]
    log_directory: str
    log_level: int


class BatchFunction:
    """The function for applyInPandasWithState.

    `cargo` is a pickled `Cargo`, unpacked once in each process. `slots` has the task ids of each slot.
    """

    def __init__(self, cargo: bytes, slots: Mapping[int, Sequence[str]]) -> None:
        self.cargo = cargo
        self.slots = slots
        self.digest = hashlib.sha256(cargo).hexdigest()

    def __call__(
        self, key: tuple[int], frames: Iterator[pandas.DataFrame], state: GroupState
    ) -> Iterator[pandas.DataFrame]:
        """Run a slot's batch: a row of `source.SCHEMA` in, a message a task out; the state keeps the last commits."""
        import pandas

        [plan] = [SlotPlan.from_json(str(row.plan)) for frame in frames for row in frame.itertuples(index=False)]
        commits: dict[str, Any] = json.loads(state.get[0]) if state.exists else {}
        messages = []
        for task in self.slots.get(plan.slot, ()):
            known = None
            if task in commits:
                version, positions = commits[task]
                known = KnownCommit(version, positions_from_list(positions))
            ends = {**plan.ends.get(task, {}), **plan.global_ends}
            message = run_batch(self, task, ends, plan.clock_ms, known, plan.topic_ids)
            messages.append(message.to_json())
            if message.report is not None:
                commits[task] = message.report.version, positions_to_list(message.report.positions)
        state.update((json.dumps(commits),))
        yield pandas.DataFrame({"message": messages})


def run_batch(
    function: BatchFunction,
    task: str,
    ends: Mapping[TopicPartition, int],
    clock_ms: int,
    known: KnownCommit | None,
    topic_ids: Mapping[str, str],
) -> WorkerMessage:
    """Run one task's batch in this process's thread for tasks.

    An error is returned in the message. Otherwise Spark would repeat the batch, which does not help, and would wrap the
    error in its own.
    """
    process = _this_process()
    message: WorkerMessage = process.submit(
        lambda: process.run(function, task, ends, clock_ms, known, topic_ids)
    ).result()
    return message


class _OpenApplication(OpenProgram[str, TaskWorker]):
    """An application that this process has unpacked, and its log."""

    def __init__(self, function: BatchFunction) -> None:
        super().__init__()
        self.digest = function.digest
        self.cargo: Cargo = pickle.loads(function.cargo)
        self.application = self.cargo.application
        self.log = open_log(self.application.settings)

    def open_task(self, name: str) -> TaskWorker:
        return TaskWorker(
            self.application, TaskId.parse(name), self.cargo.tasks[name], self.log, resources=self.resources
        )

    def close(self) -> None:
        super().close()
        self.log.close()


class _Process(WorkerProcess[tuple[str, str, str], _OpenApplication]):
    """What this worker process keeps open of applications."""

    def __init__(self) -> None:
        super().__init__()
        self._digests: dict[str, tuple[str, str, str]] = {}
        self.logs = WorkerLogHandler()
        logging.getLogger().addHandler(self.logs)

    def run(
        self,
        function: BatchFunction,
        task: str,
        ends: Mapping[TopicPartition, int],
        clock_ms: int,
        known: KnownCommit | None,
        topic_ids: Mapping[str, str],
    ) -> WorkerMessage:
        self.logs.task = task
        application_id = "?"
        try:
            opened = self._open(function)
            application_id = opened.application.id
            report = opened.task(task).run_batch(ends, clock_ms, known, topic_ids)
            opened.close_idle()
            return WorkerMessage(report=report, lines=self.logs.take(), process=os.getpid())
        except Exception as error:
            failure = TaskFailure.of(application_id, task, error)
            return WorkerMessage(failure=failure, lines=self.logs.take(), process=os.getpid())
        finally:
            self.logs.task = ""

    def _open(self, function: BatchFunction) -> _OpenApplication:
        key = self._digests.get(function.digest)
        if key is None:
            opened = _OpenApplication(function)
            settings = opened.application.settings
            key = (opened.application.id, settings.log, settings.data_dir)
            predecessor = self.programs.get(key)
            if predecessor is not None:
                # The same application, started again with other code or settings.
                predecessor.close()
                del self._digests[predecessor.digest]
            self.programs[key] = opened
            self._digests[function.digest] = key
            directory = Path(opened.cargo.log_directory)
            self.logs.directory = directory if directory.is_dir() else None
            logging.getLogger().setLevel(opened.cargo.log_level)
            if predecessor is None:
                tune_garbage_collector()
        return self.programs[key]


_process: _Process | None = None


def _this_process() -> _Process:
    global _process
    if _process is None:
        _process = _Process()
    return _process
