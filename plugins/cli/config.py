"""The verb `config`: which settings are in force, and where each came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from .command import Command
from .options import application_options, find_application
from .output import print_json, print_table

if TYPE_CHECKING:
    from penstock import Application

DEFAULT = "default"


@click.command(
    cls=Command,
    examples=[
        ("What would be in force in this directory and environment", "penstock config wordcount:application"),
        ("With the settings of a file and one of the command line", "penstock config wordcount:application --config production.toml --set commit_interval=5s"),
        ("What is no default, for a program", "penstock config wordcount:application --json | jq '.settings | map_values(select(.origin != \"default\"))'"),
    ],
)  # fmt: skip
@click.argument("target", metavar="MODULE:ATTR")
@click.option("--json", "as_json", is_flag=True, help="A JSON object with 'application_id' and 'settings'.")
@application_options
def config(target: str, as_json: bool, **where: Any) -> None:
    """Show the settings that MODULE:ATTR would run with, and where each came from.

    The command line wins over the environment, that over the file, that over the program. Secrets are shown as
    stars. Nothing is run, and no log is opened.
    """
    application = find_application(target, **where)
    rows = list(_rows(application))
    if as_json:
        print_json(
            {
                "application_id": {"value": rows[0][1], "origin": rows[0][2]},
                "settings": {name: {"value": value, "origin": origin} for name, value, origin in rows[1:]},
            }
        )
    else:
        print_table(
            ["setting", "value", "origin"],
            rows,
        )


def _rows(application: Application) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value and origin of each setting; those of mappings one by one."""
    from penstock import Settings
    from penstock.settings.names import MAPPINGS
    from penstock.settings.secret import hide

    origins = application.given.origins
    yield "application_id", application.id, origins.get("application_id", "code")
    for name in [*(each for each in Settings.names() if each not in MAPPINGS), *MAPPINGS]:
        value = hide(name, application.settings[name])
        if name in MAPPINGS:
            for each in sorted(value, key=str):
                yield f"{name}.{each}", _plain(value[each]), origins.get((name, each), DEFAULT)
        else:
            yield name, _plain(value), origins.get(name, DEFAULT)


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
