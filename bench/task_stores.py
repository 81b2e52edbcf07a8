"""Stores in memory for one processor or one task, without a log."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.plugins.engine.task.local_state.task_state import TaskState
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.program.nodes import SourceNode, TaskId
from penstock.record import TopicPartition
from penstock.settings.application import Application
from penstock.task.input_queue import TaskInput
from penstock.task.task import Task


class MemoryState:
    """The state of one task, in memory and without a changelog."""

    def __init__(self, application: Application, task_id: TaskId) -> None:
        self._directory = TemporaryDirectory("test")
        self._state = TaskState(application, task_id, self._directory.path, None)
        self._state.open_fresh(self._state.new_version(None))
        self.stores = self._state.stores

    def close(self) -> None:
        """Close the stores and forget what they hold."""
        self._state.destroy()
        self._directory.close()

    def commit(self) -> None:
        """Write the changes to the backends."""
        self._state.flush()
        changes = self._state.changes()
        self._state.apply(changes, self._state.new_version(self._state.version))


def task_with_memory_stores(
    application: Application, task_id: TaskId, inputs: Sequence[tuple[TopicPartition, SourceNode]]
) -> tuple[Task, MemoryState]:
    """Return a bare Task and its state."""
    state = MemoryState(application, task_id)
    subtopology = application.program.subtopology(task_id.subtopology)
    given = [TaskInput(*each) for each in inputs]
    return Task(task_id, subtopology, application.id, application.settings, given, state.stores, {}), state
