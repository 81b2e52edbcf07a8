"""`penstock state export` of a large store: entries a second, and the memory of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from penstock import Application, Commit, Topology, key_value_store
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.locations import open_deltas, open_log
from penstock.program.layouts import layout_id
from penstock.store.envelope import PLAIN

from .programs import Count
from .result import Table

_DIRECTORY = "BENCH_EXPORT_DIRECTORY"
_TASKS = 2


def application() -> Application:
    """Return an application that counts, with its data where the environment says."""
    store = key_value_store("counts", key_serde="str", value_serde="int")
    topology = Topology().add_source("in", "bench-in").add_processor("count", Count, "in", stores=[store])
    topology = topology.add_sink("out", "bench-out", "count")
    return Application("bench", topology, data_dir=os.environ[_DIRECTORY])


def state_export(entries: int = 10_000_000) -> Table:
    """A store of `entries` counts in two tasks: to JSON lines and to Parquet, on a machine that has a copy of it.

    The first row is the first export, which makes that copy.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        os.environ[_DIRECTORY] = directory
        _fill(entries)
        for name, first in (("all.jsonl", True), ("all.jsonl", False), ("all.parquet", False)):
            output = Path(directory) / name
            seconds, cpu, megabytes = _measured([*_COMMAND, "--output", str(output)])
            rows.append(
                {
                    "name": "state-export",
                    "entries": entries,
                    "to": f"{output.suffix[1:]}{' and the copy' if first else ''}",
                    "seconds": round(seconds, 1),
                    "CPU s": round(cpu, 1),
                    "entries/s": round(entries / seconds),
                    "peak MB": round(megabytes),
                    "file MB": round(output.stat().st_size / 1e6),
                }
            )
    return Table("state-export", rows)


_COMMAND = [
    sys.executable,
    "-m",
    "penstock.plugins.operate.cli",
    "state",
    "export",
    "bench.state_export:application",
    "counts",
]


def _measured(command: list[str]) -> tuple[float, float, float]:
    """Return how many seconds a process ran, those of its CPU, and its largest memory beside mapped files in MB."""
    began, largest = time.perf_counter(), 0.0
    process = subprocess.Popen(command)
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        with suppress(OSError):
            largest = max(largest, _anonymous_megabytes(process.pid))
        time.sleep(0.1)
    _, status, usage = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, largest


def _anonymous_megabytes(process: int) -> float:
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous:")) / 1024


def _fill(entries: int) -> None:
    """Let the changelog have a snapshot of each task, and the log a commit of it."""
    app = application()
    with closing(open_log(app.settings)) as log:
        log.create_topic("bench-in", _TASKS)
        log.create_topic("bench-out", _TASKS)
        prepared = prepare(app, log)
        for task, partitions in prepared.assignment.tasks.items():
            layouts = prepared.application.program.subtopology(task.subtopology).layouts
            assert layouts is not None
            commit = Commit(dict.fromkeys(partitions, 0), f"{1:012d}-00000000_{layout_id(layouts.now)}")
            with closing(open_deltas(app.settings, app.id, str(task))) as changelog:
                changelog.snapshot(commit.version, _rows(entries // _TASKS, task.partition), commit)
            with closing(log.open_committer(app.id, str(task), partitions)) as committer:
                committer.commit(commit, [])


def _rows(count: int, task: int) -> Iterator[tuple[str, bytes, bytes]]:
    for number in range(count):
        yield "counts", b"customer-%d-%09d" % (task, number), PLAIN + (number * 7 % 100_000).to_bytes(8, "big")
