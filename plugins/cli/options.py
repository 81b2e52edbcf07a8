"""Options that several verbs share: which application, which log, and where settings come from."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.clock import duration_ms
from penstock.settings.layers import Layer
from penstock.settings.settings import Settings
from penstock.settings.sources import layers

from .command import AnyFunction, verbose_option

if TYPE_CHECKING:
    from penstock.log import Log
    from penstock.settings.application import Application

_LONGEST_LOOK_MS = 30_000

LOG_HELP = (
    "The log that holds the topics, e.g. local:DIRECTORY or kafka:HOST:PORT. "
    "[env var: PENSTOCK_LOG; default: the application's, or local:log]"
)
DATA_DIR_HELP = (
    "Directory that relative locations are in. [env var: PENSTOCK_DATA_DIR; default: the application's, or .penstock]"
)


def application_options(command: AnyFunction) -> AnyFunction:
    """Add --application-id, --config, --set, --log and --data-dir for `find_application`, and --verbose."""
    for option in (
        verbose_option,
        data_dir_option,
        log_option,
        click.option(
            "--set",
            "-s",
            "given",
            multiple=True,
            metavar="NAME=VALUE",
            help="A setting of the application, e.g. commit_interval=5s, processing_handler=skip, user.limit=10. "
            "Repeatable.",
        ),
        config_option,
        click.option("--application-id", metavar="ID", help="The id of a Topology, or another id for an Application."),
    ):
        command = option(command)
    return command


def log_options(command: AnyFunction) -> AnyFunction:
    """Add --log, --data-dir and --app, from which `open_log` finds the log, and --verbose."""
    for option in (
        verbose_option,
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
    return click.option("--log", metavar="NAME:LOCATION", help=LOG_HELP)(command)


def data_dir_option(command: AnyFunction) -> AnyFunction:
    """Add --data-dir."""
    return click.option("--data-dir", metavar="DIRECTORY", help=DATA_DIR_HELP)(command)


def config_option(command: AnyFunction) -> AnyFunction:
    """Add --config."""
    return click.option(
        "--config",
        metavar="FILE",
        help="A TOML file with settings. [env var: PENSTOCK_CONFIG; default: penstock.toml, if it is here]",
    )(command)


def timeout_option(command: AnyFunction) -> AnyFunction:
    """Add --timeout, for verbs that only look; see `with_timeout`."""
    return click.option(
        "--timeout",
        metavar="TIME",
        help="How long to wait for a log that does not answer. [default: task_timeout, but at most 30s]",
    )(command)


def with_timeout(application: Application, timeout: str | None) -> Application:
    """Return the application with the time that it waits for its log, from --timeout."""
    if timeout is None:
        shortest_ms = min(duration_ms(application.settings.task_timeout), _LONGEST_LOOK_MS)
        return application.with_settings(task_timeout=f"{shortest_ms}ms")
    duration_ms(timeout, "--timeout")
    return application.with_settings(task_timeout=timeout)


def find_layer(
    log: str | None = None,
    data_dir: str | None = None,
    config: str | None = None,
    given: Sequence[str] = (),
    application_id: str | None = None,
) -> Layer:
    """Return the settings: the command line wins over the environment, and that over the file."""
    from .target import load_function

    options = (
        ("log", "--log", log),
        ("data_dir", "--data-dir", data_dir),
        ("application_id", "--application-id", application_id),
    )
    named = Layer.read(
        ((name, value, option) for name, option, value in options if value is not None), Settings.names()
    )
    return named.over(layers(config, options=given, load_function=load_function))


def find_application(
    target: str,
    application_id: str | None,
    given: Sequence[str],
    log: str | None,
    data_dir: str | None,
    config: str | None,
) -> Application:
    """Return the application that MODULE:ATTR and the options name, as `penstock run` would run it."""
    from .target import load_application

    return load_application(target, settings=find_layer(log, data_dir, config, given, application_id))


def find_settings(log: str | None, data_dir: str | None, app: str | None) -> Settings:
    """Return the settings of the application, if there is one, below those of `find_layer`."""
    layer = find_layer(log, data_dir)
    if app is None:
        return Settings.of(layer)
    from penstock.settings.application import Application

    from .target import load

    found = load(app)  # a Topology has no settings of its own
    return Settings.of(layer.over(found.given) if isinstance(found, Application) else layer)


@contextmanager
def open_log(settings: Settings) -> Iterator[Log]:
    """Open the log that `settings` name, and close it afterwards."""
    from penstock.plugins.runtime.locations import open_log

    log = open_log(settings)
    try:
        yield log
    finally:
        log.close()


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `yes`. Raises Abort after a no, and UsageError where stdin is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked, for stdin is no terminal: add --yes to do this")
    click.confirm(question, abort=True, err=True)
