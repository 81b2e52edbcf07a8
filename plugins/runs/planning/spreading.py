"""Spreading: which slot runs which task; a function of the task's id and the number of slots alone."""

from __future__ import annotations

from collections.abc import Iterable

from penstock import TaskId


def slot(task_id: TaskId, slots: int) -> int:
    """Return the number of the slot that runs a task; tasks with neighbouring numbers are spread."""
    return (task_id.subtopology + task_id.partition) % slots


def slots(tasks: Iterable[str], number: int) -> dict[int, list[str]]:
    """Return the ids of the tasks of each slot."""
    found: dict[int, list[str]] = {each: [] for each in range(number)}
    for task in tasks:
        found[slot(TaskId.parse(task), number)].append(task)
    return found
