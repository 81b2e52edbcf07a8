"""Whether the times that an earlier release saved by the names of nodes can be taken over by the stores."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from penstock.errors import IncompatibleStateError
from penstock.log import Log
from penstock.program.assignment import Assignment
from penstock.program.layouts import Layouts
from penstock.program.nodes import ProcessorNode, TaskId
from penstock.settings.application import Application
from penstock.task.saved_values import adopt_values, has_values_by_node

BY_STORE = "by store"
"""What the note of a program says that saves times with their stores."""
_THREADS = 16
"""Number of tasks whose commits are read at once."""


def check_earlier_values(
    application: Application, assignment: Assignment, before: Mapping[str, Any], now: Mapping[str, Any], log: Log
) -> None:
    """Raise IncompatibleStateError if times of an earlier release would be lost, or taken by another store.

    `before` and `now` are the notes of the programs. Only the first start after such a release reads the commits for
    it, and fences the tasks. Call it while nothing was changed.
    """
    if not before or before.get("values") == BY_STORE:
        return
    parked = {name: each["subtopology"] for name, each in now["parked"].items() if name not in before.get("parked", {})}

    def check(task: TaskId) -> None:
        partitions = assignment.tasks[task]
        subtopology = application.program.subtopology(task.subtopology)
        removed = sorted(name for name, number in parked.items() if number == str(subtopology.id))
        saves = any(isinstance(each, ProcessorNode) and each.saved_as for each in subtopology.nodes)
        if not (saves or removed) or {each.topic for each in partitions} & set(assignment.missing):
            return
        with closing(log.open_committer(application.id, str(task), partitions)) as committer:
            commit = committer.committed
        if commit is None or not has_values_by_node(commit.engine_state):
            return
        if removed:
            raise IncompatibleStateError(_removed(application.id, removed))
        layouts = subtopology.layouts or Layouts.of_program(subtopology.stores, application.settings.store_backend)
        try:
            adopt_values(commit.engine_state, subtopology, layouts.of_version(commit.version), layouts.now)
        except IncompatibleStateError as error:
            raise IncompatibleStateError(f"application {application.id!r}, task {task}: {error}") from None

    with ThreadPoolExecutor(_THREADS, "earlier-values") as pool:
        list(pool.map(check, assignment.tasks))


def _removed(application_id: str, stores: list[str]) -> str:
    return (
        f"application {application_id!r}: store {', '.join(map(repr, stores))} is no longer in the program, and an "
        "earlier release saved times of stores under the names of their nodes, which cannot be told apart then. Start "
        "the program as it was once with this release, and change it then; or give the store up (`penstock stores "
        "drop`)"
    )
