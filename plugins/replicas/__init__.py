"""Replicas: copies of tasks' stores that follow their history, read by others than the task."""

from .replica import Replica
from .saved_tasks import SavedTask, saved_tasks

__all__ = ["Replica", "SavedTask", "saved_tasks"]
