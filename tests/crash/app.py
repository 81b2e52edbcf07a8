"""The application that is killed: tasks of every kind, whose outputs say enough for `oracle` to judge each of them."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock import STREAM_TIME, WALL_CLOCK_TIME, BatchProcessor, Processor, Record, Topology, key_value_store
from penstock.record import OutputBatch, RecordMetadata
from penstock.store.kinds.timers import TimerStore

ORDERS, REFUNDS, PRODUCTS, PINGS = "orders", "refunds", "products", "pings"
ANSWERS, TOTALS, TICKS, PONGS, REMINDERS = "answers", "totals", "ticks", "pongs", "reminders"
INPUTS = {ORDERS: 3, REFUNDS: 3, PRODUCTS: 2, PINGS: 2}
OUTPUTS = {ANSWERS: 3, TOTALS: 2, TICKS: 1, PONGS: 2, REMINDERS: 2}
REPARTITION = "crash-by-product-repartition"
REPARTITIONS = 2
INTERNAL = {REPARTITION: REPARTITIONS}
CUSTOMERS = [f"customer-{number}" for number in range(40)]
ARTICLES = [f"product-{number}" for number in range(7)]
TIME_STEP_MS = 20
"""How much later each order is than the one before, by its timestamp."""
REPORT_MS = 1_000
SLOW = "slow"
"""A file in CRASH_DATA with the number of seconds that an answer to a ping takes."""


class Ledger(Processor):
    """Keeps each customer's balance of orders and refunds, answers each with it, and counts the ticks of the wall
    clock.

    An order gets a random token, so that processing it a second time does not go unnoticed. It gets two reminders: when
    stream time has passed it, and a moment after that by the wall clock.
    """

    def init(self, context: Any) -> None:
        super().init(context)
        self.balances, self.tokens = context.get_store("balances"), context.get_store("tokens")
        context.schedule("2s", self.tick, WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        number = _number(self.context.record_metadata)
        if number.startswith(ORDERS):
            product, _, amount = record.value.partition(" ")
            token, change = secrets.token_hex(4), int(amount)
            self.tokens.put(number, token)
            due = max(record.timestamp + 1, self.context.current_stream_time_ms())
            self.context.timer(f"{number} {record.key} stream", due, STREAM_TIME)
            self.context.forward(record.with_key(product).with_value(f"{number} {amount}"), to="by-product-filter")
        else:
            token, change = "-", -int(record.value)
        balance = (self.balances.get(record.key) or 0) + change
        self.balances.put(record.key, balance)
        self.context.forward(record.with_value(f"{number} {token} {balance}"), to="answers")

    def on_timer(self, key: str, at: int) -> None:
        number, customer, clock = key.split(" ")
        self.context.forward(Record(customer, f"{number} {clock}", at), to="reminders")
        if clock == "stream":
            soon = self.context.current_system_time_ms() + 50
            self.context.timer(f"{number} {customer} wall", soon, WALL_CLOCK_TIME)

    def tick(self, now: int) -> None:
        count = (self.balances.get("ticks") or 0) + 1
        self.balances.put("ticks", count)
        self.context.forward(Record(self.context.task_id, str(count), now), to="ticks")


class Sales(Processor):
    """Counts and adds up each product's orders, joins them with the product's version, and reports as stream time
    passes."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.sales, self.progress = context.get_store("sales"), context.get_store("progress")
        self.products = context.get_store("products")
        context.schedule(f"{REPORT_MS}ms", self.report, STREAM_TIME)

    def process(self, record: Record) -> None:
        number, _, amount = record.value.partition(" ")
        count, total = self.sales.get(record.key) or (0, 0)
        count, total = count + 1, total + int(amount)
        self.sales.put(record.key, [count, total])
        done = (self.progress.get("done") or 0) + 1
        self.progress.put("done", done)
        version = self.products.get(record.key)
        self.context.forward(record.with_value(f"{self.context.task_id} {done} {number} {count} {total} {version}"))

    def report(self, now: int) -> None:
        with self.sales.all() as entries:
            counted = sum(count for _, (count, _) in entries)
        value = f"{self.context.task_id} {self.progress.get('done') or 0} report {counted} {now} -"
        self.context.forward(Record(self.context.task_id, value, now))


class Pong(Processor):
    """Answers two pings of three; keeps nothing. Takes its time while there is the file `SLOW`."""

    def process(self, record: Record) -> None:
        if (slow := Path(os.environ.get("CRASH_DATA", "")) / SLOW).exists():
            time.sleep(float(slow.read_text() or 0))
        if int(record.value) % 3:
            self.context.forward(record.with_value(_number(self.context.record_metadata)))


class LedgerInBatches(Ledger, BatchProcessor):
    """The same for many records in one call."""

    def process_batch(self, records: Sequence[Record]) -> None:
        for record in records:
            self.process(record)


class SalesInBatches(Sales, BatchProcessor):
    """The same for many records in one call."""

    max_wait = "200ms"

    def process_batch(self, records: Sequence[Record]) -> None:
        for record in records:
            self.process(record)


class Keep(Processor):
    """Fills the global store."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.products = context.get_store("products")

    def process(self, record: Record) -> None:
        self.products.put(record.key, int(record.value))


def _number(where: RecordMetadata | None) -> str:
    """Return the name of an input, which nothing else has."""
    assert where is not None
    return f"{where.topic}-{where.partition}-{where.offset}"


def make_batches() -> Topology:
    """Return the same topology, whose processors with stores are BatchProcessors."""
    return make_topology(LedgerInBatches, SalesInBatches)


def make_topology(ledger: type[Ledger] = Ledger, sales: type[Sales] = Sales) -> Topology:
    """Return three sub-topologies: two inputs that share a store, what counts behind a repartition topic, and one
    without state."""
    return (
        Topology()
        .add_source("orders", ORDERS)
        .add_source("refunds", REFUNDS)
        .add_processor(
            "ledger",
            ledger,
            ["orders", "refunds"],
            stores=[key_value_store("balances", key_serde="str"), key_value_store("tokens", key_serde="str")],
        )
        .add_sink("answers", ANSWERS, "ledger")
        .add_sink("ticks", TICKS, "ledger")
        .add_sink("reminders", REMINDERS, "ledger")
        .add_repartition("by-product", "ledger", partitions=REPARTITIONS)
        .add_global_store(key_value_store("products", key_serde="str"), "products", PRODUCTS, "keep", Keep)
        .add_processor(
            "sales",
            sales,
            "by-product",
            stores=[key_value_store("sales", key_serde="str"), key_value_store("progress", key_serde="str")],
        )
        .add_sink("totals", TOTALS, "sales")
        .add_source("pings", PINGS)
        .add_processor("pong", Pong, "pings")
        .add_sink("pongs", PONGS, "pong")
    )


class Input:
    """Makes input: orders, and some of all else. Each order is TIME_STEP_MS later than the one before."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now = 1_000_000
        self._version = 0

    def batches(self, count: int) -> Iterator[OutputBatch]:
        """Yield so many orders, and some of all else."""
        yield self._batch(
            ORDERS, [(self._customer(), f"{self._article()} {self._random.randrange(1, 100)}") for _ in range(count)]
        )
        yield self._batch(REFUNDS, [(self._customer(), str(self._random.randrange(1, 50))) for _ in range(count // 4)])
        yield self._batch(PINGS, [(self._customer(), str(self._random.randrange(1_000))) for _ in range(count // 4)])
        if self._version == 0 or self._random.random() < 0.2:
            self._version += 1
            yield self._batch(PRODUCTS, [(article, str(self._version)) for article in self._random.sample(ARTICLES, 3)])

    def backlog(self) -> Iterator[OutputBatch]:
        """Yield some of everything."""
        yield from self.batches(200)

    def push(self) -> Iterator[OutputBatch]:
        """Yield nothing: no result waits for time."""
        yield from ()

    def _customer(self) -> str:
        return self._random.choice(CUSTOMERS)

    def _article(self) -> str:
        return self._random.choice(ARTICLES)

    def _batch(self, topic: str, records: list[tuple[str, str]]) -> OutputBatch:
        times = []
        for _ in records:
            self._now += TIME_STEP_MS if topic == ORDERS else 0
            times.append(self._now)
        return OutputBatch(topic, [key.encode() for key, _ in records], [value.encode() for _, value in records], times)


def entries(name: str, store: Any, task_id: str) -> dict[str, Any]:
    """Return what a task's store has; a key that each task has is TASK/KEY."""
    if isinstance(store, TimerStore):
        return {}
    with store.all() as found:
        return {f"{task_id}/{key}" if key in ("ticks", "done") else key: value for key, value in found}
