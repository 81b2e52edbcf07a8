"""The settings of a run: its engine, listener, metrics, sizes of batches, and the answer to an uncaught error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import ConfigError, MissingPackageError, PenstockError, PluginError, Setting
from penstock.hooks import registry
from penstock.settings.types import DURATION, SettingType, function, optional, text, whole_number
from penstock.support.packages import check_installed

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


def _installed_engine(setting: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{setting}: expected the name of an installed engine, found {value!r}")
    try:
        registry().find("engine", value)
    except PluginError as error:
        raise PluginError(f"{setting}: {error}") from error
    return value


ENGINE = Setting(
    "engine",
    SettingType(_installed_engine),
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


def reporter_names(text: str) -> list[str]:
    """Return the names of reporters in the text of the setting `metrics_reporters`."""
    return [name for each in text.split(",") if (name := each.strip())]


def _installed_reporters(setting: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{setting}: expected names of metrics reporters with commas between, found {value!r}")
    for name in reporter_names(value):
        try:
            registry().find("metrics reporter", name)
        except PluginError as error:
            raise PluginError(f"{setting}: {error}") from error
    return value


def _needs_prometheus(port: int | None) -> None:
    if port:
        check_installed("setting 'metrics_port'", "metrics", "prometheus_client")


def _needs_reporters(names: str) -> None:
    for name in reporter_names(names):
        registry().load("metrics reporter", name)


METRICS_PORT = Setting(
    "metrics_port",
    optional(whole_number(0, 65_535, "a port, or 0 or None for none")),
    None,
    "The port on which the driver of a run serves its counts to Prometheus; None or 0: it does not.",
    _needs_prometheus,
)
METRICS_HOST = Setting(
    "metrics_host",
    text("a host's name or address"),
    "127.0.0.1",
    "The address that `metrics_port` is opened on; `0.0.0.0` for all of the host's.",
)
METRICS_REPORTERS = Setting(
    "metrics_reporters",
    SettingType(_installed_reporters),
    "",
    "Names of installed reporters that get the metrics of a run, with commas between.",
    _needs_reporters,
)
METRICS_INTERVAL = Setting("metrics_interval", DURATION, "10s", "The time between two reports of `metrics_reporters`.")


PROCESSES = Setting(
    "processes",
    whole_number(0, expected="a number of processes, or 0 for none beside the engine's own"),
    0,
    "With the engine `embedded`: in how many task hosts the tasks run; 0: in the process of the engine.",
)
