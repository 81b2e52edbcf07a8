"""The verb `stores`: lists an application's stores, drops or takes back parked ones, and measures store backends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .command import Group, verbose_option
from .failures import FAILED
from .options import application_options, confirm, find_application, leased, open_application
from .output import note, print_rows, print_table, print_text

if TYPE_CHECKING:
    from penstock.plugins.engine.program.check import SavedStore
    from penstock.plugins.testing.backend_speed import Speed


@click.group(
    cls=Group,
    examples=[
        ("Which there are, and which are parked", "penstock stores list shop:application"),
        ("The new version was rolled back for good", "penstock stores drop shop:application discounts"),
        ("It comes back, and what it missed does not matter", "penstock stores accept shop:application discounts"),
        ("Which backend is fast here", "penstock stores bench"),
    ],
)  # fmt: skip
def stores() -> None:
    """List, drop and take back the stores of an application, and measure store backends.

    A store that the program does not name any more is parked: its content stays. It comes back by itself when its tasks
    have processed nothing since.
    """


@stores.command("list", examples=[("For a program", "penstock stores list shop:application --json")])
@click.argument("target", metavar="MODULE:ATTR")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@application_options
def list_stores(target: str, as_json: bool, **where: Any) -> None:
    """List the stores that the application MODULE:ATTR saved when it ran last, and the parked ones."""
    from penstock.plugins.engine.program.check import saved_stores

    application = find_application(target, **where)
    with open_application(application) as (application, log):
        found = saved_stores(application.id, log)
    cells = (
        (each.name, each.subtopology, each.backend, "yes" if each.logged else "no", state_of(each)) for each in found
    )
    columns, none = ["store", "sub-topology", "backend", "logged", "state"], f"{application.id} has saved no stores"
    print_rows([asdict(each) for each in found], as_json, columns, cells, none=none)


def state_of(store: SavedStore) -> str:
    """Return whether a store is in use, in words."""
    if not store.parked:
        return "in use"
    missed = f", missed {', '.join(store.missed)}" if store.missed else ""
    return f"parked{missed}{', accepted' if store.accepted else ''}"


@stores.verb(
    ("Of a version that will not come back", "penstock stores drop shop:application discounts"),
    ("Its serde has changed: it may start empty", "penstock stores drop shop:application sums --yes"),
)  # fmt: skip
@click.argument("target", metavar="MODULE:ATTR")
@click.argument("names", metavar="STORE...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Don't ask; needed where stdin is no terminal.")
@application_options
def drop(target: str, names: Sequence[str], yes: bool, **where: Any) -> None:
    """Give up the content of stores of the application MODULE:ATTR, parked ones or such that are in use.

    A store of that name starts empty from the next run on. Positions and other stores stay as they are. It is refused
    while the application runs.
    """
    from penstock.plugins.engine.program.check import drop_stores

    application = find_application(target, **where)
    with leased(application) as (application, log, lease):
        confirm(f"Drop the content of {', '.join(names)} in {application.id}?", yes)
        drop_stores(application, log, lease, names)
    note(f"{', '.join(names)} of {application.id}: dropped; a store of that name starts empty")


@stores.command(
    examples=[("As it was when it was parked", "penstock stores accept shop:application discounts")]
)  # fmt: skip
@click.argument("target", metavar="MODULE:ATTR")
@click.argument("names", metavar="STORE...", nargs=-1, required=True)
@application_options
def accept(target: str, names: Sequence[str], **where: Any) -> None:
    """Let parked stores of the application MODULE:ATTR come back with their old content.

    They have missed what was processed since. It is refused while the application runs.
    """
    from penstock.plugins.engine.program.check import accept_stores

    application = find_application(target, **where)
    with leased(application) as (application, log, lease):
        accept_stores(application.id, log, lease, names)
    note(f"{', '.join(names)} of {application.id}: comes back as it was when a program names it again")


@stores.verb(
    ("Every installed backend", "penstock stores bench"),
    ("Two, with small state on the disk that will have it", "penstock stores bench --backend lmdb --backend contrib.rocksdb --entries 20000 --directory /data"),
)  # fmt: skip
@click.option("--backend", "names", metavar="NAME", multiple=True, help="Only this one; repeatable.")
@click.option("--entries", type=click.IntRange(1), default=200_000, show_default=True, help="Entries of the store.")
@click.option("--value-bytes", type=click.IntRange(0), default=100, show_default=True, help="Bytes of each value.")
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where to write, in new directories that are deleted; the system's temporary directory by default.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown"]),
    default="table",
    show_default=True,
    help="Of the table.",
)
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures to this file.")
@verbose_option
def bench(
    names: Sequence[str], entries: int, value_bytes: int, directory: Path | None, form: str, file: Path | None
) -> None:
    """Measure the installed store backends: speed, size on disk and memory.

    Each runs in a process of its own. Other work on the machine makes the figures worse.

    Ends with 1 if a backend cannot be opened. Without --backend, those that need a package which is not installed are
    left out.
    """
    import json

    from penstock.plugins.testing.backend_speed import measure_backends

    found = list(measure_backends(names, entries=entries, value_bytes=value_bytes, directory=directory))
    if file is not None:
        file.write_text(json.dumps([asdict(each) for each in found], indent=2) + "\n")
    rows = [_figures(each) for each in found if each.error is None]
    if form == "markdown":
        lines = [_COLUMNS, ["---", *["---:"] * (len(_COLUMNS) - 1)], *rows]
        print_text("\n".join(f"| {' | '.join(line)} |" for line in lines))
    elif rows:
        print_table(_COLUMNS, rows, numbers=_COLUMNS[1:])
    for each in found:
        if each.error is not None:
            note(f"{each.backend}: not measured: {each.error}")
    if any(each.error is not None and each.is_installed for each in found):
        sys.exit(FAILED)


_COLUMNS = ["backend", "get/s", "put/s", "commit ms", "range/s", "restore/s", "disk MB", "memory MB"]


def _figures(speed: Speed) -> list[str]:
    megabytes = [None if each is None else each / 1e6 for each in (speed.disk_bytes, speed.memory_bytes)]
    return [
        speed.backend,
        f"{speed.get:,.0f}",
        f"{speed.put:,.0f}",
        f"{speed.commit_ms:,.1f}",
        f"{speed.range:,.0f}",
        f"{speed.restore:,.0f}",
        *("?" if megabyte is None else f"{megabyte:,.1f}" for megabyte in megabytes),
    ]
