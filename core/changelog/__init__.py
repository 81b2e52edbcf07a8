"""Changelogs: the history of a task's state, kept where any host can read it, in a place of its own or in the log."""

from .changelog import Restore, TaskChangelog, version_counter
from .delta_changelog import Changelog, DeltaChangelog
from .log_changelog import LogChangelog

__all__ = ["Changelog", "DeltaChangelog", "LogChangelog", "Restore", "TaskChangelog", "version_counter"]
