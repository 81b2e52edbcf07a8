"""Queries beside a run: how long a key takes over HTTP at half load, and the throughput that queries cost."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock import Application, OutputBatch, StoreUnavailableError, TopicPartition, Topology, key_value_store
from penstock.client import Client, QueryError
from penstock.plugins.runtime.locations import open_log

from .programs import Count
from .result import Table, percentiles_ms
from .steady import load_average

_KEYS = 50_000
_PARTITIONS = 4
_CHUNK = 500
_CONNECTIONS = 16
_RECORDS = 300_000
"""Records of a backlog whose throughput is measured."""


def queries(seconds: float = 15, rounds: int = 2) -> Table:
    """Measure on the embedded engine with one task host, on the local log; `rounds` of backlogs, in turns."""
    rows = []
    with _running() as run:
        rates: dict[float, list[float]] = {0: [], 200: [], 1_000: []}
        run.backlog(0)  # the first one fills the store, and is not counted
        for _ in range(rounds):
            for rate, found in rates.items():
                found.append(run.backlog(rate))
        best = {rate: max(found) for rate, found in rates.items()}
        for rate in (200, 1_000):
            lost = 1 - best[rate] / best[0]
            rows.append({"name": "queries: throughput", "queries_per_s": rate, "records_per_s": round(best[rate]),
                         "records_per_s_without": round(best[0]), "lost": f"{lost:.1%}"})  # fmt: skip
        for share, rate in ((0.0, 1_000), (0.5, 1_000)):
            measured = run.steady(best[0] * share, rate, seconds)
            rows.append({"name": "queries: latency", "queries_per_s": rate, **measured})
    for row in rows:
        row["load_average"] = load_average()
    columns = dict.fromkeys(name for row in rows for name in row)
    return Table("queries", [{name: row.get(name) for name in columns} for row in rows])


class _Run:
    def __init__(self, application: Application, url: str) -> None:
        self._log = open_log(application.settings)
        self._url = url
        self._client = Client(url)
        self._random = random.Random(7)
        self._sent = 0

    def put(self, records: int) -> None:
        keys: list[bytes | None] = [b"%d" % self._random.randrange(_KEYS) for _ in range(records)]
        self._log.append(OutputBatch("in", keys, [b"v"] * records, [self._sent] * records))
        self._sent += records

    def wait(self) -> None:
        ends = self._log.end_offsets([TopicPartition("in", number) for number in range(_PARTITIONS)])
        for number in range(_PARTITIONS):
            store = self._client.store("counts", at_least=ends, wait="1s", task=f"0_{number}")
            while True:
                try:
                    store.get("0")
                    break
                except (StoreUnavailableError, QueryError):
                    time.sleep(0.02)

    def backlog(self, rate: float) -> float:
        """Return records a second of a backlog, beside so many queries a second."""
        with _asking(self._url, rate, 120) as asked:
            time.sleep(1.0 if asked else 0)
            began = time.perf_counter()
            for _ in range(_RECORDS // 10_000):
                self.put(10_000)
            self.wait()
            return _RECORDS / (time.perf_counter() - began)

    def steady(self, records_per_s: float, rate: float, seconds: float) -> dict[str, Any]:
        """Return the latency of queries beside so many records a second."""
        ended = threading.Event()

        def produce() -> None:
            began, sent = time.perf_counter(), 0
            while records_per_s and not ended.is_set():
                self.put(_CHUNK)
                sent += _CHUNK
                ended.wait(max(0.0, began + sent / records_per_s - time.perf_counter()))

        thread = threading.Thread(target=produce)
        thread.start()
        with _asking(self._url, rate, seconds) as asked:
            assert asked is not None
            found = json.loads(asked.communicate()[0])
        ended.set()
        thread.join()
        return {"records_per_s": round(records_per_s), "answers": len(found["ms"]), "errors": found["errors"],
                **percentiles_ms(found["ms"])}  # fmt: skip

    def close(self) -> None:
        self._client.close()
        self._log.close()


@contextmanager
def _running() -> Iterator[_Run]:
    with TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        topology = (
            Topology()
            .add_source("in", "in")
            .add_processor("count", Count, "in", stores=["counts"])
            .add_store(key_value_store("counts", key_serde="str"))
            .add_sink("out", "out", "count")
        )
        application = Application(
            "queries", topology, engine="embedded", processes=1, data_dir=str(Path(directory)),
            queries=f"127.0.0.1:{port}", commit_interval="100ms",
        )  # fmt: skip
        log = open_log(application.settings)
        for topic in ("in", "out"):
            log.create_topic(topic, _PARTITIONS)
        log.close()
        with application.start():
            run = _Run(application, f"http://127.0.0.1:{port}")
            try:
                yield run
            finally:
                run.close()


@contextmanager
def _asking(url: str, rate: float, seconds: float) -> Iterator[subprocess.Popen[bytes] | None]:
    """Ask in a process of its own, for the block or so many seconds."""
    if not rate:
        yield None
        return
    command = [sys.executable, "-m", "bench.queries", url, str(rate), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def _ask(url: str, rate: float, seconds: float) -> dict[str, Any]:
    """Send requests at a rate over some connections; time counts from when each was to be sent."""
    host, _, port = url.removeprefix("http://").partition(":")
    due: asyncio.Queue[float] = asyncio.Queue()
    found: list[float] = []
    errors = 0

    async def connection() -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection(host, int(port))
        choose = random.Random()
        while True:
            at = await due.get()
            path = f"/v1/stores/counts/get?key={choose.randrange(_KEYS)}"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            found.append((time.perf_counter() - at) * 1000)
            errors += not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 404"))

    tasks = [asyncio.create_task(connection()) for _ in range(_CONNECTIONS)]
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        at = began + number / rate
        if (pause := at - time.perf_counter()) > 0:
            await asyncio.sleep(pause)
        due.put_nowait(at)
    await asyncio.sleep(1.0)
    for each in tasks:
        each.cancel()
    return {"ms": found, "errors": errors}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_ask(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))))
