"""The settings of a run: its engine, its listener, and what an uncaught error does."""

from __future__ import annotations

from typing import Any

from penstock import ConfigError, PluginError, Setting
from penstock.hooks import registry
from penstock.settings.types import SettingType, function, optional

from .uncaught import replace_task, stop


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
