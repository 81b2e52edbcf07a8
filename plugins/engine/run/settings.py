"""The settings of a run: its engine, its listener, what an uncaught error does, and the sizes of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import ConfigError, MissingPackageError, PenstockError, PluginError, Setting
from penstock.hooks import registry
from penstock.settings.types import DURATION, SettingType, function, optional, whole_number

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
    """Return whether the task of an error is to be opened again. Raises ConfigError for another answer.

    A package that is missing is not there at the next opening either: that ends the run, without asking.
    """
    if isinstance(error, MissingPackageError):
        return False
    answer = handler(error)
    if answer not in (STOP, REPLACE_TASK):
        raise ConfigError(
            f"setting 'uncaught_exception_handler': it returned {answer!r}, expected {STOP!r} or {REPLACE_TASK!r}"
        ) from error
    return answer == REPLACE_TASK


def _installed(setting: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{setting}: expected the name of an installed engine, found {value!r}")
    try:
        registry().find("engine", value)
    except PluginError as error:
        raise PluginError(f"{setting}: {error}") from error
    return value


ENGINE = Setting(
    "engine",
    SettingType(_installed),
    "spark",
    "What runs the application: `spark`, `embedded` (in one process of this machine, or in several), or an engine that "
    "another package brings.",
)
STATE_LISTENER = Setting(
    "state_listener",
    optional(function(("change",))),
    None,
    "Called in the driver with a StateChange when the state of a run changes.",
)
UNCAUGHT_EXCEPTION_HANDLER = Setting(
    "uncaught_exception_handler",
    function(("error",), (stop, replace_task)),
    stop,
    "Decides in the driver about an error of a task that no other handler took: a function of the error that returns "
    "`stop` or `replace_task`.",
)


MAX_RECORDS_PER_BATCH = Setting(
    "max_records_per_batch",
    optional(whole_number()),
    None,
    "The most records a batch plans to read over all partitions (None: only its time is limited).",
)
PUNCTUATION_INTERVAL = Setting(
    "punctuation_interval",
    DURATION,
    "1s",
    "How often the wall clock ticks when there is no data; only applications with wall-clock punctuators notice.",
)
