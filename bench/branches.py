"""A dict that goes to two branches: the Task alone, beside the same program with one branch."""

from __future__ import annotations

import json
import resource
import statistics
import time
from typing import Any

from penstock import Application, TaskId, Topology
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.engine.task.process_resources import tune_garbage_collector
from penstock.record import RecordBatch, TopicPartition

from .result import Result
from .task_stores import task_with_memory_stores

RECORDS = 300_000
BATCH = 5_000
ROUNDS = 3
ORDER = {
    "id": 17,
    "customer": "anna",
    "price": 12.5,
    "lines": [{"item": "tea", "count": 2}, {"item": "cup", "count": 1}],
}
"""What each record has, as JSON."""


def branches() -> Result:
    """A record with a dict to two map_values, by turns with one with a text: microseconds a record, and of the copy."""
    tune_garbage_collector()
    cases = {(kind, count): _topology(kind, count) for kind in ("json", "str") for count in (1, 2)}
    found: dict[Any, list[float]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for case, topology in cases.items():
            found[case].append(_cpu_us(topology))
    us = {case: statistics.median(each) for case, each in found.items()}
    result = Result(
        "branches",
        1e6 / us["json", 2],
        us["json", 2],
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        {},
    )
    result.notes = {
        f"{kind}, {count} branch{'es' if count > 1 else ''}": f"{us[kind, count]:.2f} us a record" for kind, count in us
    }
    return result


def _topology(kind: str, count: int) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("bench-in", value_serde=kind)
    for number in range(count):
        stream.map_values(lambda value: 1).to(f"bench-out-{number}", value_serde="int")
    return builder.build(Application("bench", builder).settings)


def _cpu_us(topology: Topology) -> float:
    application = Application("bench", topology, store_backend="memory")
    source = application.program.subtopologies[0].sources[0]
    task, state = task_with_memory_stores(application, TaskId(0, 0), [(TopicPartition("bench-in", 0), source)])
    value, none = json.dumps(ORDER).encode(), None
    began = time.process_time()
    for first in range(0, RECORDS, BATCH):
        offsets = range(first, first + BATCH)
        task.feed(
            RecordBatch("bench-in", 0, offsets, [b"k"] * BATCH, [value] * BATCH, [0] * BATCH, none, first + BATCH)
        )
        task.process(BATCH)
        task.take_commit()
    cpu = time.process_time() - began
    task.close()
    state.close()
    return cpu / RECORDS * 1e6
