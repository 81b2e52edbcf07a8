"""Keeps the documented import path of `open_log`, which is in engine/task/."""

from penstock.plugins.engine.task.locations import open_log

__all__ = ["open_log"]
