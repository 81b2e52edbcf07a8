"""Changelogs: the history of a task's state, kept where any host can read it."""

from .changelog import Changelog, Restore, TaskChangelog, version_counter

__all__ = ["Changelog", "Restore", "TaskChangelog", "version_counter"]
