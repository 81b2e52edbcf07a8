"""Runs an application over a log in memory, without an engine, and reads what it wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock import Application, Lease, Log, OutputBatch, SystemClock, TopicPartition
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.stored_id import check_sources, stored_application
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.transfer.reshard import plan_reshard, reshard
from penstock.plugins.state.transfer.reshard.resharding import Resharded

from ..leases import brief_lease

Rows = Iterable[tuple[str, str, int]]
"""Key, value, timestamp."""


def produce(log: Log, topic: str, rows: Rows) -> None:
    """Append records."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    times = []
    for key, value, time in rows:
        keys.append(key.encode())
        values.append(value.encode() or None)
        times.append(time)
    log.append(OutputBatch(topic, keys, values, times))


def run(application: Application, log: Log) -> Application:
    """Process everything that the log has, as any run does, and close; return the application as it ran."""
    check_sources(application, log)
    prepared = prepare(stored_application(application, log), log)
    resources, now_ms = ProcessResources(), SystemClock().now_ms()
    workers = [
        TaskWorker(prepared.application, task, partitions, log, resources=resources)
        for task, partitions in prepared.assignment.tasks.items()
    ]
    try:
        positions: dict[TopicPartition, int] = {}
        while True:
            before = dict(positions)
            for worker in workers:
                positions |= worker.run_batch(log.end_offsets(worker.partitions), now_ms).positions
            prepared.committed.add(positions)
            if positions == before:
                return prepared.application
    finally:
        for worker in workers:
            worker.close()
        resources.close()


def outputs(log: Log, topic: str = "out") -> Mapping[bytes | None, list[tuple[bytes | None, int]]]:
    """Return the values and times of each key in a topic, in order."""
    found: dict[bytes | None, list[tuple[bytes | None, int]]] = defaultdict(list)
    partitions = [TopicPartition(topic, number) for number in range(log.topic(topic).partitions)]
    for partition, end in log.end_offsets(partitions).items():
        at = 0
        while at < end:
            batches = log.fetch(partition, at, end, 1 << 20)
            for batch in batches:
                for key, value, time in zip(batch.keys, batch.values, batch.timestamps, strict=True):
                    found[key].append((value, time))
            at = batches[-1].next_offset if batches else end
    return found


def resharded(application: Application, log: Log, partitions: int, **options: Any) -> Resharded:
    """Reshard an application."""
    return reshard(plan_reshard(application, log, partitions, **options), log, lease(application, log))


def lease(application: Application, log: Log) -> Lease:
    """Return a lease of an application, as `brief_lease`."""
    return brief_lease(log, application.id)


def new_log(topics: Mapping[str, int]) -> MemoryLog:
    """Return a log with topics."""
    log = MemoryLog()
    for topic, partitions in topics.items():
        log.create_topic(topic, partitions)
    return log


def settings(directory: Path, changelog: str) -> dict[str, Any]:
    """Return the settings of applications of these tests."""
    return {
        "log": "memory:x",
        "changelog": changelog,
        "data_dir": str(directory),
        "store_backend": "memory",
        "key_serde": "str",
        "value_serde": "str",
        "state_serde": "str",
    }
