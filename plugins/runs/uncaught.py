"""Answers to an error of a task that no handler took: the setting `uncaught_exception_handler`."""

from __future__ import annotations

from collections.abc import Callable

from penstock import ConfigError, PenstockError

STOP, REPLACE_TASK = "stop", "replace_task"

UncaughtExceptionHandler = Callable[[PenstockError], str]
"""Called by the driver with the error of a task; returns "stop" or "replace_task"."""


def stop(error: PenstockError) -> str:
    """End the run with the error. Kafka Streams: SHUTDOWN_CLIENT and SHUTDOWN_APPLICATION."""
    return STOP


def replace_task(error: PenstockError) -> str:
    """Open the task again, from its last commit. Kafka Streams: REPLACE_THREAD."""
    return REPLACE_TASK


def replaces(handler: UncaughtExceptionHandler, error: PenstockError) -> bool:
    """Return whether the task of an error is to be opened again. Raises ConfigError for another answer."""
    answer = handler(error)
    if answer not in (STOP, REPLACE_TASK):
        raise ConfigError(
            f"setting 'uncaught_exception_handler': it returned {answer!r}, expected {STOP!r} or {REPLACE_TASK!r}"
        ) from error
    return answer == REPLACE_TASK
