"""settings_in_force: the settings of an application, and where each came from, without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock import Application, Settings
from penstock.settings.names import MAPPINGS

_DEFAULT = "default"


def settings_in_force(application: Application) -> list[tuple[str, Any, str]]:
    """Return the name of each setting, its value for JSON and its origin; those of mappings one by one.

    The first one is the application's id. Secrets are stars.
    """
    return list(_rows(application))


def _rows(application: Application) -> Iterator[tuple[str, Any, str]]:
    origins = application.given.origins
    yield "application_id", application.id, origins.get("application_id", "code")
    for name in [*(each for each in Settings.names() if each not in MAPPINGS), *MAPPINGS]:
        value = application.settings.shown(name)
        if name in MAPPINGS:
            for each in sorted(value, key=str):
                yield f"{name}.{each}", _plain(value[each]), origins.get((name, each), _DEFAULT)
        else:
            yield name, _plain(value), origins.get(name, _DEFAULT)


def _plain(value: Any) -> Any:
    """Return a value for JSON: functions by their full names, other objects by their `repr`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if hasattr(value, "__qualname__"):
        ours = value.__module__.startswith("penstock.")
        return value.__qualname__ if ours else f"{value.__module__}:{value.__qualname__}"
    shown = getattr(type(value), "__repr__", None)
    return type(value).__name__ if shown is object.__repr__ else str(value)
