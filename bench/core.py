"""The Task alone, no edges: records in, outputs and state changes out, in one process."""

from __future__ import annotations

import resource
import time

from penstock import Application
from penstock.plugins.runtime.process_resources import tune_garbage_collector
from penstock.plugins.testing.stores import task_with_memory_stores
from penstock.program.nodes import TaskId
from penstock.record import RecordBatch, TopicPartition

from .data import zipf_keys
from .programs import count_topology
from .result import Result

RECORDS = 2_000_000
KEYS = 100_000
BATCH = 5_000
COMMIT = 250_000
REPEATS = 3


def core_count() -> Result:
    """Stateful count that emits every update: the Task with its stores, flushed every 250,000 records."""
    tune_garbage_collector()
    best: Result | None = None
    for _ in range(REPEATS):
        result = _once()
        if best is None or result.records_per_s > best.records_per_s:
            best = result
    assert best is not None
    return best


def _once() -> Result:
    application = Application("bench", count_topology(), store_backend="memory")
    source = application.program.subtopologies[0].sources[0]
    partition = TopicPartition("bench-in", 0)
    task, state = task_with_memory_stores(application, TaskId(0, 0), [(partition, source)])
    keys = zipf_keys(RECORDS, KEYS)
    value = b"x" * 91
    batches = [
        RecordBatch(
            "bench-in", 0, range(first, first + BATCH), keys[first : first + BATCH],
            [value] * BATCH, list(range(first, first + BATCH)), None, first + BATCH,
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
        "core-count",
        RECORDS / seconds,
        cpu / RECORDS * 1e6,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        phases,
    )
