"""Many tasks of which one has records: seconds a batch, descriptors, threads, and tasks that were opened again."""

from __future__ import annotations

import statistics
import time
from typing import Any

from .result import Table
from .steady import SteadyApplication, load_average, log_named
from .tree import Usage

SIZES = (4, 64, 256, 1000)
KAFKA_SIZES = (16, 64, 200, 1000)
SETTLING = 3
"""Batches after all tasks were opened that are not measured."""
BATCHES = 25


def many_tasks(tasks: tuple[int, ...] = SIZES, batches: int = BATCHES, limit: float = 65.0) -> Table:
    """Local log. A number of tasks is given up after `limit` seconds."""
    return Table("many-tasks", [_row("many-tasks", each, "local", batches, limit) for each in tasks])


def many_tasks_kafka(tasks: tuple[int, ...] = KAFKA_SIZES, batches: int = BATCHES, limit: float = 180.0) -> Table:
    """Exactly once over a real broker."""
    with log_named("kafka") as log:
        return Table("many-tasks-kafka", [_row("many-tasks-kafka", each, log, batches, limit) for each in tasks])


def _row(name: str, tasks: int, log: str, batches: int, limit: float) -> dict[str, Any]:
    with SteadyApplication(tasks, log) as running:
        return measure(name, running, batches, limit)


def measure(name: str, running: SteadyApplication, batches: int, limit: float) -> dict[str, Any]:
    """Open all tasks of an application and run batches for one of them; figures that were not reached are None."""
    deadline = time.monotonic() + limit
    seconds: list[float] = []
    largest = _Largest()
    driver_s = open_s = ready_s = None
    began = time.monotonic()
    if running.open_all(deadline - time.monotonic()):
        ready_s = time.monotonic() - began
        open_s = sum(each.seconds for each in running.batches)
        driver_before, settled_at = 0.0, 0.0
        for number in range(SETTLING + batches):
            if number == SETTLING:
                driver_before, settled_at = _driver_cpu(running), time.monotonic()
            batch = running.run_batch(0, deadline - time.monotonic())
            if batch is None:
                break
            if number >= SETTLING:
                seconds.append(batch.seconds)
            if number % 5 == 0:
                largest.see(running.usage())
        if seconds and settled_at:
            driver_s = (_driver_cpu(running) - driver_before) / len(seconds)
    usage = running.usage()
    largest.see(usage)
    return {
        "name": name,
        "tasks": running.tasks,
        "seconds_per_batch": _rounded(statistics.median(seconds) if seconds else None),
        "descriptors": largest.descriptors,
        "threads": largest.threads,
        **running.reopenings(),
        "open_seconds": _rounded(open_s),
        "ready_seconds": _rounded(ready_s),
        "driver_seconds": _rounded(driver_s),
        "opened": len(running.openings()),
        "batches": len(seconds),
        "fences": running.fences,
        "own_mb": round(sum(each.own_mb for each in usage)),
        "load_average": load_average(),
    }


class _Largest:
    """The most descriptors and threads that one Python process had at any look."""

    def __init__(self) -> None:
        self.descriptors = self.threads = 0

    def see(self, usage: list[Usage]) -> None:
        for each in usage:
            if each.is_python:
                self.descriptors = max(self.descriptors, each.descriptors)
                self.threads = max(self.threads, each.threads)


def _driver_cpu(running: SteadyApplication) -> float:
    """Return the CPU seconds of the driver's Python processes so far: the run, and the source that plans batches."""
    return sum(each.cpu_s for each in running.usage() if each.kind in ("driver", "source"))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
