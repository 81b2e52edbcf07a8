"""Bare tasks for tests: no log, no worker, stores in memory; and records as a log would hand them over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock import Application, Processor, Record, Topology
from penstock.plugins.engine.task.local_state.store_context import TaskStoreContext
from penstock.program.nodes import TaskId
from penstock.record import Headers, OutputBatch, RecordBatch, TopicPartition
from penstock.store import StateStore, StoreBuilder
from penstock.store.record_cache import CacheBudget, RecordCache
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.memory import MemoryBackend
from penstock.support.names import index_name
from penstock.support.repeats import Repeats
from penstock.task.failures import FailureKey
from penstock.task.input_queue import TaskInput
from penstock.task.task import Task

Given = tuple[Any, ...]
"""(key, value, timestamp) or (key, value, timestamp, headers) of a record; key and value as text, bytes or None."""


class Pass(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)


class Calling(Processor):
    """Calls a function for each record, with the processor's context."""

    def __init__(self, run: Callable[[Any, Record], Any]) -> None:
        self.run = run

    def process(self, record: Record) -> None:
        self.run(self.context, record)


def open_task(
    topology: Topology,
    *,
    partitions: dict[str, list[int]] | None = None,
    saved: bytes = b"",
    wall_clock_ms: int = 0,
    attempt: Callable[[FailureKey], int] = lambda failed: 1,
    partition_count: Callable[[str], int] | None = None,
    **settings: Any,
) -> Task:
    """The task of sub-topology 0 that reads partition 0 of each topic, or what `partitions` says."""
    application = Application("app", topology, **{"store_backend": "memory", **settings})
    subtopology = application.program.subtopologies[0]
    inputs = [
        TaskInput(TopicPartition(topic, partition), source)
        for source in subtopology.sources
        for topic in source.topics
        for partition in (partitions or {}).get(topic, [0])
    ]
    names = [store.name for store in subtopology.stores]
    backend = MemoryBackend.ephemeral([*names, *map(index_name, names)])
    serde = application.settings.state_serde

    def built(store: StoreBuilder) -> StateStore:
        index = CommitBuffer(backend, index_name(store.name))
        context = TaskStoreContext(
            application.id,
            "0_0",
            serde,
            {},
            lambda: -1,
            lambda: 0,
            lambda reason, count: None,
            index,
            store.traits.expires,
            RecordCache(store.name, CacheBudget(0)),
            Repeats(lambda: 0),
        )
        return store.build(CommitBuffer(backend, store.name), context)

    return Task(
        TaskId(subtopology.id, 0),
        subtopology,
        application.id,
        application.settings,
        inputs,
        {store.name: built(store) for store in subtopology.stores},
        {},
        saved=saved,
        wall_clock_ms=wall_clock_ms,
        attempt=attempt,
        partition_count=partition_count,
    )


def batch(topic: str, *records: Given, partition: int = 0, offset: int = 0) -> RecordBatch:
    """Records of one partition from `offset` on."""
    headers: list[Headers] = [tuple(each[3]) if len(each) > 3 else () for each in records]
    return RecordBatch(
        topic,
        partition,
        list(range(offset, offset + len(records))),
        [raw(each[0]) for each in records],
        [raw(each[1]) for each in records],
        [each[2] for each in records],
        headers if any(headers) else None,
        offset + len(records),
    )


def outputs(topic: str, *records: Given) -> OutputBatch:
    """Records to produce to a topic."""
    given = batch(topic, *records)
    return OutputBatch(
        topic,
        list(given.keys),
        list(given.values),
        list(given.timestamps),
        list(given.headers) if given.headers is not None else None,
    )


def raw(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def values(task: Task, topic: str = "out") -> list[str]:
    """The values that the task has produced to a topic since the last call."""
    return [
        "-" if value is None else value.decode()
        for each in task.take_outputs()
        if each.topic == topic
        for value in each.values
    ]


def one_node(
    run: Callable[..., Any] | type[Processor],
    *topics: str,
    sink: bool = True,
    stores: Iterable[Any] = (),
    **options: Any,
) -> Topology:
    """Source "in" (of topics) -> processor "p" -> sink "out". `run` is a processor class or what one calls."""
    topology = Topology().add_source("in", *(topics or ("in",)))
    if isinstance(run, type):
        topology.add_processor("p", run, "in", stores=list(stores), **options)
    else:
        topology.add_processor("p", Calling, "in", stores=list(stores), run=run)
    return topology.add_sink("out", "out", "p") if sink else topology
