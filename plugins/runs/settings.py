"""The setting that says which engine runs an application."""

from __future__ import annotations

from typing import Any

from penstock import ConfigError, PluginError, Setting
from penstock.hooks import registry
from penstock.settings.types import SettingType


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
