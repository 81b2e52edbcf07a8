"""Options that several verbs share: the application, the log, and sources of settings."""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock import Application, ConfigError, Lease, Log, Settings, duration_ms
from penstock.settings.layers import Layer
from penstock.settings.sources import layers
from penstock.support.urls import url_scheme

from .command import options, verbose_option
from .failures import ended_by_sigterm

if TYPE_CHECKING:
    from penstock.plugins.spark.dataframe.checkpoint import Checkpoint

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")

_LONGEST_LOOK_MS = 30_000

_log_option = click.option(
    "--log",
    metavar="NAME:LOCATION",
    help="The log that holds the topics, e.g. local:DIRECTORY or kafka:HOST:PORT. "
    "[env var: PENSTOCK_LOG; default: the application's, or local:log]",
)
_data_dir_option = click.option(
    "--data-dir",
    metavar="DIRECTORY",
    help="Directory that relative locations are in. [env var: PENSTOCK_DATA_DIR; default: the application's, or "
    ".penstock]",
)

application_options = options(
    click.option("--application-id", metavar="ID", help="The id of a Topology, or another id for an Application."),
    click.option(
        "--config",
        metavar="FILE",
        help="A TOML file with settings. [env var: PENSTOCK_CONFIG; default: penstock.toml, if it is here]",
    ),
    click.option(
        "--set",
        "-s",
        "given",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of the application, e.g. commit_interval=5s, processing_handler=skip, user.limit=10. "
        "Repeatable.",
    ),
    _log_option,
    _data_dir_option,
    verbose_option,
)
"""Adds the options that `find_application` takes, and --verbose."""

log_options = options(
    _log_option,
    _data_dir_option,
    click.option("--app", metavar="MODULE:ATTR", help="Use the log, and the serdes, of this application."),
    verbose_option,
)
"""Adds the options that `find_settings` takes, and --verbose."""

follow_options = options(
    click.option(
        "--follow", "-F", is_flag=True, help="Show it again and again until Ctrl-C (exit code 130) or SIGTERM (0)."
    ),
    click.option("--interval", metavar="TIME", default="5s", show_default=True, help="How often --follow shows it."),
)
"""Adds --follow and --interval for `followed`."""

timeout_option = click.option(
    "--timeout",
    metavar="TIME",
    help="How long to wait for a log that does not answer. [default: task_timeout, but at most 30s]",
)
"""Adds --timeout for `followed`."""


checkpoint_option = click.option(
    "--checkpoint",
    metavar="LOCATION",
    help="Of a query of `transform`: its checkpoint, in place of a log. Starts Spark on this machine to read it.",
)
batch_option = click.option(
    "--batch",
    type=click.IntRange(0),
    metavar="N",
    help="With --checkpoint: as of the end of this batch. [default: the last one]",
)
checkpoint_options = options(checkpoint_option, batch_option)
"""Adds the options that `find_checkpoint` takes."""


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
        ("log", log, "--log"),
        ("data_dir", data_dir, "--data-dir"),
        ("application_id", application_id, "--application-id"),
    )
    named = Layer.read((option for option in options if option[1] is not None), Settings.names())
    return named.over(layers(config, options=given, load_function=load_function))


def find_application(target: str, **where: Any) -> Application:
    """Return the application that MODULE:ATTR and the options of `find_layer` name, as `penstock run` would run it."""
    from .target import load_application

    # Its module may register a plugin, and with it settings.
    return load_application(target, settings=lambda: find_layer(**where))


def find_settings(log: str | None, data_dir: str | None, app: str | None) -> Settings:
    """Return the settings of the application, if there is one, below those of `find_layer`."""
    application = named_application(log, data_dir, app)
    return Settings.of(find_layer(log, data_dir)) if application is None else application.settings


def named_application(log: str | None, data_dir: str | None, app: str | None) -> Application | None:
    """Return the application of --app with the settings of `find_layer`; None for a Topology, which has no id."""
    if app is None:
        return None
    from .target import load

    found = load(app)
    return found.under(find_layer(log, data_dir)) if isinstance(found, Application) else None


def open_log(settings: Settings) -> closing[Log]:
    """Open the log that `settings` name, and close it after the block."""
    from penstock.plugins.engine.task.locations import open_log

    return closing(open_log(settings))


@contextmanager
def open_application(application: Application) -> Iterator[tuple[Application, Log]]:
    """Open the log of an application; return the application under the id that it has there, and the log."""
    from penstock.plugins.engine.program.stored_id import stored_application

    with open_log(application.settings) as log:
        yield stored_application(application, log), log


@contextmanager
def leased(application: Application) -> Iterator[tuple[Application, Log, Lease]]:
    """Open an application as `open_application`, and hold its lease, so that it does not run."""
    from penstock.plugins.engine.program.lease import LeaseKeeper
    from penstock.plugins.engine.program.stored_id import stored_application

    with open_log(application.settings) as log:
        lease = LeaseKeeper(log, application.id)
        try:
            yield stored_application(application, log), log, lease
        finally:
            lease.release()


@contextmanager
def followed(
    target: str, *, follow: bool, interval: str, timeout: str | None, **where: Any
) -> Iterator[tuple[Application, Log, Iterator[None]]]:
    """Open the log of an application for a verb that looks at it at each step of the iterator: once without `follow`."""
    pause_seconds = duration_ms(interval, "--interval") / 1000
    application = _with_timeout(find_application(target, **where), timeout)
    pause = threading.Event()  # never set: an interruptible wait

    def steps() -> Iterator[None]:
        yield
        while follow:
            pause.wait(pause_seconds)
            yield

    with open_application(application) as (found, log), ended_by_sigterm() if follow else nullcontext():
        yield found, log, steps()


def find_checkpoint(location: str, batch: int | None = None) -> Checkpoint:
    """Return the content of the checkpoint at --checkpoint as of --batch. Raises as `read_checkpoint`."""
    from penstock.plugins.spark.dataframe.checkpoint import read_checkpoint
    from penstock.plugins.spark.sessions import local_session

    place = location if url_scheme(location) else str(Path(location).absolute())
    with local_session() as spark:
        return read_checkpoint(spark, place, batch)


def check_batch(checkpoint: str | None, batch: int | None) -> None:
    """Raise UsageError for --batch without --checkpoint."""
    if batch is not None and checkpoint is None:
        raise click.UsageError("--batch is one of a query of `transform`: name its checkpoint with --checkpoint")


def name_and_value(option: str, text: str, example: str = "") -> tuple[str, str]:
    """Return the parts of NAME=VALUE. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{option} {text!r}: expected NAME=VALUE{example}")
    return name, value


def by_name(option: str, pairs: Iterable[tuple[Name, Value]]) -> dict[Name, Value]:
    """Return the values of an option by their names. Raises ConfigError for a name with two values."""
    found: dict[Name, Value] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise ConfigError(f"{option} says two things of {name}: {found[name]} and {value}; say one")
    return found


def load_partitioners(given: Iterable[str]) -> dict[str, Any]:
    """Return the functions of --partitioner by topic. Raises ConfigError."""
    from .target import load_function

    named = (name_and_value("--partitioner", each, ", e.g. orders=shop:by_country") for each in given)
    return {topic: load_function(target) for topic, target in by_name("--partitioner", named).items()}


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `yes`. Raises Abort after a no, and UsageError where stdin is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked, for stdin is no terminal: add --yes to do this")
    click.confirm(question, abort=True, err=True)


def _with_timeout(application: Application, timeout: str | None) -> Application:
    if timeout is None:
        shortest_ms = min(duration_ms(application.settings.task_timeout), _LONGEST_LOOK_MS)
        return application.with_settings(task_timeout=f"{shortest_ms}ms")
    duration_ms(timeout, "--timeout")
    return application.with_settings(task_timeout=timeout)
