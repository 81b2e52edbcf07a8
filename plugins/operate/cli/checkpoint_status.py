"""What `penstock status` shows of a checkpoint of `transform`: its batch, and each task with its state."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock import PenstockError, version_counter

from .output import note, print_json, print_table, print_text

if TYPE_CHECKING:
    from penstock import Application, TaskId
    from penstock.plugins.spark.dataframe.checkpoint import Checkpoint


def show_checkpoint(application: Application, found: Checkpoint, as_json: bool) -> None:
    """Print what a checkpoint has. Raises IncompatibleStateError for that of another application."""
    found.check_application(application)
    tasks = [_task(application, found, task) for task in found.commits]
    same = _is_of_program(application, found)
    if as_json:
        place = {"checkpoint": found.place, "query": found.query, "batch": found.batch}
        names = {"application_id": application.id, **place, "partitions": found.partitions, "same_program": same}
        print_json({**names, "tasks": tasks})
        return
    print_text(
        f"{application.id}: query {found.query}, as of batch {found.batch} of checkpoint {found.place}\n"
        + (
            "the program that wrote it is this one\n\n"
            if same
            else "another program wrote it: `penstock plan` with --checkpoint says what a start of this one would do\n\n"
        )
    )
    columns = ["task", "version", "read", "stream time", "entries here", "bytes here", "changelog bytes"]
    print_table(columns, [_cells(each) for each in tasks], numbers=["version", *columns[4:]])


def _is_of_program(application: Application, found: Checkpoint) -> bool:
    """Return whether all tasks were last run by this program, as far as state and positions depend on it."""
    counts = dict.fromkeys(application.program.topics(), found.partitions)
    now = application.program.fingerprint(application.program.resolve(counts, application.id), application.settings)
    return all(each.fingerprint == now for each in found.commits.values())


def _task(application: Application, found: Checkpoint, task: TaskId) -> dict[str, Any]:
    from penstock.plugins.engine.program.ended_queries import changelog_bytes
    from penstock.plugins.state.copies.local_copies import local_copies

    commit, saved = found.commits[task], found.saved_task(task)
    engine = json.loads(commit.engine_state) if commit.engine_state else {}
    copies = local_copies(application, saved)
    entries = {name: count for each in copies for name, count in each.entries.items()}
    size = None
    if saved.layouts.now:
        try:
            size = changelog_bytes(application, saved.id)
        except PenstockError as error:
            note(f"task {task}: {error}")
    return {
        "task": str(task),
        "version": version_counter(commit.version),
        "read": dict(commit.read),
        "stream_time_ms": None if engine.get("stream", -1) < 0 else engine["stream"],
        "wall_clock_ms": engine.get("wall"),
        "stores": [
            {"store": name, "kind": kept.kind, "backend": kept.backend, "entries_here": entries.get(name)}
            for name, kept in sorted(saved.layouts.now.items())
        ],
        "bytes_here": sum(each.bytes for each in copies) if copies else None,
        "changelog_bytes": size,
    }


def _cells(task: dict[str, Any]) -> list[object]:
    at, stores = task["stream_time_ms"], task["stores"]
    known = [each["entries_here"] for each in stores if each["entries_here"] is not None]
    time = None if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
    sizes = [sum(known) if known else None, task["bytes_here"], task["changelog_bytes"]]
    read = ", ".join(f"{topic} {number:,}" for topic, number in sorted(task["read"].items()))
    return [task["task"], task["version"], read, time, *(None if each is None else f"{each:,}" for each in sizes)]
