"""Queries beside a run: how long a key takes over HTTP at half and full load, and the throughput that queries cost."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from operator import itemgetter
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import uvloop

from penstock import Application, Log, OutputBatch, TopicPartition, Topology, key_value_store
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .peer import PEER, peer_command
from .programs import Count
from .result import Table, percentiles_ms
from .steady import load_average

_KEYS = 50_000
_PARTITIONS = 4
_CHUNK = 500
_CONNECTIONS = 16
_RECORDS = 300_000
"""Records of a backlog whose throughput is measured."""
_COMMIT_MS = 100
_LEAD_SECONDS = 2.0
"""How long records flow before the first query."""
_WARM_UP = 1.0
"""The first seconds of queries are not measured: connections are opened, and a server that was idle asks the log."""
_COMPILE_SECONDS = 20.0
"""How long each side runs at half load first: a new broker takes twice the processor time until it is compiled."""
_STOP_SECONDS = 30.0


def queries(seconds: float = 10, rounds: int = 3, log: str = "local") -> Table:
    """Measure on the embedded engine with one task host, on the local log, each load so many times.

    Of backlogs the fastest counts, of latencies the one whose 99th percentile is the median.

    `log="kafka"`: on a broker, and before it Java Kafka Streams with the JDK's HTTP server; each has a new broker.
    """
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if log == "local":
            with _ours(directory) as run:
                rows += _measured(run, seconds, rounds, {})
        else:
            loads: dict[str, float] = {}
            for side in (_theirs, _ours):
                with KafkaBroker(heap="1g", jvm_options=()) as broker, side(directory, broker.bootstrap) as run:
                    rows += _measured(run, seconds, rounds, loads)
    columns = dict.fromkeys(name for row in rows for name in row)
    return Table("queries", [{name: row.get(name) for name in columns} for row in rows])


def _measured(run: _Run, seconds: float, rounds: int, loads: dict[str, float]) -> list[dict[str, Any]]:
    """Measure one side; `loads`: records a second of the other one, by name. Its own are added."""
    rows = []
    rates: dict[float, list[float]] = {0: [], 200: [], 1_000: []}
    run.backlog(0)  # the first one fills the store, and is not counted
    for _ in range(rounds):
        for rate, found in rates.items():
            found.append(run.backlog(rate))
    best = {rate: max(found) for rate, found in rates.items()}
    for rate in (200, 1_000):
        lost = 1 - best[rate] / best[0]
        rows.append({"name": "queries: throughput", "side": run.side, "queries_per_s": rate,
                     "records_per_s": round(best[rate]), "records_per_s_without": round(best[0]),
                     "lost": f"{lost:.1%}"})  # fmt: skip
    half = best[0] * 0.5
    run.steady(half, 1_000, _COMPILE_SECONDS, run.url)
    for load, records_per_s in ({"none": 0.0} | loads | {"half": half, "full": best[0]}).items():
        measured = _median([run.steady(records_per_s, 1_000, seconds, run.url) for _ in range(rounds)])
        rows.append({"name": "queries: latency", "side": run.side, "queries_per_s": 1_000, "load": load, **measured})
    if run.other is not None:
        with run.other() as url:
            run.wait_for_answers(url)
            for rate in (200, 1_000):
                measured = _median([run.steady(half, rate, seconds, url) for _ in range(rounds)])
                rows.append({"name": "queries: latency, forwarded", "side": run.side, "queries_per_s": rate,
                             "load": "half", **measured})  # fmt: skip
    loads[f"half of {run.side}"] = half
    for row in rows:
        row["load_average"] = load_average()
    return rows


def _median(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the measurement whose 99th percentile is the median (the lower one of two), and those of all."""
    measured = sorted(measured, key=itemgetter("p99_ms"))
    return measured[(len(measured) - 1) // 2] | {"p99_of_each": [each["p99_ms"] for each in measured]}


class _Run:
    """A running application. `url`: of the server of its stores; `other` starts one that forwards to it."""

    def __init__(
        self, side: str, application_id: str, source: str, log: Log, url: str,
        other: Callable[[], AbstractContextManager[str]] | None = None,
    ) -> None:  # fmt: skip
        self.side = side
        self.url = url
        self.other = other
        self._id = application_id
        self._source = source
        self._log = log
        self._random = random.Random(7)
        self._sent = 0

    def put(self, records: int) -> None:
        keys: list[bytes | None] = [b"%d" % self._random.randrange(_KEYS) for _ in range(records)]
        self._log.append(OutputBatch(self._source, keys, [b"v"] * records, [self._sent] * records))
        self._sent += records

    def wait(self) -> None:
        """Wait until all records are processed."""
        partitions = [TopicPartition(self._source, number) for number in range(_PARTITIONS)]
        ends = self._log.end_offsets(partitions)
        while True:
            reached = self._log.committed(self._id, partitions)
            if all((reached[each] or 0) >= ends[each] for each in partitions):
                return
            time.sleep(0.02)

    def wait_for_answers(self, url: str) -> None:
        """Wait until a server answers."""
        while True:
            try:
                with urlopen(f"{url}/v1/stores/counts/get?key=0", timeout=10):
                    return
            except HTTPError as error:
                if error.code == 404:
                    return
            except OSError:
                pass
            time.sleep(0.1)

    def backlog(self, rate: float) -> float:
        """Return records a second of a backlog, beside so many queries a second."""
        with _asking(self.url, rate, 120) as asked:
            time.sleep(1.0 if asked else 0)
            began = time.perf_counter()
            for _ in range(_RECORDS // 10_000):
                self.put(10_000)
            self.wait()
            return _RECORDS / (time.perf_counter() - began)

    def steady(self, records_per_s: float, rate: float, seconds: float, url: str) -> dict[str, Any]:
        """Return the latency of queries of a server beside so many records a second, and how many there were.

        At full load there are fewer: queries take their part of the processors.
        """
        ended = threading.Event()
        began, before = time.perf_counter(), self._sent

        def produce() -> None:
            while records_per_s and not ended.is_set():
                self.put(_CHUNK)
                ended.wait(max(0.0, began + (self._sent - before) / records_per_s - time.perf_counter()))

        thread = threading.Thread(target=produce)
        thread.start()
        time.sleep(_LEAD_SECONDS)
        with _asking(url, rate, seconds) as asked:
            assert asked is not None
            found = json.loads(asked.communicate()[0])
        ended.set()
        thread.join()
        self.wait()
        processed = (self._sent - before) / (time.perf_counter() - began)
        return {"records_per_s": round(processed), "answers": len(found["ms"]), "errors": found["errors"],
                **percentiles_ms(found["ms"])}  # fmt: skip


@contextmanager
def _ours(directory: str, bootstrap: str | None = None) -> Iterator[_Run]:
    """Run our side, on a broker or on the local log."""
    name = f"queries-{secrets.token_hex(3)}"
    here, there = (f"127.0.0.1:{_free_port()}" for _ in range(2))
    topology = (
        Topology()
        .add_source("in", f"{name}-in")
        .add_processor("count", Count, "in", stores=[key_value_store("counts", key_serde="str")])
        .add_sink("out", f"{name}-out", "count")
    )
    where: dict[str, Any] = {} if bootstrap is None else {"log": f"kafka:{bootstrap}", "changelog": "topic:"}
    application = Application(
        name, topology, engine="embedded", processes=1, data_dir=directory, queries=here, application_server=here,
        commit_interval=f"{_COMMIT_MS}ms", **where,
    )  # fmt: skip

    @contextmanager
    def other() -> Iterator[str]:
        """Let another machine wait for the application: it has no state, so it forwards."""
        waiting = application.with_settings(queries=there, application_server=there, state_dir=f"{directory}/other")
        running = waiting.start(wait=True)
        try:
            yield f"http://{there}"
        finally:
            running.stop()

    with closing(open_log(application.settings)) as log:
        _make_topics(log, name)
        with application.start():
            run = _Run("penstock", name, f"{name}-in", log, f"http://{here}", other)
            run.wait_for_answers(run.url)
            yield run


@contextmanager
def _theirs(directory: str, bootstrap: str) -> Iterator[_Run]:
    """Run Java Kafka Streams on a broker."""
    name, port = f"peer-{secrets.token_hex(3)}", _free_port()
    settings = {
        "application.id": name, "commit.interval.ms": str(_COMMIT_MS), "producer.linger.ms": "0",
        "num.stream.threads": "1", "http.port": str(port),
    }  # fmt: skip
    command = [
        each.replace("{out}", f"{name}-out").replace("{dir}", f"{directory}/peer")
        for each in peer_command(bootstrap, "count", f"{name}-in", "exactly_once", settings)
    ]
    # Without it the JDK's server waits 40 ms for more of an answer.
    command.insert(1, "-Dsun.net.httpserver.nodelay=true")
    application = Application(name, Topology().add_source("in", f"{name}-in"), log=f"kafka:{bootstrap}")
    with closing(open_log(application.settings)) as log:
        _make_topics(log, name)
        process = subprocess.Popen(command, start_new_session=True)
        try:
            run = _Run(PEER, name, f"{name}-in", log, f"http://127.0.0.1:{port}")
            run.wait_for_answers(run.url)
            yield run
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _make_topics(log: Log, name: str) -> None:
    for topic in (f"{name}-in", f"{name}-out"):
        log.create_topic(topic, _PARTITIONS)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextmanager
def _asking(url: str, rate: float, seconds: float) -> Iterator[subprocess.Popen[bytes] | None]:
    """Ask in a process of its own, for the block or so many seconds."""
    if not rate:
        yield None
        return
    command = [sys.executable, "-m", "bench.queries", url, str(rate), str(seconds)]
    # Sessions of their own, as on other machines: Linux divides the processors among sessions.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
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
            if at >= began + _WARM_UP:
                found.append((time.perf_counter() - at) * 1000)
            errors += not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 404"))

    began = time.perf_counter()
    tasks = [asyncio.create_task(connection()) for _ in range(_CONNECTIONS)]
    for number in range(int(rate * (_WARM_UP + seconds))):
        at = began + number / rate
        if (pause := at - time.perf_counter()) > 0:
            await asyncio.sleep(pause)
        due.put_nowait(at)
    await asyncio.sleep(1.0)
    for each in tasks:
        each.cancel()
    return {"ms": found, "errors": errors}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_ask(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))))
