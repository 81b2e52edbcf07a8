"""Keeps the documented import path of `open_log`, which is in engine/task/."""
