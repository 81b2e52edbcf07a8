"""The application that is killed: tasks of every kind, whose outputs say enough for `oracle` to judge each of them."""

from __future__ import annotations

import os
import secrets
from typing import Any

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Application, Processor, Record, Topology, key_value_store
from penstock.record import RecordMetadata

ID = "crash"
ORDERS, REFUNDS, PRODUCTS, PINGS = "orders", "refunds", "products", "pings"
ANSWERS, TOTALS, TICKS, PONGS = "answers", "totals", "ticks", "pongs"
INPUTS = {ORDERS: 3, REFUNDS: 3, PRODUCTS: 2, PINGS: 2}
OUTPUTS = {ANSWERS: 3, TOTALS: 2, TICKS: 1, PONGS: 2}
REPARTITION = f"{ID}-by-product-repartition"
REPARTITIONS = 2
REPORT_MS = 1_000
TRANSACTION_SECONDS = 10
GRACE_SECONDS = 2


class Ledger(Processor):
    """Keeps each customer's balance of orders and refunds, answers each with it, and counts the ticks of the wall
    clock.

    An order gets a random token, so that processing it a second time does not go unnoticed.
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
            self.context.forward(record.with_key(product).with_value(f"{number} {amount}"), to="by-product-filter")
        else:
            token, change = "-", -int(record.value)
        balance = (self.balances.get(record.key) or 0) + change
        self.balances.put(record.key, balance)
        self.context.forward(record.with_value(f"{number} {token} {balance}"), to="answers")

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
    """Answers two pings of three; keeps nothing."""

    def process(self, record: Record) -> None:
        if int(record.value) % 3:
            self.context.forward(record.with_value(_number(self.context.record_metadata)))


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


def make_topology() -> Topology:
    """Return three sub-topologies: two inputs that share a store, what counts behind a repartition topic, and one
    without state."""
    return (
        Topology()
        .add_source("orders", ORDERS)
        .add_source("refunds", REFUNDS)
        .add_processor(
            "ledger",
            Ledger,
            ["orders", "refunds"],
            stores=[key_value_store("balances", key_serde="str"), key_value_store("tokens", key_serde="str")],
        )
        .add_sink("answers", ANSWERS, "ledger")
        .add_sink("ticks", TICKS, "ledger")
        .add_repartition("by-product", "ledger", partitions=REPARTITIONS)
        .add_global_store(key_value_store("products", key_serde="str"), "products", PRODUCTS, "keep", Keep)
        .add_processor(
            "sales",
            Sales,
            "by-product",
            stores=[key_value_store("sales", key_serde="str"), key_value_store("progress", key_serde="str")],
        )
        .add_sink("totals", TOTALS, "sales")
        .add_source("pings", PINGS)
        .add_processor("pong", Pong, "pings")
        .add_sink("pongs", PONGS, "pong")
    )


def make_application(
    data: str, log: str, guarantee: str, changelog: str, host: str, backend: str = "lmdb"
) -> Application:
    """Return the application; what a host keeps for itself is in directories named after it."""
    return Application(
        ID,
        make_topology(),
        data_dir=data,
        log=log,
        state_dir=f"state-{host}",
        checkpoint_dir=f"checkpoint-{host}",
        processing_guarantee=guarantee,
        changelog=changelog,
        store_backend=backend,
        changelog_grace=f"{GRACE_SECONDS}s",
        # Several commits a batch, so that a fault meets more than the end of one.
        commit_interval="50ms",
        fetch_bytes=4_000,
        # A worker is not to be frozen for a minute until Kafka gives its transaction up.
        clients={"producer.transaction.timeout.ms": str(TRANSACTION_SECONDS * 1000)} if log.startswith("kafka") else {},
    )


def application() -> Application:
    """Return the application as `Driver` describes it in the environment."""
    return make_application(
        *(os.environ[f"CRASH_{name}"] for name in ("DATA", "LOG", "GUARANTEE", "CHANGELOG", "HOST", "BACKEND"))
    )
