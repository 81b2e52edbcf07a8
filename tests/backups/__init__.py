"""Backups: a consistent set of the state of all tasks, and the way back from it."""
