"""The verb `state`: reads the stores of an application at a committed version, whether it runs or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock import ConfigError, StoreError, may_precede, version_counter

from .command import Group, verb
from .options import (
    application_options,
    check_batch,
    checkpoint_options,
    find_application,
    find_checkpoint,
    open_application,
)
from .output import count, note, print_json, print_rows, print_table, print_text
from .state_files import export, import_store, reading_store, store_argument, task_option, times_options
from .stores import accept, drop, state_of
from .transfer import backup, backups, restore

if TYPE_CHECKING:
    from penstock import Application
    from penstock.plugins.engine.program.check import SavedStore
    from penstock.plugins.engine.program.saved_program import SavedTask
    from penstock.plugins.spark.dataframe.checkpoint import Checkpoint
    from penstock.plugins.state.copies.local_copies import Comparison

_target = click.argument("target", metavar="MODULE:ATTR")
_json_option = click.option("--json", "as_json", is_flag=True, help="JSON objects, one on each line.")


@click.group(
    cls=Group,
    examples=[
        ("Stores and tasks, and what this machine has of them", "penstock state list shop:application"),
        ("A value", "penstock state get shop:application totals anna"),
        ("Everything, for a program", "penstock state export shop:application totals --output totals.jsonl"),
    ],
)  # fmt: skip
def state() -> None:
    """Read the stores of an application, at the last commit of each task.

    It works from any machine that reaches the log and the changelog, beside a running application, which does not
    notice it. The first command restores a copy of the task's store from the changelog, under `state_dir`; later ones
    only read what came since.

    With `--checkpoint` the state of a query of `transform` is read, which is in Spark's checkpoint and the changelog.
    """


# ---------------------------------------------------------------- list


@state.verb(
    ("For a program", "penstock state list shop:application --json"),
    ("Of a query of `transform`", "penstock state list clicks:application --checkpoint s3a://bucket/checkpoint"),
    name="list",
)
@_target
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@checkpoint_options
@application_options
def list_state(target: str, as_json: bool, checkpoint: str | None, batch: int | None, **where: Any) -> None:
    """List the stores of each task of MODULE:ATTR: the committed version, and the copies on this machine.

    A copy is the task's local state, or that of this command. Entries are counted about, and for each store. A store
    that the program does not name any more is parked.
    """
    application = find_application(target, **where)
    check_batch(checkpoint, batch)
    rows = (
        _of_log(application) if checkpoint is None else _of_checkpoint(application, find_checkpoint(checkpoint, batch))
    )
    columns = ["task", "store", "kind", "backend", "logged", "state", "version", "copy", "entries", "behind", "bytes"]
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    data = [{name: value for name, value in row.items() if name != "state"} for row in rows]
    numbers = ["version", "entries", "behind", "bytes"]
    print_rows(data, as_json, columns, cells, numbers=numbers, none=f"{application.id} has saved no stores")


def _of_log(application: Application) -> list[dict[str, Any]]:
    from penstock.plugins.engine.program.check import saved_stores
    from penstock.plugins.engine.program.saved_program import saved_tasks

    with open_application(application) as (application, log):
        rows: list[dict[str, Any]] = []
        for task in saved_tasks(application.id, log).values():
            commit = log.last_commit(application.id, task.id, task.partitions)
            rows += _listed(application, task, task.id, None if commit is None else commit.version)
        saved = {store.name: store for store in saved_stores(application.id, log)}
    without_task = saved.keys() - {row["store"] for row in rows}
    no_task = {"task": None, "kind": None, "version": None}
    rows += [{**no_task, "store": name, **_NO_COPY} for name in sorted(without_task)]
    return [{**row, **_of_saved(saved[row["store"]])} for row in rows if row["store"] in saved]


def _of_checkpoint(application: Application, found: Checkpoint) -> list[dict[str, Any]]:
    found.check_application(application)
    aside = {"parked": False, "missed": [], "accepted": False, "state": "in use"}
    return [
        {**row, **aside}
        for task, commit in found.commits.items()
        for row in _listed(application, found.saved_task(task), str(task), commit.version)
    ]


_NO_COPY = {"copy": None, "directory": None, "entries": None, "behind": None, "bytes": None}


def _of_saved(store: SavedStore) -> dict[str, Any]:
    aside = {"parked": store.parked, "missed": list(store.missed), "accepted": store.accepted}
    return {"backend": store.backend, "logged": store.logged, **aside, "state": state_of(store)}


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else value


def _listed(application: Application, task: SavedTask, name: str, at: str | None) -> Iterator[dict[str, Any]]:
    """Yield a row for each store of a task and each copy of it on this machine; one without a copy if there is none.

    `name`: of the task in the rows. `at`: its committed version.
    """
    from penstock.plugins.state.copies.local_copies import local_copies

    version = None if at is None else version_counter(at)
    copies = local_copies(application, task)
    for store, kept in sorted(task.layouts.now.items()):
        first = {
            "task": name,
            "store": store,
            "kind": kept.kind,
            "backend": kept.backend,
            "logged": kept.logged,
            "version": version,
        }
        found = [copy for copy in copies if store in copy.entries]
        for each in found:
            behind = None if at is None or each.version is None else _behind(each.version, at)
            of_copy = {"entries": each.entries[store], "behind": behind, "bytes": each.bytes}
            yield {**first, "copy": each.kind, "directory": str(each.directory), **of_copy}
        if not found:
            yield {**first, **_NO_COPY}


def _behind(version: str, last: str) -> int | None:
    """Return the number of versions that a copy is behind the last one; None if it is from before a reset or restore."""
    if may_precede(version, last):
        return version_counter(last) - version_counter(version)
    return 0 if may_precede(last, version) else None


# ---------------------------------------------------------------- get, range, export


@state.verb(
    ("By the key", "penstock state get shop:application totals anna"),
    ("The windows that start within an hour", "penstock state get shop:application hourly anna --from 1700000000000 --to 1700003600000"),
    ("What was valid then", "penstock state get shop:application prices tea --from 1700000000000 --to 1700000000000"),
)  # fmt: skip
@_target
@store_argument
@click.argument("key", metavar="KEY")
@times_options
@task_option
@click.option("--all-tasks", is_flag=True, help="Look in each task, where a key need not be in its partition's.")
@_json_option
@checkpoint_options
@application_options
def get(
    target: str,
    store: str,
    key: str,
    first: int,
    last: int,
    task: str | None,
    all_tasks: bool,
    as_json: bool,
    checkpoint: str | None,
    batch: int | None,
    **where: Any,
) -> None:
    """Show the value of KEY in STORE of MODULE:ATTR, or its windows, sessions, versions, values or timers.

    The key is text for the serde str, and JSON for others, where text that is no JSON is taken for a string. It is
    looked up in the task that reads the partition of records with that key. The exit code is 1 if it has no value.
    """
    from penstock.plugins.state.copies.contents import entries_of

    application = find_application(target, **where)
    with reading_store(application, store, checkpoint, batch) as reading:
        reading.check_times(first, last)
        wanted = reading.text.key_of_text(key)
        tasks = reading.tasks(task) if task is not None or all_tasks else reading.tasks_of(wanted)
        found = 0
        for each in tasks:
            with reading.open(each) as (opened, version):
                for entry in entries_of(opened, wanted, first, last):
                    found += 1
                    _show(reading.text.entry(entry), each, version, as_json)
        if not found:
            elsewhere = "" if all_tasks or task is not None else "; --all-tasks looks in the others, too"
            raise StoreError(f"store {store!r} has no value of key {key!r} in task {', '.join(tasks)}{elsewhere}")


@state.verb(
    ("The first ten entries of each task", "penstock state range shop:application totals --limit 10"),
    ("Keys from a to b", "penstock state range shop:application totals --start a --end b --json"),
)  # fmt: skip
@_target
@store_argument
@times_options
@click.option("--start", metavar="KEY", help="From this key on, by the order of the serialized keys.")
@click.option("--end", metavar="KEY", help="Up to this key, included.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="So many entries of a task.")
@task_option
@_json_option
@checkpoint_options
@application_options
def range(
    target: str,
    store: str,
    first: int,
    last: int,
    start: str | None,
    end: str | None,
    limit: int,
    task: str | None,
    as_json: bool,
    checkpoint: str | None,
    batch: int | None,
    **where: Any,
) -> None:
    """Show entries of STORE of MODULE:ATTR, task by task, in the order of the keys."""
    from itertools import islice

    from penstock.plugins.state.copies.contents import entries

    application = find_application(target, **where)
    with reading_store(application, store, checkpoint, batch) as reading:
        reading.check_times(first, last)
        low, high = (None if each is None else reading.text.key_of_text(each) for each in (start, end))
        for each in reading.tasks(task):
            with reading.open(each) as (opened, version):
                found = entries(opened, low, high, first, last)
                for entry in islice(found, limit):
                    _show(reading.text.entry(entry), each, version, as_json)
                if next(found, None) is not None:
                    note(f"task {each} has more; --limit shows more of them")


# ---------------------------------------------------------------- verify


@state.verb(
    ("Where the tasks run", "penstock state verify shop:application"),
    ("In a script", "penstock state verify shop:application --json | jq 'select(.same | not)'"),
)  # fmt: skip
@_target
@click.option("--store", "stores", metavar="STORE", multiple=True, help="Only this store; repeatable.")
@task_option
@_json_option
@application_options
def verify(target: str, stores: tuple[str, ...], task: str | None, as_json: bool, **where: Any) -> None:
    """Compare the local state of MODULE:ATTR on this machine with its changelog, row by row, at one version.

    The application may run. The exit code is 1 if a row differs. Rows that have expired, and that this machine has
    freed, are counted.
    """
    from penstock.plugins.engine.program.saved_program import saved_tasks
    from penstock.plugins.engine.task.locations import Places
    from penstock.plugins.engine.task.temporary import TemporaryDirectory
    from penstock.plugins.state.copies.local_copies import compare
    from penstock.plugins.state.copies.replica import Replica

    application = find_application(target, **where)
    faults = 0
    with open_application(application) as (application, log):
        root = Places.of(application).root
        known = saved_tasks(application.id, log)
        if task is not None and task not in known:
            raise ConfigError(
                f"--task {task}: {application.id!r} has the tasks {', '.join(known) or 'none'} with stores"
            )
        here = [each for each in known if (root / each).is_dir()] if task is None else [task]
        if not here:
            raise StoreError(
                f"this machine has no local state of application {application.id!r} under {root}: run this where its "
                "tasks run, with the same state_dir"
            )
        for each in here:
            # Temporary: each comparison reads the changelog from its beginning.
            with (
                TemporaryDirectory("verify") as directory,
                Replica(application, each, log, directory / "task", stores=stores or None) as replica,
            ):
                for found in compare(application, replica):
                    faults += not found.is_same
                    _show_comparison(found, as_json)
    if faults:
        raise StoreError(
            f"{count(faults, 'store')} of {application.id!r} differ from the changelog: stop the application, delete "
            f"the directories of these tasks under {root}, and start it: it restores them"
        )


def _show_comparison(found: Comparison, as_json: bool) -> None:
    from penstock.plugins.serdes.json_text import bytes_to_json

    faults = {name: [bytes_to_json(key) for key in getattr(found, name)] for name in ("differing", "missing", "added")}
    first = {"task": found.task, "store": found.store, "version": found.version, "same": found.is_same}
    if as_json:
        print_json({**first, "rows": found.rows, "freed": found.freed, **faults})
        return
    parts = [f"{name} {len(keys):,} (e.g. {keys[0]!r})" for name, keys in faults.items() if keys]
    freed = f", {found.freed:,} freed" if found.freed else ""
    print_text(
        f"{found.task}  {found.store}: {count(found.rows, 'row')} the same{freed}; {', '.join(parts) or 'no faults'}"
    )


# ---------------------------------------------------------------- gc


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
    from penstock.plugins.engine.program.checkpoint_files import delete_folders, ended_queries, query_of

    application = find_application(target, **where)
    queries = {query_of(checkpoint) for checkpoint in checkpoints}
    folders = ended_queries(application, queries)
    deleted = set(delete_folders(application, folders) if yes else ())
    used = {folder.query for folder in folders if folder.is_used or (yes and folder not in deleted)}
    rows = [
        {
            "kind": folder.kind,
            "query": folder.query,
            "task": folder.task,
            "bytes": folder.bytes,
            "state": "used" if folder.query in used else "deleted" if yes else "ended",
            "folder": folder.place,
        }
        for folder in folders
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


for _command in (export, import_store, backup, backups, restore, drop, accept, collect):
    state.add_command(_command)


def _show(entry: dict[str, Any], task: str, version: str, as_json: bool) -> None:
    from penstock.plugins.serdes.json_text import dump_json

    if as_json:
        print_text(dump_json({"task": task, "version": version, **entry}).decode())
    else:
        rest = {name: value for name, value in entry.items() if name not in ("key", "value")}
        parts = [entry["key"], *([entry["value"]] if "value" in entry else []), *([rest] if rest else [])]
        print_text("\t".join(part if isinstance(part, str) else dump_json(part).decode() for part in parts))
