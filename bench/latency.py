"""Latency at 1,000 records a second: from the producer's clock to that of a consumer of committed records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from penstock.record import OutputBatch, TopicPartition

from .result import Table
from .steady import SteadyApplication, load_average, opened

PARTITIONS = 4
RATE = 1_000
KEYS = 1_000
LEFT_OUT = 10.0
"""The first seconds are not measured."""
PATIENCE = 30.0
"""Seconds to wait for the last records."""
_TICK = 0.01


def latency(seconds: float = 60.0, log: str | None = None) -> Table:
    """On two cores; the local log, and Kafka exactly once."""
    return _table("latency", "local[2]", seconds, log)


def latency_on_one_core(seconds: float = 60.0, log: str | None = None) -> Table:
    """The same on one core."""
    return _table("latency-1", "local[1]", seconds, log)


def _table(name: str, master: str, seconds: float, log: str | None) -> Table:
    rows = []
    for each in [log] if log else ["local", "kafka"]:
        with opened(PARTITIONS, each, master=master) as running:
            rows.append(measure(name, running, seconds))
    return Table(name, rows)


def measure(name: str, running: SteadyApplication, seconds: float) -> dict[str, Any]:
    """Write and read at the same time, on an application with all its tasks open."""
    batches = len(running.batches)
    found = (_over_local_log if running.log_name == "local" else _over_kafka)(running, seconds)
    measured = sorted(found.milliseconds)
    return {
        "name": name,
        "log": running.log_name,
        "master": running.master,
        "p50_ms": _quantile(measured, 0.5),
        "p99_ms": _quantile(measured, 0.99),
        "p999_ms": _quantile(measured, 0.999),
        "max_ms": _quantile(measured, 1.0),
        "records": len(measured),
        "missing": found.sent - found.received,
        "batches": len(running.batches) - batches,
        **running.reopenings(),
        "load_average": load_average(),
    }


@dataclass
class _Found:
    """What was sent and received; milliseconds are those of records sent after the first seconds."""

    began: float
    sent: int = 0
    received: int = 0
    milliseconds: list[float] = field(default_factory=list)

    def take(self, value: bytes, now: float) -> None:
        """Note an output: its last word is the time at which its input was sent."""
        self.received += 1
        sent = float(value.rpartition(b" ")[2])
        if sent >= self.began + LEFT_OUT:
            self.milliseconds.append((now - sent) * 1000)


def _over_local_log(running: SteadyApplication, seconds: float) -> _Found:
    """Write what is due every 10 ms and read what is committed, in turns: the log is this process's own client.

    A record's time is when it was due, so that a write that is slow counts for all records that wait for it.
    """
    found = _Found(time.time())
    positions = _ends(running)

    def write() -> None:
        due = [found.began + each / RATE for each in range(found.sent, _due(found, seconds))]
        if due:
            keys = [b"%d" % (each % KEYS) for each in range(found.sent, found.sent + len(due))]
            times = [int(each * 1000) for each in due]
            running.log.append(OutputBatch(running.source, list(keys), [repr(each).encode() for each in due], times))
            found.sent += len(due)

    def read() -> None:
        ends = running.log.end_offsets(list(positions))
        for partition, end in ends.items():
            while positions[partition] < end:
                for batch in running.log.fetch(partition, positions[partition], end, 1 << 20):
                    now = time.time()
                    for value in batch.values:
                        found.take(value or b"", now)
                    positions[partition] = batch.next_offset

    def step() -> None:
        began = time.monotonic()
        write()
        read()
        time.sleep(max(0.0, _TICK - (time.monotonic() - began)))

    _until_all_are_read(found, seconds, step)
    return found


def _over_kafka(running: SteadyApplication, seconds: float) -> _Found:
    """Write in a thread, read committed records in another."""
    consumer = Consumer(
        {
            "bootstrap.servers": running.bootstrap,
            "group.id": "bench-latency",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            "fetch.min.bytes": 1,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([KafkaPartition(*partition, end) for partition, end in _ends(running).items()])
    producer = Producer({"bootstrap.servers": running.bootstrap, "linger.ms": 0})
    found = _Found(time.time())

    def produce() -> None:
        while time.time() < found.began + LEFT_OUT + seconds:
            for number in range(found.sent, _due(found, seconds)):
                producer.produce(running.source, key=str(number % KEYS), value=repr(time.time()))
                found.sent += 1
            producer.poll(0)
            time.sleep(0.0005)
        producer.flush(PATIENCE)

    def read() -> None:
        messages = consumer.consume(1, 0.02)
        if messages:
            messages += consumer.consume(500, 0)
        now = time.time()
        for message in messages:
            if message.error() is None:
                found.take(message.value() or b"", now)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    _until_all_are_read(found, seconds, read)
    thread.join(PATIENCE)
    consumer.close()
    return found


def _ends(running: SteadyApplication) -> dict[TopicPartition, int]:
    """Return where the outputs of the next records will be: all earlier ones were read."""
    return dict(running.log.end_offsets([TopicPartition(running.target, each) for each in range(running.outputs)]))


def _due(found: _Found, seconds: float) -> int:
    """Return how many records should have been sent by now."""
    return int(min(time.time() - found.began, LEFT_OUT + seconds) * RATE)


def _until_all_are_read(found: _Found, seconds: float, step: Callable[[], None]) -> None:
    """Repeat a step until all records were sent and received, or the last ones do not come."""
    total = int((LEFT_OUT + seconds) * RATE)
    deadline = found.began + LEFT_OUT + seconds + PATIENCE
    while found.received < total and time.time() < deadline:
        step()


def _quantile(ordered: list[float], share: float) -> float | None:
    """Return the value below which a share of them lies; None of an empty list."""
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1) if ordered else None
