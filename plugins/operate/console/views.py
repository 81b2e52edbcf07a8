"""Views: what each page about the run shows, as data for its template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from penstock import Program, SourceNode
from penstock.plugins.describe.svg import SideNote, drawn
from penstock.plugins.engine.program.run_status import RunStatus
from penstock.program.nodes import decorate
from penstock.support.packages import needed

from .watch import Rate, TaskView, View
from .wording import ago, latency, length, opening, per_second, size

with needed("the console", "serve"):
    from markupsafe import Markup, escape

Context = dict[str, Any]
Given = Mapping[str, str]

TASKS_ON_A_PAGE = 100
_SORTS: Mapping[str, Callable[[TaskView], Any]] = {
    "task": lambda each: 0,
    "lag": lambda each: -(each.lag or 0),
    "rate": lambda each: 0 if each.status is None else -each.status.records_per_second,
    "place": lambda each: ("", 0) if each.status is None else (each.status.host, each.status.slot),
}


def overview(view: View, *, hides: bool = False) -> Context:
    """Return the state, rates, lag and hosts of the run. `hides`: not the error of one that failed: it has a record."""
    run, samples = view.run, view.samples
    rates = [(each.at_ms, each.rate) for each in samples]
    charts: list[tuple[str, Sequence[tuple[int, float | None]], Callable[[float], str]]] = [
        ("Records in", [(at, None if rate is None else rate.records_in) for at, rate in rates], per_second),
        ("Records out", [(at, None if rate is None else rate.records_out) for at, rate in rates], per_second),
        ("Latency of 99 %", [(each.at_ms, each.latency) for each in samples], latency),
        ("Lag", [(each.at_ms, float(each.lag)) for each in samples], _number),
        ("Memory of task hosts", [(each.at_ms, each.memory_bytes) for each in samples], size),
        ("State on disk", [(each.at_ms, float(each.state_bytes)) for each in samples], size),
    ]
    seconds = 0.0 if run is None else sum(run.phases.values())
    phases = [] if run is None else sorted(run.phases.items(), key=lambda each: -each[1])
    return {
        "run": run,
        "trouble": "`penstock status` says why." if hides and run is not None and run.error else view.trouble,
        "facts": [] if run is None else _facts(view, run),
        "charts": [
            (name, chart(name, points, written), "" if not points or points[-1][1] is None else written(points[-1][1]))
            for name, points, written in charts
        ],
        "hosts": [
            (each.slot, each.host, each.process, each.open_tasks, size(each.rss_bytes), length(each.cpu_seconds),
             each.threads, each.descriptors)
            for each in (run.hosts if run is not None else ())
        ],
        "phases": [(name, f"{spent:,.1f}", f"{spent / seconds:.0%}" if seconds else "-") for name, spent in phases],
    }  # fmt: skip


def _facts(view: View, run: RunStatus) -> list[tuple[str, str, str]]:
    """Return labels, values, and the kind of abnormal values."""
    is_running = view.state == "running"
    tasks, rate = view.tasks(), view.interval.rate
    open_tasks = sum(each.status is not None and each.status.is_open for each in tasks)
    since = length((run.written_ms - run.started_ms) / 1000) if is_running else ago(run.written_ms, view.now_ms)
    has_rate = rate is not None and rate.records_in and view.is_lag_known
    seconds_left = view.total_lag / rate.records_in if rate is not None and has_rate else None
    rows = [
        ("running for" if is_running else "ended", since if is_running else f"{since} ago", ""),
        ("as of", f"{ago(run.written_ms, view.now_ms)} ago", ""),
        ("records in", per_second(rate.records_in if rate else run.records_per_second if is_running else None), ""),
        ("records out", per_second(rate.records_out if rate else None), ""),
        ("latency of 99 %", latency(view.interval.latency), ""),
        ("lag", _number(view.total_lag) if view.is_lag_known else "-", ""),
        ("time to read the lag", "-" if seconds_left is None else length(seconds_left), ""),
        ("tasks open", f"{open_tasks:,} of {len(tasks):,}", "warn" if is_running and open_tasks < len(tasks) else ""),
        ("task hosts", _number(len(run.hosts)), ""),
        ("commits", _number(run.commits), ""),
        ("dropped", _number(run.dropped), "warn" if run.dropped else ""),
        ("restored", _number(run.restored), ""),
        ("workers lost", _number(run.workers_lost), "warn" if run.workers_lost else ""),
    ]
    return rows if is_running or run.ended_by is None else [*rows, ("ended by", run.ended_by, "")]


def topology(program: Program, view: View, stores: Sequence[str]) -> Context:
    """Return the drawing with rates and lag, and the same as tables; `stores` are those that have a page."""
    by_topic: dict[str, int] = {}
    partitions: dict[str, set[int]] = {}
    for each in view.lag:
        by_topic[each.topic] = by_topic.get(each.topic, 0) + each.lag
        partitions.setdefault(each.topic, set()).add(each.partition)
    notes = {("store", name): SideNote(link=link("store", name=name)) for name in stores}
    for name, node in program.nodes.items():
        rate = view.interval.nodes.get(name)
        above = "" if rate is None else per_second(rate.records_in)
        if isinstance(node, SourceNode):
            read = {decorate(view.application_id, each, program.internal_topics) for each in node.topics}
            if known := read & by_topic.keys():
                above = " · ".join(filter(None, [above, f"lag {_number(sum(by_topic[each] for each in known))}"]))
            for topic in node.topics:
                lag = by_topic.get(decorate(view.application_id, topic, program.internal_topics))
                if lag is not None:
                    notes["topic", topic] = SideNote(above=f"lag {_number(lag)}")
        notes["node", name] = SideNote(above, "" if rate is None else per_second(rate.records_out))
    home = {node.name: part.id for part in program.subtopologies for node in part.nodes}
    counts = {} if view.run is None else view.run.nodes
    return {
        "drawing": Markup(drawn(program, notes)),
        "nodes": [
            _node_row(name, home.get(name, "global"), counts.get(name), view.interval.nodes.get(name))
            for name in program.nodes
        ],
        "topics": [(name, len(partitions[name]), _number(lag)) for name, lag in sorted(by_topic.items())],
    }


def _node_row(name: str, subtopology: object, counts: Mapping[str, Any] | None, rate: Rate | None) -> Sequence[object]:
    speeds = (None, None) if rate is None else (rate.records_in, rate.records_out)
    if counts is None:
        return (name, subtopology, *map(per_second, speeds), "-", "-", "-", "")
    dropped = counts["dropped"]
    return (
        name, subtopology, *map(per_second, speeds), _number(counts["in"]), _number(counts["out"]),
        _number(sum(dropped.values())), ", ".join(f"{reason} {number:,}" for reason, number in dropped.items()),
    )  # fmt: skip


def tasks(view: View, given: Given) -> Context:
    """Return a page of tasks."""
    wanted, sort = given.get("filter", ""), given.get("sort", "task")
    rows = [each for each in view.tasks() if wanted in each.name or (each.status and wanted in _place(each))]
    rows.sort(key=_SORTS.get(sort, _SORTS["task"]))
    first = number(given, "page") * TASKS_ON_A_PAGE
    shown = rows[first : first + TASKS_ON_A_PAGE]
    restoring = sum(each.status is not None and each.status.restoring is not None for each in rows)
    text = f"{first + 1:,} to {first + len(shown):,} of {len(rows):,}" if shown else "no tasks"
    page = first // TASKS_ON_A_PAGE
    kept = {"filter": wanted, "sort": sort}
    links = [("Before", link("tasks", **kept, page=page - 1))] if page else []
    if len(rows) > first + TASKS_ON_A_PAGE:
        links.append(("Next", link("tasks", **kept, page=page + 1)))
    return {
        "filter": escape(wanted),
        "sort": sort,
        "sorts": list(_SORTS),
        "shown": f"{text}{f', {restoring:,} restore their state' if restoring else ''}",
        "tasks": [_task_row(each, view) for each in shown],
        "links": links,
    }


def _place(task: TaskView) -> str:
    status = task.status
    return "-" if status is None or status.process is None else f"{status.host}/{status.process}, slot {status.slot}"


def _task_row(task: TaskView, view: View) -> Sequence[object]:
    lag, status = "-" if task.lag is None else _number(task.lag), task.status
    if status is None:
        return (task.name, "-", lag, *["-"] * 9)
    is_running = view.state == "running"
    return (
        task.name, _place(task) if status.is_open or not is_running else opening(status), lag,
        per_second(status.records_per_second) if is_running else "-", _number(status.records_in),
        _number(status.records_out), _number(status.dropped), _number(status.commits),
        "-" if status.last_commit_ms is None else f"{ago(status.last_commit_ms, view.now_ms)} ago",
        "-" if status.state_bytes is None else size(status.state_bytes), _number(status.restored),
        ", ".join(f"{reason} {times}" for reason, times in status.openings.items()) or "-",
    )  # fmt: skip


def events(view: View) -> Context:
    """Return the faults that were repaired."""
    run = view.run
    return {
        "events": [
            (moment(each.at_ms), f"{ago(each.at_ms, view.now_ms)} ago", each.text)
            for each in reversed(() if run is None else run.events)
        ],
        "openings": []
        if run is None
        else [
            *(("opening", reason, _number(times)) for reason, times in run.openings.items()),
            *(("move", reason, _number(times)) for reason, times in run.moves.items()),
        ],
    }


# ------------------------------------------------------------------ helpers


def link(page: str, /, **given: object) -> str:
    """Return the address of a page with parameters, without empty ones."""
    kept = {name: value for name, value in given.items() if value not in ("", None)}
    return f"{page}?{urlencode(kept, errors='replace')}"


def number(given: Given, name: str, default: int = 0) -> int:
    """Return a parameter that is a whole number from 0; `default` for anything else."""
    text = given.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else default


def moment(at_ms: int) -> str:
    """Return a time in UTC."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}"


_WIDTH, _HEIGHT = 300.0, 70.0
_MOST_POINTS = 240
Point = tuple[int, float | None]
"""A time (ms), and the value at it; None where it is unknown."""


def chart(title: str, points: Sequence[Point], written: Callable[[float], str]) -> Markup:
    """Return a chart of values over time, from 0 up to the highest one; a gap where a value is unknown.

    `written`: how a value is written. Of many points it has the highest one of each few.
    """
    known = [value for _, value in points if value is not None]
    highest = max(known, default=0.0)
    minutes = (points[-1][0] - points[0][0]) / 60_000 if points else 0.0
    now = points[-1][1] if points else None
    text = f"{title}: not known yet"
    if known:
        said = "unknown" if now is None else written(now)
        text = f"{title}: {said} now, at most {written(highest)} in {minutes:.0f} minutes"
    lines = Markup("").join(
        Markup('<polyline class="chart-line" points="{}"/>').format(" ".join(f"{x:.1f},{y:.1f}" for x, y in part))
        for part in _parts(_thinned(points), highest)
    )
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<title>{}</title><line class="chart-base" x1="0" y1="{}" x2="{}" y2="{}"/>{}</svg>'
    ).format(f"{_WIDTH:g}", f"{_HEIGHT:g}", text, text, f"{_HEIGHT - 1:g}", f"{_WIDTH:g}", f"{_HEIGHT - 1:g}", lines)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return the highest point of each few, so that no peak is lost."""
    few = -(-len(points) // _MOST_POINTS) or 1
    groups = [points[at : at + few] for at in range(0, len(points), few)]
    return [max(group, key=lambda point: -1.0 if point[1] is None else point[1]) for group in groups]


def _parts(points: Sequence[Point], highest: float) -> list[list[tuple[float, float]]]:
    """Return the places of points, in parts between unknown ones."""
    if not points:
        return []
    first, span = points[0][0], max(1, points[-1][0] - points[0][0])
    parts: list[list[tuple[float, float]]] = [[]]
    for at_ms, value in points:
        if value is None:
            parts.append([])
        else:
            x = (at_ms - first) / span * _WIDTH
            parts[-1].append((x, _HEIGHT - 1 - value / (highest or 1) * (_HEIGHT - 6)))
    # A line from a point to itself is not drawn.
    return [part if len(part) > 1 else [(max(0.0, x - 2), y), (max(2.0, x), y)] for part in parts for x, y in part[:1]]
