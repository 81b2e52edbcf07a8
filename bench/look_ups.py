"""Look-ups that wait: `map_values_async` on the embedded engine and a local log, beside a bare asyncio loop."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from typing import Any

from penstock import Application, TopicPartition
from penstock.dsl import StreamsBuilder
from penstock.plugins.engine.task.locations import open_log
from penstock.record import OutputBatch

from .result import Table, percentiles_ms

IN, OUT = "bench-in", "bench-out"
LATENCY = 0.05
"""Seconds until the service answers."""
CAPACITY, KEYS = 100, 1_000
RECORDS = 20_000
RATE = 1_000
"""Records a second in the measurement of latency, and for so many seconds."""
SECONDS, WARM_UP = 20, 5
_TICK = 0.01


def look_ups() -> Table:
    """Look-ups of 50 ms, 100 at once, 1,000 keys, in order by key.

    Offered without limit: records a second, of the bound (capacity / latency), and CPU a record, beside an asyncio loop
    that does nothing else. At 1,000 a second: from the arrival at the node to the result handed on.
    """
    bound = CAPACITY / LATENCY
    rows: list[dict[str, Any]] = []
    for name, (rate, cpu_us) in {"asyncio": asyncio.run(_bare()), "map_values_async": _offered()}.items():
        rows.append(
            {
                "program": name,
                "records_per_s": round(rate),
                "of_bound": round(rate / bound, 3),
                "us": round(cpu_us, 1),
                **percentiles_ms([]),
            }
        )
    rows.append({"program": f"map_values_async, {RATE:,} a second", **percentiles_ms(_latencies_ms())})
    return Table("look-ups", rows)


async def _look_up(value: bytes) -> bytes:
    await asyncio.sleep(LATENCY)
    return value


async def _bare() -> tuple[float, float]:
    """Return calls a second of a loop alone, and microseconds of CPU of each."""
    places = asyncio.Semaphore(CAPACITY)

    async def call(value: bytes) -> bytes:
        async with places:
            return await _look_up(value)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(call(b"%d" % number) for number in range(RECORDS)))
    return RECORDS / (time.perf_counter() - began), (time.process_time() - cpu) / RECORDS * 1e6


def _offered() -> tuple[float, float]:
    """Return records a second, and microseconds of CPU of each, from the first commit with results on."""
    with _Running(lambda stream: stream) as running:
        running.append(RECORDS)
        first = running.wait_for(1)
        began, cpu = time.perf_counter(), time.process_time()
        running.wait_for(RECORDS)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        return (RECORDS - first) / seconds, cpu / (RECORDS - first) * 1e6


def _latencies_ms() -> list[float]:
    """Return the milliseconds from the arrival of each record to its result, after a warm-up, less the service's."""
    arrived: dict[bytes, float] = {}
    took: list[float] = []

    def leave(value: bytes) -> None:
        took.append((time.perf_counter() - arrived.pop(value) - LATENCY) * 1000)

    with _Running(
        lambda stream: stream.peek(lambda value: arrived.__setitem__(value, time.perf_counter())), leave
    ) as running:
        began, sent, total = time.perf_counter(), 0, RATE * (WARM_UP + SECONDS)
        while sent < total:
            due = min(total, int((time.perf_counter() - began) * RATE))
            running.append(due - sent)
            sent = due
            time.sleep(_TICK)
        running.wait_for(total)
    return took[RATE * WARM_UP :]


class _Running:
    """A running application with one task; `before` is what stands in front of the verb, and `leave` gets results."""

    def __init__(self, before: Callable[[Any], Any], leave: Callable[[bytes], None] = lambda value: None) -> None:
        self._home = tempfile.TemporaryDirectory()
        builder = StreamsBuilder()
        stream = before(builder.stream(IN, value_serde="bytes"))
        stream.map_values_async(_look_up, name="look-up", capacity=CAPACITY).peek(leave).to(OUT, value_serde="bytes")
        home = self._home.name
        application = Application(
            "bench", builder, log=f"local:{home}/log", data_dir=f"{home}/data", engine="embedded", processes=0
        )
        self._log, self._sent = open_log(application.settings), 0
        self._log.create_topic(IN, 1)
        self._log.create_topic(OUT, 1)
        self._running = application.start()

    def append(self, count: int) -> None:
        """Write so many records."""
        if count:
            numbers = range(self._sent, self._sent + count)
            keys: list[bytes | None] = [b"%d" % (each % KEYS) for each in numbers]
            values: list[bytes | None] = [b"%d" % each for each in numbers]
            self._log.append(OutputBatch(IN, keys, values, list(numbers)))
            self._sent += count

    def wait_for(self, count: int) -> int:
        """Wait until so many results are committed; return their number."""
        place = TopicPartition(OUT, 0)
        while (end := self._log.end_offsets([place])[place]) < count:
            time.sleep(_TICK)
        return end

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.stop()
        self._log.close()
        self._home.cleanup()
