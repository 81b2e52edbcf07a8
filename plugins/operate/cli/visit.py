"""The verb `visit`: has a processor's visitor called with every key of its store, and shows the progress of visits."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from penstock import ConfigError, SystemClock

from .command import verb
from .options import application_options, find_application, open_application
from .output import print_json, print_table, print_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.plugins.engine.program.visits import VisitStatus


@verb(
    ("Call the method `rename` of a processor with every key of its store", "penstock visit shop:application rename"),
    ("With an argument; of the node `prices`, where several have such a method", "penstock visit shop:application prices.scale --argument '{\"factor\": 100}'"),
    ("How far visits are", "penstock visit shop:application"),
    ("Give one up; what it has done stays", "penstock visit shop:application rename --stop"),
)  # fmt: skip
@click.argument("visitor", required=False)
@click.option("--argument", metavar="JSON", help="JSON data with which the method is called, behind key and value.")
@click.option("--stop", is_flag=True, help="Stop the visits of VISITOR that are not over.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object instead of a table.")
@application_options
def visit(target: str, visitor: str | None, argument: str | None, stop: bool, as_json: bool, **where: Any) -> None:
    """Have every key of a store visited in the application MODULE:ATTR; without VISITOR, show how far visits are.

    VISITOR is a method of a processor that is marked with `@visitor`. The application continues meanwhile. The visit is a
    note in the log: a run takes it up within some seconds; if none does now, the next one.
    """
    if visitor is None and (stop or argument is not None):
        raise click.UsageError("--stop and --argument are about a VISITOR: name it")
    if stop and argument is not None:
        raise click.UsageError("say one of --stop and --argument")
    with open_application(find_application(target, **where)) as (application, log):
        from penstock.plugins.engine.program import visits

        if visitor is not None and stop:
            stopped = visits.stop_visits(application, log, visitor)
            if not as_json:
                print_text(f"{application.id}: {stopped} visit{'' if stopped == 1 else 's'} stopped\n")
        elif visitor is not None:
            visits.ask_for_visit(application, log, visitor, SystemClock().now_ms(), _data(argument))
        if as_json:
            print_json({"application_id": application.id, "visits": _rows(visits.visit_statuses(application, log))})
        elif not stop:
            _show(_rows(visits.visit_statuses(application, log)))


def _data(argument: str | None) -> Any:
    try:
        return None if argument is None else json.loads(argument, parse_constant=_refuse)
    except ValueError as error:
        raise ConfigError(f"--argument: expected JSON, found {argument!r}: {error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


def _rows(statuses: Sequence[VisitStatus]) -> list[dict[str, Any]]:
    return [
        {
            "visitor": status.visit.visitor,
            "asked": datetime.fromtimestamp(status.visit.number / 1000, UTC).isoformat(timespec="seconds"),
            "argument": status.visit.argument,
            "state": "stopped" if status.visit.is_stopped else "over" if status.is_over else "not over",
            "tasks": status.tasks,
            "done": status.done,
            "visited": status.visited,
        }
        for status in statuses
    ]


def _show(rows: Sequence[dict[str, Any]]) -> None:
    columns = ["visitor", "asked", "argument", "state", "tasks", "done", "entries"]
    arguments = ["" if row["argument"] is None else json.dumps(row["argument"]) for row in rows]
    cells = [list({**row, "argument": argument}.values()) for row, argument in zip(rows, arguments, strict=True)]
    print_table(columns, cells, numbers=columns[4:])
