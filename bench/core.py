"""The Task alone, no edges: records in, outputs and state changes out, in one process."""

from __future__ import annotations

import resource
import time

from penstock import Application, Topology
from penstock.plugins.engine.task.process_resources import tune_garbage_collector
from penstock.program.nodes import TaskId
from penstock.record import RecordBatch, TopicPartition

from .data import spread_times, zipf_keys
from .programs import WINDOW_MS, count_topology, windowed_count_topology
from .result import Result
from .task_stores import task_with_memory_stores

RECORDS = 2_000_000
KEYS = 100_000
BATCH = 5_000
COMMIT = 250_000
REPEATS = 3
SPAN_MS = 4 * WINDOW_MS
"""The time that the records span: half a million a window, as through Spark."""
LATE_MS = 10_000


def core_count() -> Result:
    """Stateful count that emits every update: the Task with its stores, flushed every 250,000 records."""
    return _best("core-count", count_topology())


def core_windowed_count() -> Result:
    """The same by key and tumbling window, in a window store."""
    result = _best("core-windowed-count", windowed_count_topology())
    result.notes = {
        "keys": f"{KEYS:,}, by Zipf's law",
        "windows": f"tumbling windows of {WINDOW_MS // 1000} s, {SPAN_MS // WINDOW_MS} alive",
        "timestamps": f"{SPAN_MS // 1000} s over the whole input, each up to {LATE_MS // 1000} s late",
        "changelog": "none",
    }
    return result


def _best(name: str, topology: Topology) -> Result:
    tune_garbage_collector()
    results = [run_once(name, topology) for _ in range(REPEATS)]
    return max(results, key=lambda each: each.records_per_s)


def run_once(name: str, topology: Topology) -> Result:
    application = Application("bench", topology, store_backend="memory")
    source = application.program.subtopologies[0].sources[0]
    partition = TopicPartition("bench-in", 0)
    task, state = task_with_memory_stores(application, TaskId(0, 0), [(partition, source)])
    keys = zipf_keys(RECORDS, KEYS)
    times = spread_times(RECORDS, SPAN_MS, LATE_MS)
    value = b"x" * 91
    batches = [
        RecordBatch(
            "bench-in", 0, range(first, first + BATCH), keys[first : first + BATCH],
            [value] * BATCH, times[first : first + BATCH], None, first + BATCH,
        )
        for first in range(0, RECORDS, BATCH)
    ]  # fmt: skip
    phases = {"process": 0.0, "state": 0.0}
    cpu = time.process_time()
    began = mark = time.perf_counter()
    done = 0
    for batch in batches:
        task.feed(batch)
        done += task.process(BATCH)
        if done % COMMIT == 0:
            now = time.perf_counter()
            phases["process"] += now - mark
            task.take_commit()
            state.commit()
            mark = time.perf_counter()
            phases["state"] += mark - now
    seconds = time.perf_counter() - began
    cpu = time.process_time() - cpu
    task.close()
    state.close()
    return Result(
        name,
        RECORDS / seconds,
        cpu / RECORDS * 1e6,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        phases,
    )
