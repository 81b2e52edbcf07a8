"""TaskRunner: one task with its state, its commits and its retries, open or closed, whatever its commit point is.

`LoggedTask` runs it over a log, and `StreamTask` in a Spark pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypedDict, Unpack

from penstock import (
    Application,
    FencedError,
    RecordRefusedError,
    SinkUnavailableError,
    SourceNode,
    StaleStoreError,
    TaskCommitter,
    TaskId,
    TopicPartition,
)
from penstock.program.messages import describe_cause, describe_place
from penstock.task.failures import FailureKey, RetryRequested
from penstock.task.input_queue import TaskInput
from penstock.task.sinks import OpenedSink
from penstock.task.task import Task

from .commit import TaskCommits
from .local_state.task_state import TaskState
from .process_resources import ProcessResources

_log = logging.getLogger("penstock.worker")


class TaskOptions(TypedDict, total=False):
    """The options of `Task` that depend on its commit point."""

    topic_name: Callable[[str], str]
    partition_count: Callable[[str], int]
    refusals: Mapping[str, Sequence[RecordRefusedError]]
    stopwatch: Callable[[], float]
    takes_whole_batches: bool
    sinks: Mapping[str, OpenedSink]


class TaskRunner:
    """One task. Called by one thread; a new object has nothing open.

    Any process may make one for any task at any time. After an error only the last commit counts: abandon the task, and
    open it again from there.
    """

    task_class: type[Task] = Task
    state_class: type[TaskState] = TaskState

    def __init__(self, application: Application, task_id: TaskId, resources: ProcessResources) -> None:
        self.id = task_id
        self._application = application
        self._settings = application.settings
        self._resources = resources
        self._subtopology = application.program.subtopology(task_id.subtopology)
        self._retries = Retries(application.id, resources)
        self._committer: TaskCommitter | None = None
        self._state: TaskState | None = None
        self._commits: TaskCommits | None = None
        self.task: Task | None = None

    def _make_task(
        self, inputs: Iterable[tuple[TopicPartition, SourceNode]], wall_clock_ms: int, **options: Unpack[TaskOptions]
    ) -> Task:
        """Make the task at the last commit, and connect it to the stores: processors belong to this thread."""
        assert self._state is not None and self._commits is not None
        last = self._commits.last
        self.task = self.task_class(
            self.id,
            self._subtopology,
            self._application.id,
            self._settings,
            [TaskInput(partition, source, last.positions[partition]) for partition, source in inputs],
            self._state.stores,
            self._resources.globals_of(self._application).stores,
            saved=last.engine_state,
            wall_clock_ms=wall_clock_ms,
            attempt=self._retries.attempt,
            repeats=self._resources.repeats,
            calls=self._resources.world.calls,
            **options,
        )
        self._state.connect(self.task)
        return self.task

    def rows(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield store, key and value, as bytes, of the logged stores at the last commit, once they are restored."""
        assert self._state is not None
        return self._state.rows()

    @property
    def state_rows(self) -> int | None:
        """How many entries the stores have, once the task is open. See `TaskState.count_rows`."""
        commits = self._commits
        return None if commits is None else commits.state_rows

    def abandon(self, reason: str = "closed") -> None:
        """Drop everything since the last commit, and close. `reason`: why the task will be opened again."""
        task, state, committer = self.task, self._state, self._committer
        self.task = self._state = self._committer = self._commits = None
        close_parts(self.id, task, state, committer)

    def close(self) -> None:
        """Close the task; committed work stays. Idempotent."""
        self.abandon()

    def destroy(self) -> None:
        """Close the task and delete its local state."""
        if self._state is not None:
            self._state.destroy()
        self.abandon()


def rows_of(tasks: Iterable[TaskRunner]) -> int | None:
    """Return the number of entries in the tasks' stores; None if no task is open."""
    found = [rows for task in tasks if (rows := task.state_rows) is not None]
    return sum(found) if found else None


class _Failed(NamedTuple):
    """How often something failed, and the task's clocks (ms) when it failed last."""

    attempts: int
    stream_time: int
    wall_clock: int


class Retries:
    """The failed attempts of a task, and the waits between them.

    An attempt counts until what failed is done and committed: a record once the position is behind it, what a
    punctuator or a timer did once both clocks are where they were.
    """

    def __init__(self, application_id: str, resources: ProcessResources) -> None:
        self._application_id = application_id
        self._resources = resources
        self._failed: dict[FailureKey, _Failed] = {}

    def attempt(self, failed: FailureKey) -> int:
        """Return which attempt this one is, from 1."""
        before = self._failed.get(failed)
        return 1 if before is None else before.attempts + 1

    def note(self, retry: RetryRequested, stream_time: int = -1, wall_clock: int = -1) -> None:
        """Count a failed attempt, at these times."""
        failure = retry.failure
        self._failed[retry.key] = _Failed(failure.attempt, stream_time, wall_clock)
        what = f"{describe_place(failure, self._application_id)}: {describe_cause(failure.error)}"
        if isinstance(failure.error, SinkUnavailableError):
            what = str(failure.error)  # it is about a target, and quotes no record
        self._resources.repeats.log(
            _log, logging.WARNING, ("retry", self._application_id, failure.stage, failure.node),
            "%s: attempt %d failed; again in %d ms", what, failure.attempt, retry.delay_ms,
        )  # fmt: skip

    def wait(self, retry: RetryRequested) -> None:
        """Count a failed attempt, and wait as long as the handler says."""
        self.note(retry)
        self._resources.wait_ms(retry.delay_ms)

    def forget_done(
        self,
        positions: Mapping[TopicPartition, int],
        stream_time: int,
        wall_clock: int,
        in_flight: Callable[[], Collection[tuple[str, int, int]]],
    ) -> None:
        """Forget the attempts at finished work: the task has committed `positions`, and fired what was due.

        `in_flight` returns topic, partition and offset of records that are read, and not done.
        Records of other partitions are read while the task is opened, so they are done, too.
        """
        places = in_flight() if self._failed else ()
        for key, failed in list(self._failed.items()):
            _, _, topic, partition, offset, _ = key
            if topic is None or partition is None or offset is None:
                is_done = failed.stream_time <= stream_time and failed.wall_clock <= wall_clock
            else:
                position = positions.get(TopicPartition(topic, partition))
                is_done = (position is None or offset < position) and (topic, partition, offset) not in places
            if is_done:
                del self._failed[key]

    def clear(self) -> None:
        """Forget them: everything is done."""
        self._failed.clear()


class _Part(Protocol):
    def close(self) -> None: ...


def close_parts(task_id: TaskId, *parts: _Part | None) -> None:
    """Close the parts of a task; an error of one part does not keep the others open."""
    for part in parts:
        if part is not None:
            try:
                part.close()
            except Exception as error:
                _log.warning("task %s: closing raised %s: %s", task_id, type(error).__name__, error)


def is_taken_over(error: BaseException) -> bool:
    """Return whether a task ended because another process has it, in the log or in its local store.

    The run continues after that: the next batch opens the task again, from the last commit.
    """
    return isinstance(error, (FencedError, StaleStoreError))
