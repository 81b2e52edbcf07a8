"""The verb `changelog`: moves the history of an application's state to another place."""

from __future__ import annotations

from typing import Any

import click

from .command import Group
from .options import application_options, find_application, leased
from .output import count, note, print_json, print_text


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
