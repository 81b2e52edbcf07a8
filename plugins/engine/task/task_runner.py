"""TaskRunner: one task with its state and its commits, open or closed, whatever its commit point is.

`LoggedTask` runs it over a log, and `StreamTask` in a Spark pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict, Unpack

from penstock import Application, RecordRefusedError, SourceNode, TaskCommitter, TaskId, TopicPartition
from penstock.task.input_queue import TaskInput
from penstock.task.task import Task

from .commit import TaskCommits
from .local_state.task_state import TaskState
from .process_resources import ProcessResources
from .retries import Retries, close_parts


class TaskOptions(TypedDict, total=False):
    """The options of `Task` that depend on its commit point."""

    topic_name: Callable[[str], str]
    partition_count: Callable[[str], int]
    refusals: Mapping[str, Sequence[RecordRefusedError]]
    stopwatch: Callable[[], float]
    takes_whole_batches: bool


class TaskRunner:
    """One task. Called by one thread; a new object has nothing open.

    Any process may make one for any task at any time. After an error only the last commit counts: abandon the task, and
    open it again from there.
    """

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
        self.task = Task(
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
        """Close the task; what is committed stays. Idempotent."""
        self.abandon()

    def destroy(self) -> None:
        """Close the task and delete its local state."""
        if self._state is not None:
            self._state.destroy()
        self.abandon()


def rows_of(tasks: Iterable[TaskRunner]) -> int | None:
    """Return how many entries the stores of tasks have; None if no task is open."""
    found = [rows for each in tasks if (rows := each.state_rows) is not None]
    return sum(found) if found else None
