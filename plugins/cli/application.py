"""Options of the verbs that work on an application: which one, its settings and its log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .command import AnyFunction, verbose_option
from .options import config_option, data_dir_option, find_layer, log_option

if TYPE_CHECKING:
    from penstock.settings.application import Application


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


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `yes`. Raises Abort after a no, and UsageError where stdin is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked, for stdin is no terminal: add --yes to do this")
    click.confirm(question, abort=True, err=True)
