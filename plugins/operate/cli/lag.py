"""The verb `lag`: how far an application is behind."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .command import verb
from .failures import FAILED
from .options import application_options, follow_options, followed, timeout_option
from .output import note, print_json, print_table, print_text

if TYPE_CHECKING:
    from penstock import Application
    from penstock.plugins.engine.program.lag import PartitionLag


@verb(
    ("Every task's partitions, and the sum", "penstock lag wordcount:application"),
    ("Again every ten seconds until Ctrl-C", "penstock lag wordcount:application --follow --interval 10s"),
    ("In a script: exit code 1 if more than 10,000 records wait", "penstock lag wordcount:application --fail-above 10000 --quiet"),
    ("For a program", "penstock lag wordcount:application --json | jq .lag"),
)  # fmt: skip
@follow_options
@click.option(
    "--fail-above", type=click.IntRange(min=0), metavar="N", help="End with exit code 1 when the sum is above N."
)
@click.option("--quiet", "-q", is_flag=True, help="Print no table; for --fail-above.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object; with --follow one on each line.")
@timeout_option
@application_options
def lag(target: str, fail_above: int | None, quiet: bool, as_json: bool, follow: bool, **where: Any) -> None:
    """Show how many records wait for the application MODULE:ATTR.

    For each partition that a task reads: the next offset to read (- before the first commit), the end of the log,
    what lies between, and how much of that an open transaction of a producer holds back, if it does. It is read from the log: Spark
    is not needed, and the application may run or not.
    """
    from penstock.plugins.engine.program.lag import present_lag

    with followed(target, follow=follow, **where) as (application, log, steps):
        for _ in steps:
            rows = present_lag(application, log)
            total = sum(row.lag for row in rows)
            if not quiet:
                _show(application, rows, total, as_json=as_json, follow=follow)
            if fail_above is not None and total > fail_above:
                note(f"{application.id}: lag {total:,} is above {fail_above:,}")
                click.get_current_context().exit(FAILED)


def _show(application: Application, rows: list[PartitionLag], total: int, *, as_json: bool, follow: bool) -> None:
    if as_json:
        print_json({"application_id": application.id, "lag": total, "partitions": [asdict(row) for row in rows]})
        return
    held = sum(row.held for row in rows)
    columns = ["task", "topic", "partition", "position", "end", "lag", *["held back"] * bool(held)]
    table = [
        *((row.task, row.topic, row.partition, row.position, row.end, row.lag, row.held) for row in rows),
        ("total", "", "", "", "", total, held),
    ]
    print_table(columns, [row[: len(columns)] for row in table], numbers=columns[2:])
    if follow:
        print_text("\n")
