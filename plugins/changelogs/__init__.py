"""Changelogs: places for the history of a task's state; may import core."""

from __future__ import annotations

from penstock import Components, hookimpl


@hookimpl
def penstock_changelogs() -> Components:
    """Return the changelogs that come with penstock."""
    return {
        "directory": "penstock.plugins.changelogs.directory:DirectoryChangelog",
        "topic": "penstock.plugins.changelogs.topic:TopicChangelog",
        "memory": "penstock.plugins.changelogs.memory:MemoryChangelog",
    }
