"""Replicas: copies of tasks' stores that follow their history, read by others than the task."""

from penstock.plugins.engine.program.saved_program import SavedTask, saved_tasks

from .replica import Replica
from .standbys import Standbys, StandbyStatus

__all__ = ["Replica", "SavedTask", "StandbyStatus", "Standbys", "saved_tasks"]
