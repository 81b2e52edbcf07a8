"""Sinks outside of the log: how fast the records of a topic reach a target, in one task."""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from penstock import AnySink, Application, TopicPartition
from penstock.dsl import StreamsBuilder
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch
from tests.sinks.postgres_server import PostgresServer

from .result import Table

BATCH = 20_000
RECORDS, FIRST = 400_000, 0.2
"""Records of a run, and the share of them that is written before the measurement begins."""
COLUMNS = {"customer": "string", "item": "string", "cents": "int64", "ordered_at": "timestamp"}
_SQL = {"string": "text", "int64": "bigint", "timestamp": "timestamptz"}
_TICK = 0.01


def sinks(cases: tuple[str, ...] = (), log: str = "local", rounds: int = 3) -> Table:
    """JSON records with four columns to each target: records a second in one task, and microseconds of CPU a record.

    The median of the rounds, by turns. `log`: where the topic is, "local" or "kafka".
    """
    chosen = {name: _TARGETS[name] for name in cases or _TARGETS}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    with KafkaBroker() if log == "kafka" else nullcontext() as broker:
        for number in range(rounds):
            for name, target in chosen.items():
                with tempfile.TemporaryDirectory() as home, target(Path(home)) as sink:
                    place = f"local:{home}/log" if broker is None else f"kafka:{broker.bootstrap}"
                    found[name].append(_measured(sink, place, f"bench-{name}-{number}", Path(home)))
    rows: list[dict[str, Any]] = []
    for name, measured in found.items():
        rate, cpu_us = sorted(measured)[len(measured) // 2]
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append({"target": name, "records_per_s": round(rate), "us": round(cpu_us, 1), "peak_mb": round(peak_mb)})
    return Table(f"sinks, {log} log", rows)


def _measured(sink: AnySink, log: str, name: str, home: Path) -> tuple[float, float]:
    """Return records a second and microseconds of this process's CPU a record."""
    builder, topic = StreamsBuilder(), f"{name}-in"
    builder.stream(topic, value_serde="json").to_sink(sink, "target")
    application = Application(name, builder, log=log, data_dir=str(home / "data"), engine="embedded", processes=0)
    opened = open_log(application.settings)
    opened.create_topic(topic, 1)
    for first in range(0, RECORDS, BATCH):
        numbers = range(first, first + BATCH)
        keys: list[bytes | None] = [b"%d" % (each % 1_000) for each in numbers]
        opened.append(OutputBatch(topic, keys, [_value(each) for each in numbers], list(numbers)))
    place = TopicPartition(topic, 0)

    def wait_for(count: float) -> int:
        while (written := opened.committed(application.id, [place])[place] or 0) < count:
            time.sleep(_TICK)
        return written

    with application.start():
        before = wait_for(FIRST * RECORDS)
        began, cpu = time.perf_counter(), time.process_time()
        wait_for(RECORDS)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    opened.close()
    return (RECORDS - before) / seconds, cpu / (RECORDS - before) * 1e6


def _value(number: int) -> bytes:
    return json.dumps({"item": f"item {number % 500}", "cents": number}).encode()


@contextmanager
def _postgres(home: Path, *, mode: str) -> Iterator[AnySink]:
    from penstock.contrib.postgres import postgres

    server = PostgresServer()
    try:
        columns = {name: _SQL[type_] for name, type_ in COLUMNS.items()}
        yield postgres(server.dsn, table="orders", columns=columns, key="customer", timestamp="ordered_at", mode=mode)
    finally:
        server.close()


@contextmanager
def _postgres_inserts(home: Path) -> Iterator[AnySink]:
    with _postgres(home, mode="insert") as sink:
        yield sink


@contextmanager
def _postgres_upserts(home: Path) -> Iterator[AnySink]:
    with _postgres(home, mode="upsert") as sink:
        yield sink


@contextmanager
def _parquet(home: Path) -> Iterator[AnySink]:
    from penstock.contrib.parquet import parquet

    (home / "lake").mkdir()
    yield parquet(str(home / "lake"), columns=COLUMNS, key="customer", timestamp="ordered_at")


_TARGETS: dict[str, Callable[[Path], Any]] = {
    "postgres-inserts": _postgres_inserts,
    "postgres-upserts": _postgres_upserts,
    "parquet": _parquet,
}
