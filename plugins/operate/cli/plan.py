"""The verb `plan`: shows the effects of an application's start in advance."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock import ConfigError

from .command import verb
from .failures import FAILED
from .options import application_options, checkpoint_option, find_application, find_checkpoint, open_application
from .output import note, print_json, print_table, print_text

if TYPE_CHECKING:
    from penstock import Application
    from penstock.plugins.engine.program.plan import Plan

_FORMAT = "penstock plan 1"


@verb(
    ("Before a deployment, beside the running application", "penstock plan shop:application"),
    ("In CI, without the log: of the version that runs", "penstock plan shop:application --save shop.plan --partitions 4"),
    ("And of the one that is to follow it", "penstock plan shop:application --against shop.plan --strict"),
    ("Before a query of `transform` starts again", "penstock plan clicks:application --checkpoint checkpoint"),
)  # fmt: skip
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare with the program that --save wrote, in place of the one that ran last, without opening the log.",
)
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the program.")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="Do not open the log: topics that FILE does not have get so many partitions. With --checkpoint: the number that "
    "`transform` gets. [default: that of the checkpoint]",
)
@click.option("--strict", is_flag=True, help="End with 1, too, where a store is parked or a rollback would be refused.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object.")
@checkpoint_option
@application_options
def plan(
    target: str,
    against: Path | None,
    save: Path | None,
    partitions: int | None,
    strict: bool,
    as_json: bool,
    checkpoint: str | None,
    **where: Any,
) -> None:
    """Say what a start of the application MODULE:ATTR would do, and do nothing.

    Stores and topics that are kept, new, or no longer used, where inputs continue or begin, and whether the program
    that ran last can come back. A start makes the same checks. What only a start can check is left out: schemas at a
    registry, and whether a changelog that was moved has all states. With --checkpoint it is a start of `transform`.

    Ends with 1 if the start would be refused.
    """
    from penstock.plugins.engine.program.plan import made_plan

    application = find_application(target, **where)
    program: Any = None
    if checkpoint is not None:
        if against is not None or save is not None:
            raise click.UsageError("--against and --save are for a log: a checkpoint has the program that wrote it")
        from penstock.plugins.spark.dataframe.checkpoint import plan_of_checkpoint

        found = plan_of_checkpoint(application, find_checkpoint(checkpoint), partitions)
    elif against is None and partitions is None:
        with open_application(application) as (application, log):
            found, program = made_plan(application, log)
    else:
        from penstock.plugins.engine.program.plan import offline_log

        found, program = made_plan(application, offline_log(application, _read(against, application), partitions))
    if as_json:
        print_json(asdict(found))
    else:
        _print(found)
    if found.refusal is not None:
        sys.exit(FAILED)
    if save is not None:
        save.write_text(json.dumps({"format": _FORMAT, "application_id": application.id, "program": program}) + "\n")
        note(f"written to {save}")
    if strict and not found.is_reversible:
        sys.exit(FAILED)


def _read(path: Path | None, application: Application) -> Any:
    """Return the program of a file that --save wrote. Raises ConfigError for another file, or application."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text())
        is_plan = found["format"] == _FORMAT
    except (ValueError, KeyError, TypeError):
        is_plan = False
    if not is_plan:
        raise ConfigError(f"--against {path}: expected a file that `penstock plan --save` of this version wrote")
    if found["application_id"] != application.id:
        raise ConfigError(
            f"--against {path}: it is of application {found['application_id']!r}, and this is {application.id!r}"
        )
    return found["program"]


def _print(plan: Plan) -> None:
    if plan.refusal is not None:
        print_text(f"A start would be refused: {plan.refusal}")
        return
    begins = "starts afresh" if plan.is_first else "continues"
    print_text(f"{plan.application_id} {begins}, with {plan.tasks} task{'s' * (plan.tasks != 1)}.")
    stores = [
        (
            store.name,
            store.subtopology,
            "; ".join((store.fate if store.topic is None else f"filled from {store.topic}", *store.changes)),
        )
        for store in plan.stores
    ]
    topics = [
        (
            each.name,
            each.partitions,
            ", ".join(filter(None, (each.fate, each.where, "intermediate" if each.is_intermediate else None))),
        )
        for each in (*plan.inputs, *plan.internal_topics)
    ]
    for heading, rows in ((["store", "sub-topology", "content"], stores), (["topic", "partitions", "what"], topics)):
        if rows:
            print_text("")
            print_table(heading, rows)
    for topic in plan.circular_topics:
        print_text(
            f"\nTopic {topic!r} is written by what reads it: a reset, or a restored backup, processes again what the "
            "application has written there, beside what it writes anew. If nobody else writes to it (a topic for "
            "retries), name it in the setting intermediate_topics."
        )
    for name in plan.left_schedules:
        print_text(f"\nSchedules of processor {name!r} do not fire: the program has no processor of that name.")
    for each in plan.left_to_the_start:
        print_text(f"\n{each[0].upper()}{each[1:]}.")
    if plan.is_first:
        return
    print_text("")
    if plan.rollback:
        print_text(f"The program that ran last could not come back: {'; '.join(plan.rollback)}.")
        return
    until = f", and {', '.join(plan.parked)} with it until a record is processed" if plan.parked else ""
    print_text(f"The program that ran last can come back{until}.")
    for each in plan.rollback_after:
        print_text(f"Not while records wait: {each}.")
