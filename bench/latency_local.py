"""Latency over the local log: from the time at which a record is due to the reader's clock."""

from __future__ import annotations

import time
from typing import Any

from penstock.record import OutputBatch, TopicPartition

from .result import Table, percentiles_ms
from .steady import SteadyApplication, load_average, opened

PARTITIONS = 4
KEYS = 1_000
WARM_UP = 10.0
"""The first seconds are not measured."""
PATIENCE = 30.0
"""Seconds to wait for the last records."""
_TICK = 0.01


def latency_local(name: str, master: str, trigger: str, seconds: float, rate: float) -> Table:
    """Run the count on a local log."""
    with opened(PARTITIONS, "local", master=master, trigger=trigger) as running:
        return Table(name, [measure(name, running, seconds, rate)])


def measure(name: str, running: SteadyApplication, seconds: float, rate: float) -> dict[str, Any]:
    """Write and read in turns, every 10 ms, on an application with all its tasks open: the log is this process's own
    client. A record's time is when it was due, so that a write that is slow counts for all records that wait for it.
    """
    batches = len(running.batches)
    log = running.log
    began = time.time()
    total = int((WARM_UP + seconds) * rate)
    sent = received = 0
    milliseconds: list[float] = []
    # All earlier outputs were read.
    positions = dict(log.end_offsets([TopicPartition(running.target, each) for each in range(running.outputs)]))

    def write() -> None:
        nonlocal sent
        numbers = range(sent, min(total, int((time.time() - began) * rate)))
        if numbers:
            keys: list[bytes | None] = [b"%d" % (each % KEYS) for each in numbers]
            due = [began + each / rate for each in numbers]
            values: list[bytes | None] = [repr(each).encode() for each in due]
            log.append(OutputBatch(running.source, keys, values, [int(each * 1000) for each in due]))
            sent += len(numbers)

    def read() -> None:
        nonlocal received
        for partition, end in log.end_offsets(list(positions)).items():
            while positions[partition] < end:
                for batch in log.fetch(partition, positions[partition], end, 1 << 20):
                    now = time.time()
                    times = [float((value or b"").rpartition(b" ")[2]) for value in batch.values]
                    milliseconds.extend((now - each) * 1000 for each in times if each >= began + WARM_UP)
                    received += len(times)
                    positions[partition] = batch.next_offset

    while received < total and time.time() < began + WARM_UP + seconds + PATIENCE:
        tick = time.monotonic()
        write()
        read()
        time.sleep(max(0.0, _TICK - (time.monotonic() - tick)))
    return {
        "name": name,
        "log": running.log_name,
        "master": running.master,
        **percentiles_ms(milliseconds),
        "records": len(milliseconds),
        "missing": sent - received,
        "batches": len(running.batches) - batches,
        **running.reopenings(),
        "load_average": load_average(),
    }
