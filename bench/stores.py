"""Stores alone, in LMDB: what expiry holds up, what many entries cost, and what a commit costs in a large table."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from penstock import Application, Topology, key_value_store, window_store
from penstock.plugins.engine.task.local_state.task_state import TaskState
from penstock.plugins.engine.task.process_resources import tune_garbage_collector
from penstock.program.nodes import TaskId
from penstock.record import RecordBatch, TopicPartition
from penstock.task.input_queue import TaskInput
from penstock.task.task import Task

from .programs import Count, WindowedCount
from .result import Table

TASK = TaskId(0, 0)
LOADED_AT_ONCE = 200_000
WINDOW_MS = 60_000
COMMIT_SIZES = (1_000, 10_000, 100_000)
COMMITS = 60
TABLES = (10_000, 100_000, 1_000_000, 10_000_000)
LONGEST_WAIT_MS = 20.0
PRIVATE_MB = 300.0
A_BATCH = 5_000
SLOWEST = 0.5
FEW = 500_000


class StateInLmdb:
    """The state of one task without a changelog: a store named `counts`."""

    def __init__(self, topology: Topology, directory: Path, version: str | None = None) -> None:
        self.application = Application("bench", topology, store_backend="lmdb")
        directory.mkdir(exist_ok=True)
        self.state = TaskState(self.application, TASK, directory, None)
        if version is None:
            self.state.open_fresh(self.state.new_version(None))
        else:
            self.state.open(version)
        self.store: Any = self.state.stores["counts"]

    def commit(self) -> float:
        """Commit what changed; return for how many ms that holds up the next record."""
        began = time.perf_counter()
        self.state.flush()
        self.state.apply(self.state.changes(), self.state.new_version(self.state.version))
        return (time.perf_counter() - began) * 1000


def counting(store: Any, processor: type = Count) -> Topology:
    """Return source -> count -> sink."""
    topology = Topology().add_source("in", "bench-in").add_processor("count", processor, "in", stores=[store])
    return topology.add_sink("out", "bench-out", "count")


# ---------------------------------------------------------------- expiry


def window_expiry(entries: int = 10_000_000, windows: int = 100) -> Table:
    """A window store with `entries` in `windows` windows: how long a record waits while windows expire.

    Windows pass one by one, each with as many new entries as the others have. A commit is what a record waits for;
    beside those while windows expire are those of the same size before any did.
    """
    counts = window_store("counts", retention=f"{windows * WINDOW_MS}ms", window_size=f"{WINDOW_MS}ms", key_serde="str")
    rows = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        running = StateInLmdb(counting(counts, WindowedCount), Path(directory) / "state")
        keys = [f"u{number:08d}" for number in range(entries // windows)]
        for window in range(windows):
            for at in range(0, len(keys), LOADED_AT_ONCE):
                for key in keys[at : at + LOADED_AT_ONCE]:
                    running.store.put(key, 1, window * WINDOW_MS)
                running.commit()
        before = {size: _Waits(running, keys, (windows - 1) * WINDOW_MS, size) for size in COMMIT_SIZES}
        window = windows
        for size in COMMIT_SIZES:
            start = running.store.approximate_count()
            while True:  # a store frees what it hides in portions, and not with each window
                count = running.store.approximate_count()
                waits = _Waits(running, keys, window * WINDOW_MS, size)
                freed = count + waits.put - running.store.approximate_count()
                window += 1
                if freed > len(keys) or window > 3 * windows:
                    break
            usual = before[size]
            rows.append(
                {
                    "name": "window-expiry",
                    "entries": start,
                    "records a commit": size,
                    "freed": freed,
                    "commits": len(waits.commits_ms),
                    "commit before (ms)": round(statistics.median(usual.commits_ms), 1),
                    "longest before (ms)": round(max(usual.commits_ms), 1),
                    "commit (ms)": round(statistics.median(waits.commits_ms), 1),
                    "longest (ms)": round(max(waits.commits_ms), 1),
                    "longest record (ms)": round(waits.longest_record_ms, 2),
                }
            )
        running.state.destroy()
    late = [
        f"{row['records a commit']} records a commit: {row['longest (ms)']} ms, before {row['longest before (ms)']} ms"
        for row in rows
        if row["longest (ms)"] > row["longest before (ms)"] + LONGEST_WAIT_MS
        or row["longest record (ms)"] > LONGEST_WAIT_MS
    ]
    return Table("window-expiry", rows, "; ".join(late))


class _Waits:
    """How long records and commits took: counts in one window, until all keys are in it, `size` records a commit."""

    def __init__(self, running: StateInLmdb, keys: list[str], start: int, size: int) -> None:
        store, clock = running.store, time.perf_counter
        self.commits_ms = []
        self.longest_record_ms = 0.0
        self.put = 0
        for first in range(0, min(len(keys), size * COMMITS), size):
            for key in keys[first : first + size]:
                began = clock()
                count = store.fetch(key, start) or 0
                store.put(key, count + 1, start)
                self.longest_record_ms = max(self.longest_record_ms, (clock() - began) * 1000)
                self.put += not count
            self.commits_ms.append(running.commit())


# ---------------------------------------------------------------- many entries


def drawn_ranks(records: int, entries: int, file: Path) -> None:
    """Write the ranks of `records` keys to a file, drawn by Zipf's law (exponent 1) from `entries`."""
    cumulative = np.cumsum(1.0 / np.arange(1, entries + 1))
    ranks = np.searchsorted(cumulative, np.random.default_rng(7).random(records) * cumulative[-1])
    np.save(file, np.minimum(ranks, entries - 1).astype(np.int32))


def store_size(
    entries: int = 20_000_000, value_bytes: int = 200, records: int = 2_000_000, commit_records: int = 250_000
) -> Table:
    """The stateful count over a store with `entries`, beside the same with `FEW`: throughput and private memory.

    Each runs in a process of its own. Keys are drawn by Zipf's law from all that are in the store.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        for each in (FEW, entries):
            place = Path(directory) / str(each)
            version, seconds = _in_a_process(_load, place, each, value_bytes)
            ranks = Path(directory) / f"ranks-{each}.npy"
            _in_a_process(drawn_ranks, records, each, ranks)
            found = _in_a_process(_count, place, version, each, ranks, commit_records)
            size = sum(file.stat().st_blocks * 512 for file in place.rglob("*") if file.is_file())
            rows.append(
                {"name": "store-size", "entries": each, "GB on disk": round(size / 2**30, 2)}
                | {"load (s)": round(seconds), **found}
            )
    ratio = rows[1]["records_per_s"] / rows[0]["records_per_s"]
    rows[1]["ratio"] = round(ratio, 2)
    rows[0]["ratio"] = None
    failed = []
    if ratio < SLOWEST:
        failed.append(f"{ratio:.2f} of the throughput with {FEW:,} keys")
    if rows[1]["private MB"] > PRIVATE_MB:
        failed.append(f"{rows[1]['private MB']} MB of private memory")
    return Table("store-size", rows, "; ".join(failed))


def _in_a_process(function: Any, *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _sized_topology() -> Topology:
    return counting(key_value_store("counts", key_serde="str", value_serde="str"), SizedCount)


class SizedCount(Count):
    """Counts as `Count` does, in values of the length that the stored ones have."""

    def process(self, record: Any) -> None:
        """Count one record."""
        old = self.counts.get(record.key)
        count = str(int(old) + 1)
        self.counts.put(record.key, count.ljust(len(old)))
        self.context.forward(record.with_value(count))


def _load(directory: Path, entries: int, value_bytes: int) -> tuple[str, float]:
    """Fill the store; return its version, and the seconds that took."""
    began = time.perf_counter()
    running = StateInLmdb(_sized_topology(), directory)
    value = "0".ljust(value_bytes)
    for first in range(0, entries, LOADED_AT_ONCE):
        running.store.put_all(
            (f"u{number:08d}", value) for number in range(first, min(entries, first + LOADED_AT_ONCE))
        )
        running.commit()
    version = running.state.version
    running.state.close()
    assert version is not None
    return version, time.perf_counter() - began


def _count(directory: Path, version: str, entries: int, ranks_file: Path, a_commit: int) -> dict[str, Any]:
    """Count records; return what that took after the first quarter of them. This process has no more than a worker."""
    tune_garbage_collector()
    ranks = np.load(ranks_file)
    records, value = len(ranks), b"x" * 91
    partition = TopicPartition("bench-in", 0)
    running = StateInLmdb(_sized_topology(), directory, version)
    application = running.application
    [source] = application.program.subtopologies[0].sources
    task = Task(
        TASK,
        application.program.subtopology(0),
        application.id,
        application.settings,
        [TaskInput(partition, source)],
        running.state.stores,
        {},
    )
    running.state.connect(task)
    me, private, done, settled, committed = psutil.Process(), 0.0, 0, 0, 0
    limit = application.settings.commit_bytes
    commits_ms: list[float] = []
    began = time.perf_counter()
    for first in range(0, records, A_BATCH):
        # Each rank is one key; neighbours in rank are not neighbours in the table.
        some = [b"u%08d" % (rank * 7_368_787 % entries) for rank in ranks[first : first + A_BATCH].tolist()]
        size, after = len(some), first + len(some)
        task.feed(RecordBatch("bench-in", 0, range(first, after), some, [value] * size, [0] * size, None, after))
        done += task.process(size)
        if done - committed >= a_commit or running.state.size_bytes() > limit or done >= records:
            task.take_commit()
            commits_ms.append(running.commit())
            private, committed = max(private, _private_mb(me)), done
            if not settled and done >= records // 4:
                settled, began, commits_ms = done, time.perf_counter(), []
    seconds = time.perf_counter() - began
    task.close()
    running.state.close()
    return {
        "records_per_s": round((records - settled) / seconds),
        "private MB": round(private),
        "records a commit": (records - settled) // len(commits_ms),
        "commit (ms)": round(statistics.median(commits_ms)),
    }


def _private_mb(process: psutil.Process) -> float:
    memory = process.memory_info()
    return float(memory.rss - memory.shared) / 2**20


# ---------------------------------------------------------------- commits


def commit_cost(entries: int = TABLES[-1]) -> Table:
    """Commits of 100, 1,000 and 10,000 changed entries in one table of 10,000 up to `entries` entries."""
    rows, loaded = [], 0
    random = np.random.default_rng(3)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        running = StateInLmdb(counting(key_value_store("counts", key_serde="str")), Path(directory) / "state")
        for size in [each for each in TABLES if each <= entries]:
            for first in range(loaded, size, LOADED_AT_ONCE):
                running.store.put_all((f"u{n:08d}", 1) for n in range(first, min(size, first + LOADED_AT_ONCE)))
                running.commit()
            loaded = size
            row: dict[str, Any] = {"name": "commit-cost", "entries": size}
            for changed in (100, 1_000, 10_000):
                times = []
                for _ in range(25):
                    for number in random.integers(0, size, changed).tolist():
                        running.store.put(f"u{number:08d}", number)
                    times.append(running.commit())
                row[f"{changed:,} changed (ms)"] = round(statistics.median(times[5:]), 2)
            rows.append(row)
        running.state.destroy()
    return Table("commit-cost", rows)
