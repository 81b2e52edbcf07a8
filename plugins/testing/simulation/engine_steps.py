"""The step of the engine's work in which a host does an operation, found in the stack of calls."""

from __future__ import annotations

import sys
from functools import cache
from types import CodeType
from typing import Any

from penstock.plugins.applications import changelog_move, reset
from penstock.plugins.backups import backup, pruning
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.changelogs.topic import TopicChangelog
from penstock.plugins.replicas import Replica
from penstock.plugins.reshard import resharding
from penstock.plugins.runtime import commit
from penstock.plugins.runtime.commit import PendingCommit, TaskCommits
from penstock.plugins.runtime.local_state.global_stores import GlobalStores
from penstock.plugins.runtime.local_state.task_state import TaskState
from penstock.plugins.runtime.logged_task import LoggedTask
from penstock.plugins.runtime.loop.continuous_worker import ContinuousWorker
from penstock.plugins.runtime.loop.task_loop import TaskLoop
from penstock.plugins.runtime.positions import InputPartitions
from penstock.plugins.runtime.task_worker import TaskWorker

from .cluster import Cluster

_METHODS: dict[str, tuple[tuple[Any, str], ...]] = {
    "cleaning": ((DirectoryChangelog, "clean"),),
    "snapshot": ((TaskState, "write_snapshot"),),
    "looking for a snapshot": ((TaskState, "wants_snapshot"),),
    "first commit": ((commit, "make_first"),),
    "change of the stores": ((TaskCommits, "settle"),),
    "commit": ((PendingCommit, "write"),),
    "sending": ((TaskCommits, "send"),),
    "following": ((Replica, "catch_up"), (Replica, "__init__")),
    "restoring": ((LoggedTask, "restore"), (TopicChangelog, "restore")),
    "opening": (
        (LoggedTask, "_prepare"),
        (LoggedTask, "prepare"),
        (LoggedTask, "_ensure_open"),
        (ContinuousWorker, "open"),
    ),
    "ending": ((LoggedTask, "abandon"), (LoggedTask, "cause_of")),
    "global stores": ((GlobalStores, "update"),),
    "reading": ((InputPartitions, "fetch"), (TaskLoop, "_poll")),
    "working": ((TaskWorker, "try_batch"), (TaskLoop, "turn")),
    "reset": ((reset, "reset"),),
    "move of the changelog": ((changelog_move, "move_changelog"),),
    "backup": ((backup, "back_up"),),
    "prune": ((pruning, "prune"),),
    "reshard": ((resharding, "reshard"), (resharding, "accept"), (resharding, "undo")),
    "planning and closing": ((Cluster, "work_beside"),),  # an act in the middle of another one
}
STEPS = tuple(_METHODS)
"""The steps, the inner ones first: a snapshot is written in the middle of a batch."""


@cache
def by_code() -> dict[CodeType, str]:
    """Return the steps by the code of their methods; cleared by what replaces one of these."""
    return {getattr(owner, name).__code__: step for step, methods in _METHODS.items() for owner, name in methods}


def step_now() -> str:
    """Return the step in which the calling code runs."""
    steps, frame = by_code(), sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if (step := steps.get(frame.f_code)) is not None:
            return step
    return STEPS[-1]
