"""What the tests of Kafka's edges share: the running total of each customer's orders, without Spark, on a real
broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock import Application, Processor, Record, TopicPartition, Topology, key_value_store
from penstock.errors import FencedError
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.record import OutputBatch

from ..processes import opened_workers
from ..waiting import readable_end
from .names import fresh_name

PATIENCE_SECONDS = 180.0


class Add(Processor):
    """Adds amounts up by key."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.totals = context.get_store("totals")

    def process(self, record: Record) -> None:
        total = (self.totals.get(record.key) or 0) + int(record.value)
        self.totals.put(record.key, total)
        self.context.forward(record.with_value(str(total)))


class Shop:
    """An application with names of its own on a broker. Each `open` is a process of its own as far as the broker can
    tell."""

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        *,
        partitions: int = 1,
        create: bool = True,
        sink: Any = None,
        config: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.id = fresh_name("shop")
        self.orders, self.totals = f"{self.id}.orders", f"{self.id}.totals"
        self.partitions = partitions
        self._sold: dict[str, int] = {}
        self.expected: list[tuple[str, str]] = []
        """What the topic of totals has to hold, by order within each customer."""
        topology = (
            Topology()
            .add_source("orders", self.orders)
            .add_processor("add", Add, "orders", stores=[key_value_store("totals", backend="memory")])
            .add_sink("totals-out", sink or self.totals, "add")
        )
        self._settings: dict[str, Any] = {
            "log": f"kafka:{bootstrap}", "data_dir": str(directory / self.id), "changelog": f"memory:{self.id}",
            "key_serde": "str", "value_serde": "str", "task_timeout": "30s", **settings,
        }  # fmt: skip
        self.use(topology)
        if create:
            with self.log() as log:
                log.create_topic(self.orders, partitions)
                log.create_topic(self.totals, partitions, config)

    def use(self, topology: Topology, **settings: Any) -> None:
        """Have the next run use another program, and these settings."""
        self._settings |= settings
        self.application = Application(self.id, topology, **self._settings)

    @contextmanager
    def log(self, **settings: Any) -> Iterator[KafkaLog]:
        """Open the log."""
        log = open_log(self.application.with_settings(**settings).settings)
        assert isinstance(log, KafkaLog)
        try:
            yield log
        finally:
            log.close()

    def sell(self, *orders: tuple[str, int]) -> None:
        """Append orders: (customer, amount)."""
        with self.log() as log:
            log.append(
                OutputBatch(
                    self.orders,
                    [customer.encode() for customer, _ in orders],
                    [str(amount).encode() for _, amount in orders],
                    [1_000] * len(orders),
                )
            )
        for customer, amount in orders:
            self._sold[customer] = self._sold.get(customer, 0) + amount
            self.expected.append((customer, str(self._sold[customer])))

    @contextmanager
    def workers(self, **settings: Any) -> Iterator[tuple[KafkaLog, list[TaskWorker]]]:
        """Start the application as a runner would, and close everything at the end."""
        application = self.application.with_settings(**settings)
        with self.log(**settings) as log, opened_workers(application, log) as workers:
            yield log, workers

    @contextmanager
    def worker(self, **settings: Any) -> Iterator[tuple[KafkaLog, TaskWorker]]:
        """Start the application's only task."""
        with self.workers(**settings) as (log, (worker,)):
            yield log, worker

    def run(self, **settings: Any) -> list[TaskReport]:
        """Process everything there is; return each task's reports."""
        with self.workers(**settings) as (log, workers):
            return [report for worker in workers for report in drain(log, worker)]

    def sold(self, log: KafkaLog | None = None) -> list[tuple[str, str]]:
        """Return what the topic of totals holds, as a reader of committed records sees it."""
        if log is None:
            with self.log() as opened:
                return self.sold(opened)
        return [(key.decode(), value.decode()) for key, value in contents(log, self.totals)]

    def position(self, log: KafkaLog) -> int | None:
        """Return the committed position in partition 0 of the orders."""
        partition = TopicPartition(self.orders, 0)
        return log.committed(self.id, [partition])[partition]

    def is_exact(self) -> None:
        """Assert that each order counts once."""
        again(self.run)
        found = self.sold()
        assert sorted(found) == sorted(self.expected)
        for customer in self._sold:
            assert [each for each in found if each[0] == customer] == [e for e in self.expected if e[0] == customer]


def drain(log: KafkaLog, worker: TaskWorker) -> list[TaskReport]:
    """Run a task until it has read everything."""
    reports = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        reports.append(worker.run_batch(log.end_offsets(worker.partitions), 0))
        if reports[-1].positions == log.end_offsets(worker.partitions):
            return reports
        assert time.monotonic() < deadline


def again(doing: Callable[[], object]) -> None:
    """Do what the runner does with a task that was fenced."""
    while True:
        try:
            doing()
        except FencedError:
            time.sleep(0.05)  # a broker that died may still move what it had
            continue
        return


def contents(log: KafkaLog, topic: str, *, waits: bool = True) -> list[tuple[bytes, bytes]]:
    """Return the keys and values of a topic, by partition and offset, once no transaction holds them back.

    With `waits=False` what can be read now: for a caller whose own thread has to end an open transaction.
    """
    found = []
    for number in range(log.topics()[topic].partitions):
        partition = TopicPartition(topic, number)
        end = readable_end(log, partition) if waits else log.end_offsets([partition])[partition]
        at = log.start_offsets([partition])[partition]
        while at < end:
            batches = log.fetch(partition, at, end, 1 << 24)
            found += [each for batch in batches for each in zip(batch.keys, batch.values, strict=True)]
            at = batches[-1].next_offset if batches else end
    return found  # type: ignore[return-value]
