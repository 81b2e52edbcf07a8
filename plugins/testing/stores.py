"""Stores in memory for one processor or one task, without a log."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from penstock.config import Application
from penstock.nodes import SourceNode, TaskId
from penstock.plugins.runtime.state import TaskState, first_version, next_version
from penstock.record import TopicPartition
from penstock.task import Task


class MemoryState:
    """The state of one task, in memory and without a changelog."""

    def __init__(self, application: Application, task_id: TaskId) -> None:
        subtopology = application.program.subtopology(task_id.subtopology)
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-test-")
        self._state = TaskState(
            subtopology.stores, Path(self._directory.name), None, application.settings, application.id, str(task_id)
        )
        self._state.open_fresh(first_version())
        self.stores = self._state.stores

    def close(self) -> None:
        """Close the stores and forget what they hold."""
        self._state.destroy()
        self._directory.cleanup()

    def commit(self) -> None:
        """Write what changed to the backends."""
        self._state.flush()
        changes = self._state.changes()
        assert self._state.version is not None
        self._state.apply(changes, next_version(self._state.version))


def task_with_memory_stores(
    application: Application, task_id: TaskId, inputs: Sequence[tuple[TopicPartition, SourceNode]]
) -> tuple[Task, MemoryState]:
    """Return a bare Task and its state."""
    state = MemoryState(application, task_id)
    subtopology = application.program.subtopology(task_id.subtopology)
    return Task(task_id, subtopology, application.id, application.settings, inputs, state.stores, {}), state
