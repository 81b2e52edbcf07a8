"""Applications that run for long: one that gets nothing (its CPU), and one that gets little (what grows)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .result import Table
from .steady import SteadyApplication, load_average, opened

TASKS = 4
SETTLING = 30.0
"""Seconds after the first records that are not measured."""
LOOK = 5.0
RATE = 10.0
"""Records a second of the trickle."""
_LEAST_SECONDS = 0.05
"""Between two writes."""
LINE_SECONDS = 30.0
GROWTH = 0.05
"""The growth, as a share of the mean, that still counts as flat."""
SLACK = {
    "own_mb": 20.0,
    "python_mb": 10.0,
    "descriptors": 5.0,
    "threads": 5.0,
    # A look may come before a commit or after it.
    "behind_ms": 1_000.0,
    # Spark deletes old files of its state once a minute, and a second makes a dozen.
    "checkpoint_files": 1_000.0,
    # A changelog deletes files when it makes a snapshot, after a thousand deltas of each task.
    "changelog_files": 2_500.0,
}
"""Growth that counts as flat whatever the mean is; of other files `FILES_SLACK`. A leak makes more in an hour."""
FILES_SLACK = 20.0
DIRECTORIES = {
    "state_files": "data/state",
    "log_files": "data/log",
    "changelog_files": "data/changelog",
    "checkpoint_files": "data/checkpoint",
    "temporary_files": "temporary",
}


def idle(minutes: float = 2.0, log: str = "local") -> Table:
    """CPU of each process, in % of one core, while no record comes. A broker's is not counted."""
    with opened(TASKS, log) as running:
        return Table("idle", [measure_idle(running, minutes, SETTLING)])


def measure_idle(running: SteadyApplication, minutes: float, settling: float) -> dict[str, Any]:
    """Measure the processes of an application after `settling` seconds."""
    running.pass_time(settling)
    batches = len(running.batches)
    before, began = running.processes.cpu_s(), time.monotonic()
    while time.monotonic() < began + minutes * 60:
        running.pass_time(min(LOOK, max(0.0, began + minutes * 60 - time.monotonic())))
        after = running.processes.cpu_s()
    seconds = time.monotonic() - began
    percent: dict[str, float] = {}
    for (process, kind), cpu in after.items():
        used = cpu - before.get((process, kind), 0.0)
        if used > 0:
            percent[kind] = percent.get(kind, 0.0) + used / seconds * 100
    return {
        "name": "idle",
        "log": running.log_name,
        "minutes": minutes,
        "cpu_percent": round(sum(percent.values()), 2),
        "by_process": {kind: round(each, 2) for kind, each in sorted(percent.items())},
        "batches": len(running.batches) - batches,
        "own_mb": round(sum(each.own_mb for each in running.usage())),
        **running.reopenings(),
        "load_average": load_average(),
    }


def trickle(minutes: float = 3.0, log: str = "local", rate: float = RATE, trigger: str = "0s") -> Table:
    """Ten records a second, or `rate`: a line every 30 s with memory, descriptors, threads, files, and by how much time
    the tasks are behind; fails if one of them grows over the last two thirds."""
    with opened(TASKS, log, trigger=trigger) as running:
        return measure_trickle(running, minutes, LINE_SECONDS, rate)


def measure_trickle(running: SteadyApplication, minutes: float, line_seconds: float, rate: float = RATE) -> Trickle:
    """Write to all partitions in turns, and look at the application every few seconds."""
    rows: list[dict[str, float]] = []
    looks: list[dict[str, float]] = []
    began = time.monotonic()
    sent = 0
    since_line = 0
    while (passed := time.monotonic() - began) < minutes * 60:
        due = int(passed * rate)
        if due > sent:
            numbers = range(sent, due)
            running.append_to([each % running.tasks for each in numbers], [str(each) for each in numbers])
            sent = due
        if passed >= len(looks) * LOOK:
            looks.append(_look(running) | {"behind_ms": running.behind() / rate * 1000})
        if passed >= (len(rows) + 1) * line_seconds:
            latest = looks[since_line:]
            since_line = len(looks)
            row = {name: round(statistics.median(each[name] for each in latest), 1) for name in latest[0]}
            rows.append({"seconds": round(passed), **row})
            print(", ".join(f"{name} {value:g}" for name, value in rows[-1].items()), flush=True)
        running.pass_time(max(1 / rate, _LEAST_SECONDS))
    read = sum(each.records for each in running.batches)
    last_two_thirds = looks[len(looks) // 3 :]
    grown = {name: growth([each[name] for each in last_two_thirds]) for name in looks[0]}
    not_flat = {name: each for name, each in grown.items() if not is_flat(name, each, looks[-1][name])}
    summary = {
        "name": "trickle",
        "log": running.log_name,
        "minutes": minutes,
        "rate": rate,
        "records": read,
        "batches": len(running.batches),
        **running.reopenings(),
        "fences": running.fences,
        "growth": {name: round(each, 1) for name, each in grown.items()},
        "load_average": load_average(),
    }
    failed = ", ".join(f"{name} grew by {each:.1f}" for name, each in not_flat.items())
    return Trickle("trickle", [summary], failed, rows)


class Trickle(Table):
    """Has the lines that were printed, too."""

    def __init__(self, name: str, rows: list[dict[str, object]], failed: str, lines: list[dict[str, float]]) -> None:
        super().__init__(name, [{**rows[0], "lines": lines}], failed)

    def __str__(self) -> str:
        shown = [{name: value for name, value in self.rows[0].items() if name != "lines"}]
        return str(Table(self.name, shown, self.failed))


def growth(values: Sequence[float]) -> float:
    """Return by how much values grew from the first to the last, by the line that fits them best.

    >>> growth([5, 6, 7, 8])
    3.0
    """
    if len(values) < 2:
        return 0.0
    middle = (len(values) - 1) / 2
    mean = statistics.fmean(values)
    products = sum((at - middle) * (value - mean) for at, value in enumerate(values))
    return products / sum((at - middle) ** 2 for at in range(len(values))) * (len(values) - 1)


def is_flat(name: str, grown: float, last: float) -> bool:
    """Return whether a growth is too small to count."""
    return grown <= max(GROWTH * last, SLACK.get(name, FILES_SLACK))


def _look(running: SteadyApplication) -> dict[str, float]:
    usage = running.usage()
    found: dict[str, float] = {
        "own_mb": sum(each.own_mb for each in usage),
        "python_mb": sum(each.own_mb for each in usage if each.is_python),
        "descriptors": sum(each.descriptors for each in usage),
        "threads": sum(each.threads for each in usage),
    }
    return {**found, **{name: _files(running.directory / path) for name, path in DIRECTORIES.items()}}


def _files(directory: Path) -> int:
    """Return how many files are below a directory; they come and go meanwhile."""
    return sum(1 for each in directory.rglob("*") if each.is_file()) if directory.exists() else 0
