"""One way to run an example in the test driver and on an engine: records in, records out."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from penstock import Application, OutputBatch, Record, TopicPartition, run
from penstock.log import Log
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.testing import TopologyTestDriver
from penstock.program.nodes import SinkNode, SourceNode
from penstock.program.serdes import resolve_serde

from ..waiting import readable_end

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

Row = tuple[Any, Any, int]
"""Key, value and timestamp of a record to pipe."""


def load(name: str) -> Any:
    """The module of an example; the names begin with a number, so they cannot be written in an import."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


class Runner(Protocol):
    """Runs an application over the records of one topic and answers what came out, for each topic in the order of each
    key."""

    def __call__(self, application: Application, topic: str, rows: Iterable[Row]) -> dict[str, list[Record]]: ...


def in_the_driver(application: Application, topic: str, rows: Iterable[Row]) -> dict[str, list[Record]]:
    """One record at a time, two partitions a topic; every task is opened again after each step, unless there are
    many."""
    records = [Record(*row) for row in rows]
    with TopologyTestDriver(application, partitions=2, reopen_tasks=len(records) < 100) as driver:
        driver.pipe_all(topic, records)
        return {output: driver.read_all(output) for output in application.program.sink_topics()}


class OnAnEngine:
    """All records in two runs, between which everything ends. `session`: of Spark; without one, the embedded engine
    runs the example."""

    def __init__(self, session: Any = None, **settings: Any) -> None:
        self._options = {} if session is None else {"session": session}
        self._settings = settings if session is not None else {**settings, "engine": "embedded"}
        self.ran: set[str] = set()
        """The ids of the applications that ran."""
        self.topics: set[str] = set()
        """The topics that were made for them; the applications made their internal ones."""

    def __call__(self, application: Application, topic: str, rows: Iterable[Row]) -> dict[str, list[Record]]:
        application = application.with_settings(**self._settings)
        self.ran.add(application.id)
        rows = list(rows)
        with opened(application) as log:
            for name in (topic, *application.program.sink_topics()):
                log.create_topic(name, 2)
                self.topics.add(name)
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            with opened(application) as log:
                log.append(serialized(application, topic, part))
            summary = run(application, **self._options)
            assert summary.lag == 0
        with opened(application) as log:
            return {output: list(read(application, log, output)) for output in application.program.sink_topics()}


@contextmanager
def opened(application: Application) -> Iterator[Log]:
    log = open_log(application.settings)
    try:
        yield log
    finally:
        log.close()


def serialized(application: Application, topic: str, rows: list[Row]) -> OutputBatch:
    settings = application.settings
    source = next(
        node for node in application.program.nodes.values() if isinstance(node, SourceNode) and topic in node.topics
    )
    key_serde = resolve_serde(source.key_serde, settings.key_serde, topic)
    value_serde = resolve_serde(source.value_serde, settings.value_serde, topic)
    return OutputBatch(
        topic,
        [None if key is None else key_serde.serialize(key) for key, _, _ in rows],
        [None if value is None else value_serde.serialize(value) for _, value, _ in rows],
        [timestamp for _, _, timestamp in rows],
    )


def read(application: Application, log: Log, topic: str) -> Iterator[Record]:
    settings = application.settings
    sink = next(
        node for node in application.program.nodes.values() if isinstance(node, SinkNode) and node.topic == topic
    )
    key_serde = resolve_serde(sink.key_serde, settings.key_serde, topic)
    value_serde = resolve_serde(sink.value_serde, settings.value_serde, topic)
    for number in range(log.topics()[topic].partitions):
        partition = TopicPartition(topic, number)
        start, end = 0, readable_end(log, partition)
        while start < end:
            batches = log.fetch(partition, start, end, 1 << 24)
            if not batches:
                break  # marks of Kafka's transactions
            for batch in batches:
                start = batch.next_offset
                for key, value, timestamp in zip(batch.keys, batch.values, batch.timestamps, strict=True):
                    yield Record(
                        None if key is None else key_serde.deserialize(key),
                        None if value is None else value_serde.deserialize(value),
                        timestamp,
                    )


def by_key(found: Iterable[Record]) -> dict[Any, list[Any]]:
    """The values of each key, in order."""
    values: dict[Any, list[Any]] = {}
    for record in found:
        values.setdefault(record.key, []).append(record.value)
    return values
