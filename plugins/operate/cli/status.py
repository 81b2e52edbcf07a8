"""The verbs `status`, `lag` and `health`: a driver's report of its run, and the application's lag."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from penstock import PenstockError, SystemClock, TopicPartition, TopologyError, UnknownTopicError, version_counter
from penstock.plugins.operate.console.watch import View
from penstock.plugins.operate.console.wording import age, ago, length, opening, visiting

from .command import verb
from .failures import FAILED
from .options import (
    application_options,
    check_batch,
    checkpoint_options,
    find_application,
    find_checkpoint,
    follow_options,
    followed,
    timeout_option,
)
from .output import count, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from penstock import Application, Log, TaskId
    from penstock.plugins.engine.program.lag import PartitionLag
    from penstock.plugins.engine.program.run_status import RunStatus, TaskStatus
    from penstock.plugins.spark.dataframe.checkpoint import Checkpoint


_SOON_SECONDS = 86_400.0
"""Tasks of a run repeat their commits days before the log deletes them."""


@verb(
    ("Whether it runs, and each task: where, how far behind, how fast", "penstock status wordcount:application"),
    ("Again every ten seconds until Ctrl-C", "penstock status wordcount:application --follow --interval 10s"),
    ("In a script", "penstock status wordcount:application --json | jq -r .state"),
    ("A query of `transform`", "penstock status clicks:application --checkpoint checkpoint"),
)
@follow_options
@click.option("--json", "as_json", is_flag=True, help="A JSON object; with --follow one on each line.")
@timeout_option
@checkpoint_options
@application_options
def status(target: str, as_json: bool, follow: bool, checkpoint: str | None, batch: int | None, **where: Any) -> None:
    """Show what the application MODULE:ATTR does, or how its last run ended.

    Where each task runs, its lag, its rate, its last commit, what it restored, and what went wrong since the start.
    Counts and places are what the driver wrote to the log, every five seconds; positions and lag are read now.
    Spark is not needed, and this may run on another host.

    With --checkpoint: which batch the checkpoint of a query of `transform` has, and of each task the version of its
    state, how many records it has read, and what the state takes.
    """
    check_batch(checkpoint, batch)
    if checkpoint is not None:
        if follow or where.pop("timeout") is not None:
            raise click.UsageError("--follow and --timeout are for a log: with --checkpoint it is shown once")
        del where["interval"]
        show_checkpoint(find_application(target, **where), find_checkpoint(checkpoint, batch), as_json)
        return
    from penstock.plugins.engine.program.lag import held_back, present_lag

    with followed(target, follow=follow, **where) as (application, log, steps):
        for _ in steps:
            run, unknown = latest_run(application, log), ""
            try:
                lag = present_lag(application, log)
            except (TopologyError, UnknownTopicError) as error:  # a source topic was deleted, or was given partitions
                lag, unknown = [], str(error)
            committed = [TopicPartition(each.topic, each.partition) for each in lag if each.position is not None]
            kept_until = log.commits_kept_until(application.id, committed)
            now_ms = SystemClock().now_ms()
            if as_json:
                print_json(_data(run, lag, unknown, kept_until, now_ms))
            else:
                _show(run, View(run.application_id, now_ms, run, lag), unknown, kept_until, held_back(lag))
                if follow:
                    print_text("\n")


def latest_run(application: Application, log: Log) -> RunStatus:
    """Return the status of an application's latest run. Raises PenstockError if there is none."""
    from penstock.plugins.engine.program.run_status import StatusTopic

    run = StatusTopic(log, application.id).read()
    if run is None:
        raise PenstockError(
            f"application {application.id!r} has no status in the log {application.settings.shown('log')}: it has not run there "
            "since its last reset; check --log and --data-dir, or start it with `penstock run`"
        )
    return run


def _data(run: RunStatus, lag: list[PartitionLag], unknown: str, kept_until: int | None, now_ms: int) -> dict[str, Any]:
    """Return everything for a program, with the lag of each task's partitions; `unknown`: why it is not known."""
    found = asdict(run)
    partitions: dict[str, list[dict[str, Any]]] = {}
    for each in lag:
        row = asdict(each)
        partitions.setdefault(row.pop("task"), []).append(row)
    known = {each["task"]: each for each in found["tasks"]}
    # A driver that has not heard of any task yet lists none, and one of another program lists others.
    tasks = [known.get(name, {"task": name}) for name in {**partitions, **known}]
    for task in tasks:
        task["partitions"] = partitions.get(task["task"], [])
        task["lag"] = None if unknown else sum(each["lag"] for each in task["partitions"])
    first = {
        "application_id": found.pop("application_id"),
        "state": run.state(now_ms),
        "phase": found.pop("phase"),
        "age_seconds": round(age(run.written_ms, now_ms), 3),
        "lag": None if unknown else sum(each.lag for each in lag),
        "lag_unknown": unknown or None,
        "commits_kept_until_ms": kept_until,
    }
    return {**first, **found, "tasks": tasks}


def _show(run: RunStatus, view: View, unknown: str, kept_until: int | None, held: str) -> None:
    now_ms = view.now_ms
    behind = "" if unknown else f"lag {view.total_lag:,}" + (f", {held}" if held else "")
    lines = [*_sentences(run, behind, now_ms), unknown and f"lag unknown: {unknown}", _expiry(run, kept_until, now_ms)]
    print_text("\n".join(filter(None, lines)) + "\n\n")
    print_table(
        ["task", "slot", "where", "lag", "records/s", "in", "out", "dropped", "last commit", "restored", "opened"],
        [_row(task.name, task.status, task.lag, view.state == "running", now_ms) for task in view.tasks()],
        numbers=["slot", "lag", "records/s", "in", "out", "dropped", "last commit", "restored"],
    )
    if run.events:
        print_text("\n")
        print_table(["ago", "what happened"], [(ago(event.at_ms, now_ms), event.text) for event in run.events])


def _sentences(run: RunStatus, behind: str, now_ms: int) -> list[str]:
    state = run.state(now_ms)
    since = ago(run.written_ms, now_ms)
    first = {
        "running": f"{run.phase or 'running'} for {length(age(run.since_ms, now_ms))}, as of {since} ago",
        "stopped": f"not running since {since} ago; it ended by {run.ended_by}",
        "failed": f"not running since {since} ago; it failed: {run.error}",
        "lost": f"not running: its driver has said nothing for {since}; it was killed, is frozen, or cannot reach the log",
    }[state]
    parts = [
        count(run.records_in) + f" in, {run.records_out:,} out",
        f"{run.dropped:,} dropped" if run.dropped else "",
        count(run.commits, "commit"),
        f"{run.restored:,} restored" if run.restored else "",
        f"{run.records_per_second:,.0f} records/s" if state == "running" else "",
        behind,
    ]
    again = [f"{reason} {times}" for reason, times in run.openings.items() if reason != "first"]
    troubles = [
        f"workers lost: {run.workers_lost}" if run.workers_lost else "",
        f"tasks opened again: {', '.join(again)}" if again else "",
        f"slots moved: {', '.join(f'{reason} {times}' for reason, times in run.moves.items())}" if run.moves else "",
    ]
    lines = [
        f"{run.application_id}: {first}",
        f"driver {run.driver}, trigger {run.trigger}",
        f"paused: sub-topology {', '.join(map(str, run.paused))}" if run.paused and state == "running" else "",
        visiting(run) if state == "running" else "",
        " · ".join(filter(None, parts)),
        " · ".join(filter(None, troubles)),
    ]
    return [line for line in lines if line]


def _expiry(run: RunStatus, kept_until: int | None, now_ms: int) -> str:
    """Return how long the log keeps committed positions, as advice; "" while a running task will repeat them in time."""
    if kept_until is None:
        return ""
    left = (kept_until - now_ms) / 1000
    how_long = f"for another {length(left)}" if left > 0 else "no longer"
    if run.state(now_ms) != "running":
        return f"the log keeps its committed positions {how_long}: start it before that, or the start is refused"
    if left < _SOON_SECONDS:
        return (
            f"the log keeps a committed position {how_long}, and its task does not repeat the commit: look at its log"
        )
    return ""


def _row(name: str, task: TaskStatus | None, lag: int | None, is_running: bool, now_ms: int) -> list[object]:
    behind = "-" if lag is None else f"{lag:,}"
    if task is None:
        return [name, "-", "-", behind, *["-"] * 7]
    where = f"{task.host}/{task.process}" if task.process is not None and is_running else "-"
    return [
        name, task.slot, where if task.is_open or not is_running else opening(task), behind,
        f"{task.records_per_second:,.0f}" if is_running else "-",
        f"{task.records_in:,}", f"{task.records_out:,}", f"{task.dropped:,}",
        "-" if task.last_commit_ms is None else ago(task.last_commit_ms, now_ms),
        f"{task.restored:,}",
        ", ".join(f"{reason} {times}" for reason, times in task.openings.items()) or "-",
    ]  # fmt: skip


def show_checkpoint(application: Application, found: Checkpoint, as_json: bool) -> None:
    """Print the content of a checkpoint. Raises IncompatibleStateError for another application's."""
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
    return all(commit.fingerprint == now for commit in found.commits.values())


def _task(application: Application, found: Checkpoint, task: TaskId) -> dict[str, Any]:
    from penstock.plugins.engine.program.checkpoint_files import changelog_bytes
    from penstock.plugins.state.copies.local_copies import local_copies

    commit, saved = found.commits[task], found.saved_task(task)
    engine = json.loads(commit.engine_state) if commit.engine_state else {}
    copies = local_copies(application, saved)
    entries = {name: count for copy in copies for name, count in copy.entries.items()}
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
        "bytes_here": sum(copy.bytes for copy in copies) if copies else None,
        "changelog_bytes": size,
    }


def _cells(task: dict[str, Any]) -> list[object]:
    at, stores = task["stream_time_ms"], task["stores"]
    known = [store["entries_here"] for store in stores if store["entries_here"] is not None]
    time = None if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
    sizes = [sum(known) if known else None, task["bytes_here"], task["changelog_bytes"]]
    read = ", ".join(f"{topic} {number:,}" for topic, number in sorted(task["read"].items()))
    return [task["task"], task["version"], read, time, *(None if size is None else f"{size:,}" for size in sizes)]


@verb(
    ("Whether all tasks are open", "penstock health wordcount:application"),
    ("Whether it works at all, which a long restore does", "penstock health wordcount:application --live"),
)
@click.option("--live", is_flag=True, help="Ask whether it is alive; it may still restore its state.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object.")
@timeout_option
@application_options
def health(target: str, live: bool, as_json: bool, **where: Any) -> None:
    """Say whether the application MODULE:ATTR is ready: exit code 0, or 1 if it is not.

    Ready: its driver runs, all of its tasks are open, and none is paused. The answer is what the driver wrote to the log, every five
    seconds. The endpoint of `metrics_port` has the same answers, without a process for each.
    """
    with followed(target, follow=False, interval="5s", **where) as (application, log, _):
        run = latest_run(application, log)
    found = run.health(SystemClock().now_ms())
    if as_json:
        print_json(run.health_data(found))
    else:
        text = "ready" if found.is_ready else "alive, not ready" if found.is_live else "not alive"
        print_text(f"{run.application_id}: {text}{f': {found.reason}' if found.reason else ''}\n")
    if not (found.is_live if live else found.is_ready):
        click.get_current_context().exit(FAILED)


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
                _show_lag(application, rows, total, as_json=as_json, follow=follow)
            if fail_above is not None and total > fail_above:
                note(f"{application.id}: lag {total:,} is above {fail_above:,}")
                click.get_current_context().exit(FAILED)


def _show_lag(application: Application, rows: list[PartitionLag], total: int, *, as_json: bool, follow: bool) -> None:
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
