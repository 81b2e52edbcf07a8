"""The verb `reshard`: an application gets another number of partitions, with its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .command import verb
from .options import application_options, by_name, confirm, find_application, leased, name_and_value, open_log
from .output import note, print_json, print_table, print_text

if TYPE_CHECKING:
    from penstock import Application
    from penstock.plugins.state.transfer.reshard import ReshardPlan


@verb(
    ("What it would do", "penstock reshard shop:application --partitions 12 --source orders=orders-12 --dry-run"),
    ("Into a new topic, to which the writers have moved", "penstock reshard shop:application --partitions 12 --source orders=orders-12"),
    ("After the topic has grown, before the first record", "penstock reshard shop:application --partitions 12"),
    ("It works: delete what the layout before has", "penstock reshard shop:application --accept"),
    ("Back, before it has processed anything", "penstock reshard shop:application --undo"),
)  # fmt: skip
@click.option("--partitions", type=click.IntRange(1), metavar="N", help="The number of partitions that it gets.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="OLD=NEW",
    help="Read the topic NEW in place of OLD from then on. Repeatable. Without it, the topics have grown.",
)
@click.option(
    "--partitioner",
    "partitioners",
    multiple=True,
    metavar="TOPIC=MODULE:ATTR",
    help="The function by which the writers of a source topic choose the partition, if it is not Kafka's hash of the "
    "key. Repeatable.",
)
@click.option("--drop", "dropped", multiple=True, metavar="STORE", help="Let this store start empty. Repeatable.")
@click.option("--accept", "accepts", is_flag=True, help="Delete what the layout before the last resharding has.")
@click.option("--undo", "undoes", is_flag=True, help="Go back to it, if nothing was processed since.")
@click.option("--dry-run", "-n", is_flag=True, help="Show what would be done, and do nothing. No lease is taken.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask; needed where stdin is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Show it as a JSON object.")
@application_options
def reshard(
    target: str,
    partitions: int | None,
    sources: Sequence[str],
    partitioners: Sequence[str],
    dropped: Sequence[str],
    accepts: bool,
    undoes: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Give the application MODULE:ATTR another number of partitions, with its state.

    It first processes what its topics have, under the old number. Then it divides the state by the keys' partitions,
    writes it under the new number, and switches to that in one step. Until then nothing is changed, and a command that
    was killed is repeated. The old state stays until --accept. It is refused while the application runs.
    """
    from penstock.plugins.state.transfer import reshard as resharding

    application = find_application(target, **where)
    _check_one(partitions, accepts, undoes)
    if accepts or undoes:
        _end(application, undoes, yes)
        return
    assert partitions is not None
    renamed = by_name("--source", (name_and_value("--source", each, ", e.g. orders=orders-12") for each in sources))
    chosen = _functions(partitioners)

    def planned(log: Any) -> ReshardPlan:
        plan = resharding.plan_reshard(
            application, log, partitions, sources=renamed, dropped=dropped, partitioners=chosen
        )
        _show(plan, log, as_json=as_json)
        return plan

    if dry_run:
        with open_log(application.settings) as log:
            planned(log)
        return
    with leased(application) as (_, log, lease):
        plan = planned(log)
        confirm(f"Give {application.id} {partitions} partitions?", yes)
        done = resharding.reshard(plan, log, lease, note)
    note(
        f"{application.id} has {partitions} partitions, stored as {done.id}: start it"
        + "".join(f", with {new} in place of {old}" for old, new in renamed.items())
        + "; then `penstock reshard --accept` deletes the old state"
    )


def _check_one(partitions: int | None, accepts: bool, undoes: bool) -> None:
    given = [
        name
        for name, is_given in (("--partitions", partitions is not None), ("--accept", accepts), ("--undo", undoes))
        if is_given
    ]
    if len(given) != 1:
        raise click.UsageError("say one of --partitions N, --accept and --undo")


def _end(application: Application, undoes: bool, yes: bool) -> None:
    from penstock.plugins.state.transfer.reshard import accept, undo

    with leased(application) as (_, log, lease):
        if undoes:
            confirm(f"Let {application.id} go back to its layout before?", yes)
            undo(application, log, lease)
            note(f"{application.id} has its layout before again")
            return
        confirm(f"Delete what the layout of {application.id} before has?", yes)
        is_done = accept(application, log, lease)
    note(f"{application.id}: " + ("the layout before is deleted" if is_done else "there is no layout before"))


def _functions(given: Sequence[str]) -> dict[str, Any]:
    from .target import load_function

    named = (name_and_value("--partitioner", each, ", e.g. orders=shop:by_country") for each in given)
    return {topic: load_function(target) for topic, target in by_name("--partitioner", named).items()}


def _show(plan: ReshardPlan, log: Any, *, as_json: bool) -> None:
    from penstock.plugins.state.transfer.reshard.plan import task_count

    application, then = plan.under(plan.stored.id + ".new", log)
    rows = [
        {
            "subtopology": each.id,
            "tasks": task_count(plan.tasks, each.id),
            "then": task_count(then, each.id),
            "stores": sorted(store.name for store in each.stores if store.name not in plan.dropped),
        }
        for each in application.program.subtopologies
    ]
    if as_json:
        print_json({"application_id": plan.id, "sources": plan.sources, "subtopologies": rows})
        return
    print_table(
        ["sub-topology", "tasks", "then", "stores"],
        [(each["subtopology"], each["tasks"], each["then"], ", ".join(each["stores"])) for each in rows],  # type: ignore[arg-type]
        numbers=["tasks", "then"],
    )
    for old, new in plan.sources.items():
        print_text(f"reads {new} in place of {old}")
    for name in sorted(plan.dropped):
        print_text(f"store {name} starts empty")
