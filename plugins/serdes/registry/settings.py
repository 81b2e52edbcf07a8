"""The setting that serdes of a registry read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock import ConfigError, Setting
from penstock.settings.types import SettingType, optional, text

Registry = str | Mapping[str, Any]


def _registry(setting: str, value: Any) -> Registry:
    address = value.get("url") if isinstance(value, Mapping) else value
    if isinstance(address, str) and address:
        registry: Registry = value
        return registry
    raise ConfigError(
        f"{setting}: expected the address of a schema registry, such as 'http://HOST:8081', or settings of Confluent's "
        f"client, with its 'url'; found {_shown(value)}"
    )


def _shown(value: Any) -> str:
    return f"settings named {', '.join(map(str, value))}" if isinstance(value, Mapping) else f"a {type(value).__name__}"


SCHEMA_REGISTRY = Setting(
    "schema_registry",
    optional(SettingType(_registry)),
    None,
    "The schema registry of serdes that name none: its address, or settings of Confluent's client.",
)
SCHEMA_REGISTRY_USER_INFO = Setting(
    "schema_registry_user_info",
    optional(text("USER:SECRET")),
    None,
    "With the address of the registry: user and secret for it, USER:SECRET.",
)
