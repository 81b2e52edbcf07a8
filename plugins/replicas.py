"""Keeps the documented import path of replicas, which are in state/copies/."""

from .state.copies import Replica, SavedTask, Standbys, StandbyStatus, saved_tasks

__all__ = ["Replica", "SavedTask", "StandbyStatus", "Standbys", "saved_tasks"]
