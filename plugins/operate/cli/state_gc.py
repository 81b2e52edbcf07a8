"""The verb `state gc`: lists and deletes what ended queries of `transform` have left."""

from __future__ import annotations

from typing import Any

import click

from .command import verb
from .options import application_options, find_application
from .output import count, note, print_json, print_table


@verb(
    ("What none of two queries uses", "penstock state gc clicks:application --checkpoint checkpoint --checkpoint s3://bucket/checkpoint"),
    ("Delete it", "penstock state gc clicks:application --checkpoint checkpoint --yes"),
    name="gc",
)  # fmt: skip
@click.option(
    "--checkpoint",
    "checkpoints",
    metavar="LOCATION",
    multiple=True,
    required=True,
    help="A checkpoint whose state stays: of each query that runs, or is to be started again. Repeatable.",
)
@click.option("--yes", "-y", is_flag=True, help="Delete what is listed.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@application_options
def collect(target: str, checkpoints: tuple[str, ...], yes: bool, as_json: bool, **where: Any) -> None:
    """List what queries of `transform` of MODULE:ATTR have left, and delete it with --yes.

    These are folders of the local state on this machine and of the changelog that none of the named checkpoints uses.
    Folders of `penstock run` are never listed. A query that runs on this machine keeps its folders, whether named or
    not.
    """
    from penstock.plugins.engine.program.ended_queries import delete_folders, ended_queries, query_of

    application = find_application(target, **where)
    queries = {query_of(each) for each in checkpoints}
    folders = ended_queries(application, queries)
    deleted = set(delete_folders(application, folders) if yes else ())
    used = {each.query for each in folders if each.is_used or (yes and each not in deleted)}
    rows = [
        {
            "kind": each.kind,
            "query": each.query,
            "task": each.task,
            "bytes": each.bytes,
            "state": "used" if each.query in used else "deleted" if yes else "ended",
            "folder": each.place,
        }
        for each in folders
    ]
    if as_json:
        print_json(rows)
    elif rows:
        cells = [list({**row, "bytes": f"{row['bytes']:,}"}.values()) for row in rows]
        print_table(list(rows[0]), cells, numbers=["bytes"])
    for query in sorted(used):
        note(f"query {query} runs on this machine, and keeps its folders")
    if not folders:
        note(f"{application.id}: no ended query has left anything")
    elif yes:
        size = sum(each.bytes for each in deleted)
        note(f"{application.id}: {count(len(deleted), 'folder')} deleted, {count(size, 'byte')}")
    else:
        note("nothing is deleted; --yes deletes the folders of ended queries")
