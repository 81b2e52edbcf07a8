"""The verbs `state backup`, `state backups` and `state restore`: the state of all tasks in a place of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .command import verb
from .options import application_options, find_application, leased, open_application
from .output import count, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from penstock.plugins.state.transfer.backups import Backup


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
    if as_json:
        print_json(found)
    elif not found:
        note(f"{catalog.where} has no backups of {catalog.application_id}")
    else:
        print_table(
            ["backup", "application", "tasks"],
            [[each["name"], each["application_id"], each["tasks"]] for each in found],
        )


def _say_deleted(names: Sequence[str]) -> None:
    if names:
        note(f"deleted: {', '.join(names)}")


def _shown(backup: Backup) -> dict[str, Any]:
    return {
        "name": backup.name,
        "application_id": backup.application_id,
        "made_at_ms": backup.made_at_ms,
        "tasks": sum(each is not None for each in backup.commits.values()),
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
