"""Options that several verbs share: which log, which application, and any setting with its type checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_type_hints

import click

from penstock.clock import Duration
from penstock.config import Settings
from penstock.errors import ConfigError

from .command import AnyFunction

if TYPE_CHECKING:
    from penstock.log import Log

LOG_HELP = "The log that holds the topics, e.g. local:DIRECTORY. [default: the application's, or local:log]"
DATA_DIR_HELP = "Directory that relative locations are in. [default: the application's, or .penstock]"


def log_options(command: AnyFunction) -> AnyFunction:
    """Add --log, --data-dir and --app, from which `open_log` finds the log."""
    for option in (
        click.option(
            "--app",
            metavar="MODULE:ATTR",
            help="Use the log, and the serdes, of this application.",
        ),
        data_dir_option,
        log_option,
    ):
        command = option(command)
    return command


def log_option(command: AnyFunction) -> AnyFunction:
    """Add --log."""
    return click.option(
        "--log", metavar="NAME:LOCATION", envvar="PENSTOCK_LOG", show_envvar=True, help=LOG_HELP
    )(command)  # fmt: skip


def data_dir_option(command: AnyFunction) -> AnyFunction:
    """Add --data-dir."""
    return click.option(
        "--data-dir", metavar="DIRECTORY", envvar="PENSTOCK_DATA_DIR", show_envvar=True, help=DATA_DIR_HELP
    )(command)  # fmt: skip


def find_settings(log: str | None, data_dir: str | None, app: str | None) -> Settings:
    """Return the settings of the application, if one is named, with `log` and `data_dir` in place of its own."""
    given = {name: value for name, value in (("log", log), ("data_dir", data_dir)) if value is not None}
    if app is None:
        return Settings.make(given)
    from .target import load

    found = load(app)
    settings = getattr(found, "settings", None)
    if not isinstance(settings, Settings):
        return Settings.make(given)  # a Topology has no settings of its own
    return Settings.make({**{each.name: getattr(settings, each.name) for each in fields(Settings)}, **given})


@contextmanager
def open_log(settings: Settings) -> Iterator[Log]:
    """Open the log that `settings` name, and close it afterwards."""
    from penstock.plugins.runtime.locations import open_log

    log = open_log(settings)
    try:
        yield log
    finally:
        log.close()


def parse_settings(given: Sequence[str]) -> Mapping[str, Any]:
    """Return settings from "NAME=VALUE" texts, each value turned into its setting's type.

    `user.NAME=VALUE` adds to the application's own settings; there the value is JSON, or else text.

    >>> parse_settings(["commit_bytes=1000", "max_task_idle=none", "user.threshold=0.5"])
    {'commit_bytes': 1000, 'max_task_idle': None, 'user': {'threshold': 0.5}}
    """
    types = get_type_hints(Settings)
    made: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise ConfigError(f"--set {text!r}: expected NAME=VALUE, for instance --set commit_interval=10s")
        if name.startswith("user."):
            made.setdefault("user", {})[name[len("user.") :]] = _json_or_text(value)
        elif name == "user":
            raise ConfigError(f"--set {text!r}: set one of your own settings with user.NAME=VALUE")
        elif name not in types:
            close = get_close_matches(name, list(types), 3)
            raise ConfigError(
                f"--set {text!r}: there is no setting {name!r}"
                + (f"; did you mean {' or '.join(map(repr, close))}?" if close else f"; known: {', '.join(types)}")
            )
        else:
            made[name] = _convert(name, value, types[name])
    return made


def _convert(name: str, value: str, expected: Any) -> Any:
    if name == "timestamp_extractor":
        return _function(name, value, "penstock.extractors")
    if name.endswith("_handler"):
        return _function(name, value, "penstock.handlers")
    if expected in (int, int | None, Duration | None) and value.lower() in ("none", "") and expected is not int:
        return None
    if expected in (int, int | None):
        try:
            return int(value.replace("_", ""))
        except ValueError:
            raise ConfigError(f"--set {name}={value}: expected a whole number, found {value!r}") from None
    return value  # text, a duration (checked by Settings) or the name of a serde


def _function(name: str, value: str, module: str) -> Any:
    """Return a handler or extractor: one of ours by its name, or any by MODULE:ATTR."""
    from importlib import import_module

    ours = {
        each: found
        for each, found in vars(import_module(module)).items()
        if getattr(found, "__module__", "") == module and callable(found) and each.islower()
    }
    if value in ours:
        return ours[value]
    if ":" in value:
        from .target import load_function

        return load_function(value)
    raise ConfigError(f"--set {name}={value}: expected one of {', '.join(ours)}, or MODULE:ATTR of a function of yours")


def _json_or_text(value: str) -> Any:
    import json

    try:
        return json.loads(value)
    except ValueError:
        return value
