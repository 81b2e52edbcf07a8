"""Options of the verbs that look after an application: which one, and with which settings and log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .command import AnyFunction
from .options import data_dir_option, log_option, parse_settings

if TYPE_CHECKING:
    from penstock.config import Application


def application_options(command: AnyFunction) -> AnyFunction:
    """Add --application-id, --set, --log and --data-dir, from which `find_application` makes the application."""
    for option in (
        data_dir_option,
        log_option,
        click.option(
            "--set",
            "-s",
            "given",
            multiple=True,
            metavar="NAME=VALUE",
            help="A setting of the application, as `penstock run` was given it. Repeatable.",
        ),
        click.option("--application-id", metavar="ID", help="The id of a Topology, or another id for an Application."),
    ):
        command = option(command)
    return command


def find_application(
    target: str, application_id: str | None, given: Sequence[str], log: str | None, data_dir: str | None
) -> Application:
    """Return the application that MODULE:ATTR and the options name, as `penstock run` would run it."""
    from .target import load_application

    settings = dict(parse_settings(given))
    settings.update({name: value for name, value in (("log", log), ("data_dir", data_dir)) if value is not None})
    return load_application(target, application_id, settings)
