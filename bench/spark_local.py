"""Through Spark with the local log and LMDB: steady state over several batches, the first left out."""

from __future__ import annotations

import tempfile
import threading
import time
from typing import Any

from penstock import Application, OutputBatch, Topology
from penstock.log import Log
from penstock.plugins.engine.run.progress import RunProgress
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.spark.runner import run

from .data import spread_times, zipf_keys
from .programs import (
    GAP_MS,
    RETENTION_MS,
    WINDOW_MS,
    count_topology,
    filter_map_topology,
    session_count_topology,
    windowed_count_topology,
)
from .result import Result
from .tree import MarkedProcesses

RECORDS = 6_000_000
PER_BATCH = 1_000_000
KEYS = 100_000
PARTITIONS = 4
MASTER = "local[2]"
SLICE = 40_000
SPAN_MS = 720_000
"""The time that the records of the windowed counts span: with 6,000,000 of them, half a million a window."""
LATE_MS = 10_000
"""By how much each of these records may be late."""


def count() -> Result:
    """Stateful count by key that emits every update, exactly once."""
    return measure("spark-local-count", count_topology())


def windowed_count() -> Result:
    """Count by key and tumbling window in a window store; emits every update, exactly once."""
    times = spread_times(RECORDS, SPAN_MS, LATE_MS)
    result = measure("spark-local-windowed-count", windowed_count_topology(), times=times)
    return with_setting(result, f"tumbling windows of {WINDOW_MS // 1000} s, {RETENTION_MS // WINDOW_MS} alive")


def session_count() -> Result:
    """Count by key and session in a session store; emits every update, exactly once."""
    times = spread_times(RECORDS, SPAN_MS, LATE_MS)
    result = measure("spark-local-session-count", session_count_topology(), times=times)
    return with_setting(result, f"sessions with a gap of {GAP_MS // 1000} s, kept for {RETENTION_MS // 60_000} min")


def with_setting(result: Result, windows: str, changelog: str = "directory") -> Result:
    """Say beside a figure what it depends on."""
    result.notes = {
        "keys": f"{KEYS:,}, by Zipf's law",
        "windows": windows,
        "timestamps": f"{SPAN_MS // 1000} s over the whole input, each up to {LATE_MS // 1000} s late",
        "changelog": changelog,
    } | result.notes
    return result


def filter_map() -> Result:
    """Filter + map, exactly once."""
    return measure("spark-local-filter-map", filter_map_topology())


def measure(
    name: str,
    topology: Topology,
    records: int = RECORDS,
    per_batch: int = PER_BATCH,
    session: Any = None,
    times: list[int] | None = None,
) -> Result:
    """Process `records` records of 100 bytes from 4 partitions in batches of `per_batch`; measure all but the first
    batch. `times` are their timestamps (None: all have the same)."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        application = Application("bench", topology, data_dir=directory, max_records_per_batch=per_batch)
        log = open_log(application.settings)
        for topic in ("bench-in", "bench-out"):
            log.create_topic(topic, PARTITIONS)
        load(log, records, times)
        log.close()
        watch = _Watch()
        run(
            application,
            "available_now",
            master=None if session else MASTER,
            session=session,
            on_progress=watch.progress,
        )
        return watch.result(name)


def load(log: Log, records: int, times: list[int] | None = None) -> None:
    """Append the input: keys of 9 bytes, values of 91."""
    keys = zipf_keys(records, KEYS)
    value = b'{"page": "/home"}'.ljust(91)
    for first in range(0, records, SLICE):
        some = keys[first : first + SLICE]
        at = times[first : first + SLICE] if times else [1_700_000_000_000] * len(some)
        log.append(OutputBatch("bench-in", list(some), [value] * len(some), at))


class _Watch:
    """Collects batches as they end, and the process tree's CPU time and memory meanwhile."""

    def __init__(self) -> None:
        self._batches: list[tuple[float, float, int]] = []  # (when it ended, CPU seconds of the tree, records)
        self._seconds: list[float] = []
        self._phases: dict[str, float] = {}
        self._usage = MarkedProcesses(with_this=True)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def progress(self, progress: RunProgress) -> None:
        """Note a batch."""
        read = sum(report.records_in for report in progress.reports)
        if not read:
            return
        self._batches.append((time.perf_counter(), self._usage.total_cpu_s(), read))
        self._seconds.append(progress.batch_seconds)
        if len(self._batches) > 1:
            for report in progress.reports:
                for phase, seconds in report.phases.items():
                    self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def _sample(self) -> None:
        while not self._ended.wait(0.25):
            self._usage.look()

    def result(self, name: str) -> Result:
        """Return the figures of all batches but the first."""
        self._ended.set()
        self._thread.join()
        (began, cpu_before, _), *rest = self._batches
        if not rest:
            raise RuntimeError("only one batch was run; there is nothing to measure")
        seconds = rest[-1][0] - began
        records = sum(read for _, _, read in rest)
        cpu = rest[-1][1] - cpu_before
        tasks = sum(self._phases.values())
        cores = 2
        return Result(
            name,
            records / seconds,
            cpu / records * 1e6,
            self._usage.peak_mb,
            {**self._phases, "spark": max(0.0, seconds * cores - tasks)},
            notes={
                "batches measured": len(rest),
                "records measured": records,
                "seconds by batch": ", ".join(f"{each:.2f}" for each in self._seconds),
                "largest Python worker (MB)": round(self._usage.worker_mb),
            },
        )
