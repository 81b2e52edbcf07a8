"""Changelogs: the history of a task's state, kept where any host can read it, in a place of its own or in the log."""

from .changelog import (
    RESTORING,
    Restore,
    RestoreEvent,
    RestoreListener,
    RestorePhase,
    TaskChangelog,
    Work,
    is_version,
    may_precede,
    version_counter,
    version_name,
)
from .delta_changelog import Changelog, DeltaChangelog
from .log_changelog import LogChangelog

__all__ = [
    "RESTORING",
    "Changelog",
    "DeltaChangelog",
    "LogChangelog",
    "Restore",
    "RestoreEvent",
    "RestoreListener",
    "RestorePhase",
    "TaskChangelog",
    "Work",
    "is_version",
    "may_precede",
    "version_counter",
    "version_name",
]
