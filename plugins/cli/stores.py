"""The verb `stores`: lists an application's stores, and drops or takes back parked ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .application import application_options, confirm, find_application
from .command import Group, verbose_option
from .options import open_log
from .output import note, print_json, print_table

if TYPE_CHECKING:
    from penstock.log import Log
    from penstock.settings.application import Application


@click.group(
    cls=Group,
    examples=[
        ("Which there are, and which are parked", "penstock stores list shop:application"),
        ("The new version was rolled back for good", "penstock stores drop shop:application discounts"),
        ("It comes back, and what it missed does not matter", "penstock stores accept shop:application discounts"),
    ],
)  # fmt: skip
def stores() -> None:
    """List, drop and take back the stores of an application.

    A store that the program does not name any more is parked: its content stays. It comes back by itself when its tasks
    have processed nothing since.
    """


@stores.command("list", examples=[("For a program", "penstock stores list shop:application --json")])
@click.argument("target", metavar="MODULE:ATTR")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@application_options
@verbose_option
def list_stores(target: str, as_json: bool, **where: Any) -> None:
    """List the stores that the application MODULE:ATTR saved when it ran last, and the parked ones."""
    from penstock.plugins.runtime.application.saved_stores import saved_stores

    application = find_application(target, **where)
    with open_log(application.settings) as log:
        found = saved_stores(application.id, log)
    if as_json:
        print_json([asdict(each) for each in found])
    elif not found:
        note(f"{application.id} has saved no stores")
    else:
        print_table(
            ["store", "sub-topology", "backend", "logged", "state"],
            [
                (each.name, each.subtopology, each.backend or "?", {True: "yes", False: "no", None: "?"}[each.logged],
                 _state(each.parked, each.missed, each.accepted))
                for each in found
            ],
        )  # fmt: skip


def _state(parked: bool, missed: Sequence[str], accepted: bool) -> str:
    if not parked:
        return "in use"
    return "parked" + (f", missed {', '.join(missed)}" if missed else "") + (", accepted" if accepted else "")


@stores.command(
    examples=[
        ("Of a version that will not come back", "penstock stores drop shop:application discounts"),
        ("Its serde has changed: it may start empty", "penstock stores drop shop:application sums --yes"),
    ]
)  # fmt: skip
@click.argument("target", metavar="MODULE:ATTR")
@click.argument("names", metavar="STORE...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Don't ask; needed where stdin is no terminal.")
@application_options
@verbose_option
def drop(target: str, names: Sequence[str], yes: bool, **where: Any) -> None:
    """Give up the content of stores of the application MODULE:ATTR, parked ones or such that are in use.

    A store of that name starts empty from the next run on. Positions and other stores stay as they are. It is refused
    while the application runs.
    """
    from penstock.plugins.runtime.application.saved_stores import drop_stores

    with _at_rest(find_application(target, **where)) as (application, log, check_lease):
        confirm(f"Drop the content of {', '.join(names)} in {application.id}?", yes)
        drop_stores(application, log, names, check_lease)
    note(f"{', '.join(names)} of {application.id}: dropped; a store of that name starts empty")


@stores.command(
    examples=[("As it was when it was parked", "penstock stores accept shop:application discounts")]
)  # fmt: skip
@click.argument("target", metavar="MODULE:ATTR")
@click.argument("names", metavar="STORE...", nargs=-1, required=True)
@application_options
@verbose_option
def accept(target: str, names: Sequence[str], **where: Any) -> None:
    """Let parked stores of the application MODULE:ATTR come back with their old content.

    They have missed what was processed since. It is refused while the application runs.
    """
    from penstock.plugins.runtime.application.saved_stores import accept_stores

    with _at_rest(find_application(target, **where)) as (application, log, _):
        accept_stores(application.id, log, names)
    note(f"{', '.join(names)} of {application.id}: comes back as it was when a program names it again")


@contextmanager
def _at_rest(application: Application) -> Iterator[tuple[Application, Log, Callable[[], None]]]:
    """Hold the application's lease for the block."""
    from penstock.plugins.runtime.application.lease import LeaseKeeper

    with open_log(application.settings) as log:
        lease = LeaseKeeper(log, application.id)
        try:
            yield application, log, lease.check
        finally:
            lease.release()
