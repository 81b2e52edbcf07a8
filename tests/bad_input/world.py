"""What the tests of bad input share: an application on a local log, LMDB and a directory changelog, and what is in all
of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock import Application, Log, OutputBatch, Processor, Record, TopicPartition, Topology, key_value_store
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.testing.contracts.child import answer, forked
from penstock.program.nodes import SinkNode

from ..processes import let_everybody_in, opened_workers

Given = tuple[Any, ...]
"""(key, value) or (key, value, timestamp) of a record; key and value as text or bytes."""

ORDERS: Sequence[Given] = [("ann", "3"), ("bob", "5"), ("ann", "4"), ("dan", "1"), ("bob", "2"), ("ann", "9")]
"""Good records of the program below."""

NOBODY = 65534


class Total(Processor):
    """Adds amounts up by key and commits after each record, so that an error finds commits before it."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.totals = context.get_store("totals")

    def process(self, record: Record) -> None:
        total = (self.totals.get(record.key) or 0) + int(record.value)
        self.totals.put(record.key, total)
        self.context.forward(record.with_value(str(total)))
        self.context.commit()


def totals(supplier: Any = Total, **source: Any) -> Topology:
    """The program that most tests run: orders in, the total of each customer out."""
    return (
        Topology()
        .add_source("orders", "orders", **source)
        .add_processor("total", supplier, "orders", stores=[key_value_store("totals")])
        .add_sink("totals-out", "totals-by-customer", "total")
    )


@dataclass(frozen=True)
class Contents:
    """What an application left behind: records by topic and partition, entries by task and store, positions."""

    topics: Mapping[tuple[str, int], list[tuple[bytes | None, bytes | None, int]]]
    stores: Mapping[tuple[str, str], list[tuple[Any, Any]]]
    positions: Mapping[TopicPartition, int | None]


class World:
    """A directory with a log, a changelog and state. Each `run` is a process of its own as far as files can tell."""

    def __init__(self, directory: Path, topology: Topology, *, partitions: int = 2, **settings: Any) -> None:
        self.directory = directory
        self.partitions = partitions
        self.changelog = directory / "changelog"
        self.state = directory / "state"
        self.log = directory / "log"
        self._settings = {"data_dir": str(directory), "key_serde": "str", "value_serde": "str", **settings}
        self.application = Application("shop", topology, **self._settings)
        self.create(*self._topics())

    def _topics(self) -> list[str]:
        program = self.application.program
        sinks = [node.topic for node in program.nodes.values() if isinstance(node, SinkNode)]
        named = [*program.topics(), *(topic for topic in sinks if isinstance(topic, str))]
        return [topic for topic in dict.fromkeys(named) if topic not in program.internal_topics]

    def change(self, topology: Topology | None = None, **settings: Any) -> None:
        """Have the next run use another program or other settings."""
        self._settings |= settings
        self.application = Application("shop", topology or self.application.topology, **self._settings)

    @contextmanager
    def open(self) -> Iterator[Log]:
        """Open the log."""
        log = open_log(self.application.settings)
        try:
            yield log
        finally:
            log.close()

    def create(self, *topics: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        """Create topics."""
        with self.open() as log:
            for topic in topics:
                log.create_topic(topic, partitions or self.partitions, config)

    def produce(self, topic: str, *records: Given, partition: int | None = None) -> None:
        """Append records; the n-th has the timestamp n unless it says another."""
        keys, values, times = zip(*((*record, number)[:3] for number, record in enumerate(records)))
        partitions: list[Sequence[int] | None] | None = None if partition is None else [(partition,)] * len(records)
        with self.open() as log:
            log.append(
                OutputBatch(
                    topic,
                    [_bytes(key) for key in keys],
                    [_bytes(value) for value in values],
                    list(times),
                    partitions=partitions,
                )
            )

    @contextmanager
    def workers(self) -> Iterator[tuple[Log, list[TaskWorker]]]:
        """Start the application as a runner would, and close everything at the end."""
        with self.open() as log, opened_workers(self.application, log) as workers:
            yield log, workers

    def run(self, *, wall_clock_ms: int = 0) -> list[TaskReport]:
        """Process everything there is; return each task's reports."""
        reports: list[TaskReport] = []
        with self.workers() as (log, workers):
            while True:
                reports += [worker.run_batch(log.end_offsets(worker.partitions), wall_clock_ms) for worker in workers]
                if all(
                    position == log.end_offsets([partition])[partition]
                    for worker in workers
                    for partition, position in log.committed("shop", worker.partitions).items()
                ):
                    return reports

    def run_as_nobody(self, limit: int | None = None) -> str:
        """Run in a child process; return how its error reads. Root, to whom every file is open, becomes somebody
        else."""

        def child(connection: Connection) -> None:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            connection.send(self.failure())

        self.give_away()
        with forked(child) as connection:
            return str(answer(connection))

    def failure(self) -> str:
        """Run, and return the error as "KIND: MESSAGE"; "" if there was none."""
        try:
            self.run()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def give_away(self) -> None:
        """Let nobody into the directory and give them what is in it, when root runs the tests."""
        let_everybody_in(self.directory.parent)
        if os.getuid() == 0:
            for path in (self.directory, *self.directory.rglob("*")):
                os.chown(path, NOBODY, NOBODY)

    def forget_state(self) -> None:
        """Delete this host's copies, as when the application starts on another host."""
        shutil.rmtree(self.state)

    def contents(self) -> Contents:
        """Return what there is now. Both the local copies and the changelog are read, and must agree."""
        found = self._contents()
        if self.state.exists():
            self.forget_state()
        restored = self._contents()
        assert found.stores == restored.stores
        return found

    def _contents(self) -> Contents:
        with self.workers() as (log, workers):
            stores = {}
            for worker in workers:
                worker.run_batch({}, 0)
                assert worker.task is not None
                for name, store in worker.task.stores.items():
                    stores[str(worker.id), name] = list(store.all())  # type: ignore[attr-defined]
            topics = {}
            for name, info in log.topics().items():
                for number in range(info.partitions):
                    partition = TopicPartition(name, number)
                    end = log.end_offsets([partition])[partition]
                    start = log.start_offsets([partition])[partition]
                    batches = log.fetch(partition, start, end, 1 << 30)
                    topics[name, number] = [
                        each for batch in batches for each in zip(batch.keys, batch.values, batch.timestamps)
                    ]
            partitions = [each for worker in workers for each in worker.partitions]
            return Contents(topics, stores, log.committed("shop", partitions))


MakeWorld = Callable[..., World]


def says(text: object, *parts: str) -> None:
    """Assert that a message has these parts, in this order."""
    message, at = str(text), 0
    for part in parts:
        found = message.find(part, at)
        assert found >= 0, f"{part!r} is not in the message (or not in this order):\n{message}"
        at = found + len(part)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
