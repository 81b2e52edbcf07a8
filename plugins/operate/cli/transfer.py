"""The verbs `state backup`, `state restore`, `changelog` and `reshard`: state in another place, or in other tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .command import Group, verb
from .options import (
    application_options,
    by_name,
    confirm,
    find_application,
    leased,
    load_partitioners,
    name_and_value,
    open_application,
    open_log,
)
from .output import count, note, print_json, print_rows, print_table, print_text

if TYPE_CHECKING:
    from penstock import Application
    from penstock.plugins.state.transfer.backups import Backup
    from penstock.plugins.state.transfer.reshard import ReshardPlan


_location = click.argument("location", metavar="LOCATION")


@verb(
    ("To a directory, beside the running application", "penstock state backup shop:application /backups"),
    ("To a bucket", "penstock state backup shop:application s3://bucket/backups"),
)
@_location
@click.option(
    "--patience",
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long to look for a moment without a commit, where tasks are connected by repartition topics.",
)
@click.option("--whole", is_flag=True, help="Write all state again, e.g. because an earlier file is damaged.")
@click.option("--keep", type=int, metavar="N", help="Then delete all backups of the application there but the last N.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object with what was written.")
@application_options
def backup(
    target: str, location: str, patience: str, whole: bool, keep: int | None, as_json: bool, **where: Any
) -> None:
    """Write the state of all tasks of MODULE:ATTR to LOCATION: one consistent version, with the positions.

    LOCATION is a directory, or a URL such as s3://BUCKET/FOLDER. The application may run; its tasks rest for half a
    second where they have to. Only what is new since the last backup there is written. The backup counts once all of it
    is there.
    """
    from penstock import duration_ms
    from penstock.plugins.state.transfer.backups import Catalog, back_up, check_keep, prune

    seconds = duration_ms(patience, "--patience") / 1000
    check_keep(keep)
    application = find_application(target, **where)
    with open_application(application) as (stored, log):
        written = back_up(stored, log, location, named=application.id, whole=whole, patience_seconds=seconds, say=note)
    made = written.backup
    deleted = [] if keep is None else prune(Catalog(location, application.id), keep, note)
    if as_json:
        tasks = {"whole": written.whole, "new": written.new, "unchanged": written.unchanged}
        print_json({**_shown(made), **tasks, "deleted": deleted})
    else:
        numbers = [(written.whole, "whole"), (written.new, "what is new"), (written.unchanged, "unchanged")]
        parts = [f"{count(len(each), 'task')} {how}" for each, how in numbers if each]
        print_text(f"backup {made.name} of {made.application_id}: {', '.join(parts) or 'no state'}")
        _say_deleted(deleted)


@verb(
    ("Which there are", "penstock state backups shop:application /backups"),
    ("Delete all but the last week's", "penstock state backups shop:application /backups --keep 7"),
)
@_location
@click.option(
    "--keep", type=int, metavar="N", help="First delete all but the last N, and files that none of these needs."
)
@click.option("--of", metavar="ID", help="The id of the application that was backed up, if it is another one.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@application_options
def backups(target: str, location: str, keep: int | None, of: str | None, as_json: bool, **where: Any) -> None:
    """List the backups of MODULE:ATTR in LOCATION, the oldest first."""
    from penstock.plugins.state.transfer.backups import Catalog, check_keep, prune

    check_keep(keep)
    catalog = Catalog(location, of or find_application(target, **where).id)
    if keep is not None:
        _say_deleted(prune(catalog, keep, note))
    found = [_shown(catalog.read(name)) for name in catalog.names()]
    cells = ((each["name"], each["application_id"], each["tasks"]) for each in found)
    none = f"{catalog.where} has no backups of {catalog.application_id}"
    print_rows(found, as_json, ["backup", "application", "tasks"], cells, none=none)


def _say_deleted(names: Sequence[str]) -> None:
    if names:
        note(f"deleted: {', '.join(names)}")


def _shown(backup: Backup) -> dict[str, Any]:
    return {
        "name": backup.name,
        "application_id": backup.application_id,
        "made_at_ms": backup.made_at_ms,
        "tasks": sum(commit is not None for commit in backup.commits.values()),
        "outputs": [
            {"topic": each.topic, "partition": each.partition, "end": end} for each, end in backup.outputs.items()
        ],
    }


@verb(
    ("On a new machine, from the last backup", "penstock state restore shop:application /backups"),
    ("Beside the application, under another id", "penstock state restore shop:application /backups --of shop --application-id shop-copy"),
    ("Is every file whole?", "penstock state restore shop:application /backups --check"),
)  # fmt: skip
@_location
@click.option("--backup", "name", metavar="NAME", help="This backup; the last one by default.")
@click.option("--of", metavar="ID", help="The id of the application that was backed up, if it is another one.")
@click.option(
    "--other-topics",
    is_flag=True,
    help="Topics were made again, or are in another log, and have the same records at the same offsets.",
)
@click.option("--check", is_flag=True, help="Read every file and compare the topics; change nothing.")
@application_options
def restore(
    target: str, location: str, name: str | None, of: str | None, other_topics: bool, check: bool, **where: Any
) -> None:
    """Restore MODULE:ATTR from a backup in LOCATION, into its log and its changelog.

    The next run continues from the positions of the backup, exactly once. It is refused where the application has state
    or positions: `penstock reset` gives them up. A restore that was cut short is repeated; until then no run starts.
    """
    from penstock.plugins.state.transfer.backups import plan_check, plan_restore, restore_backup, verify_backup

    application = find_application(target, **where)
    of = of or application.id
    if check:
        with open_application(application) as (stored, log):
            plan = plan_check(stored, log, location, name=name, of=of, other_topics=other_topics)
            verify_backup(plan, note)
        print_text(f"backup {plan.backup.name} of {plan.backup.application_id} is whole, and fits the topics")
        return
    with leased(application) as (stored, log, lease):
        plan = plan_restore(stored, log, location, name=name, of=of, other_topics=other_topics)
        for remark in restore_backup(stored, log, plan, lease.renew, say=note):
            note(remark)
    print_text(f"{application.id} is restored from backup {plan.backup.name}: the next run continues from there")


@click.group(
    cls=Group,
    examples=[
        ("From a disk to a bucket", "penstock changelog move shop:application --from directory:/data/changelog --set changelog=directory:s3://bucket/changelog"),
    ],
)  # fmt: skip
def changelog() -> None:
    """Move the history of an application's state.

    The setting `changelog` says where that is kept.
    """


@changelog.verb(
    ("After the setting `changelog` was changed", "penstock changelog move shop:application --from directory:/data/changelog"),
    ("After `data_dir` was changed, which relative places are under", "penstock changelog move shop:application --from directory:/old/.penstock/changelog"),
)  # fmt: skip
@click.argument("target", metavar="MODULE:ATTR")
@click.option(
    "--from",
    "source",
    metavar="NAME:LOCATION",
    required=True,
    help="Where it was, as in the setting `changelog`, e.g. directory:/data/changelog.",
)
@click.option("--json", "as_json", is_flag=True, help="Show what was done as a JSON object.")
@application_options
def move(target: str, source: str, as_json: bool, **where: Any) -> None:
    """Copy the state of every task of MODULE:ATTR from another place to where the setting `changelog` says.

    A run is refused while the committed state of a task is not there. It is refused while the application runs, and can
    be repeated after it was killed. What is in the other place stays.
    """
    from penstock.plugins.engine.program.preparation import check_program
    from penstock.plugins.state.transfer.changelog_move import move_changelog
    from penstock.settings.secret import hide

    application = find_application(target, **where)
    with leased(application) as (application, log, lease):
        prepared = check_program(application, log)
        moved = move_changelog(prepared, log, source, lease.renew, lambda task: note(f"task {task} is copied"))
    if as_json:
        print_json({"application_id": application.id, "copied": moved.copied, "there": moved.there})
    else:
        print_text(f"{count(len(moved.copied), 'task')} copied, {count(len(moved.there), 'task')} there already")
    # If nothing was copied, it may be the same place under another name.
    if moved.copied:
        note(f"what {application.id} has in {hide('changelog', source)} is not used any more, and can be deleted")


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
    if (partitions is not None) + accepts + undoes != 1:
        raise click.UsageError("say one of --partitions N, --accept and --undo")
    if accepts or undoes:
        _end(application, undoes, yes)
        return
    assert partitions is not None
    renamed = by_name("--source", (name_and_value("--source", source, ", e.g. orders=orders-12") for source in sources))
    chosen = load_partitioners(partitioners)

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


def _show(plan: ReshardPlan, log: Any, *, as_json: bool) -> None:
    from penstock.plugins.state.transfer.reshard.plan import task_count

    application, then = plan.under(plan.stored.id + ".new", log)
    rows = [
        {
            "subtopology": subtopology.id,
            "tasks": task_count(plan.tasks, subtopology.id),
            "then": task_count(then, subtopology.id),
            "stores": sorted(store.name for store in subtopology.stores if store.name not in plan.dropped),
        }
        for subtopology in application.program.subtopologies
    ]
    if as_json:
        print_json({"application_id": plan.id, "sources": plan.sources, "subtopologies": rows})
        return
    print_table(
        ["sub-topology", "tasks", "then", "stores"],
        [(row["subtopology"], row["tasks"], row["then"], ", ".join(row["stores"])) for row in rows],  # type: ignore[arg-type]
        numbers=["tasks", "then"],
    )
    for old, new in plan.sources.items():
        print_text(f"reads {new} in place of {old}")
    for name in sorted(plan.dropped):
        print_text(f"store {name} starts empty")
