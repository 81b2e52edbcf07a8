"""Crash rounds of a sink to Iceberg: `python -m tests.sinks.iceberg.crash --rounds 10 --seed 1`.

In each round records arrive while an application runs, and one fault strikes: SIGKILL of the application with its task
hosts, of one task host or of the catalog's server; one of them is frozen and wakes again, a "zombie" after another
process has taken over and written. Other writers append to the same tables and expire snapshots meanwhile. After each
round the tables have to have each record once, and nothing else.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil
import pyarrow as pa

from penstock import Application
from penstock.contrib.iceberg import iceberg
from penstock.dsl import StreamsBuilder
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from ..postgres_server import PostgresServer
from ..programs import rows
from .tables import COLUMNS, counted, open_catalog, options

_MARK = "PENSTOCK_ICEBERG_CRASH"
"""A variable of the environment, by which the processes of the application are found."""
_CHANGES: Mapping[str, Callable[[str], str]] = {"shop.made": str.upper, "shop.plain": str}
_FOREIGN = {"name": "foreign", "value": "foreign"}
_SERVER_OPTIONS = "-c%20idle_in_transaction_session_timeout%3D2000%20-c%20statement_timeout%3D2000"
"""Without these, a process that is frozen in a transaction keeps all others from the table."""


def uri_of(server: PostgresServer) -> str:
    return f"postgresql+psycopg://penstock@/postgres?host={server.directory}&options={_SERVER_OPTIONS}"


def application(directory: Path, uri: str) -> Application:
    """Return a program that writes what it makes, through a topic, and the input, at once."""
    catalog = options(directory / "catalog", uri)
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to_sink(
        iceberg(
            "shop.made", catalog="tests", catalog_options=catalog, columns=COLUMNS, key="name",
            partition_by={"name": "identity"},
        ),
        "made", value_serde="str",
    )  # fmt: skip
    builder.stream("direct").to_sink(
        "contrib.iceberg", "plain", table="shop.plain", catalog="tests", catalog_options=catalog, columns=COLUMNS,
        key="name",
    )  # fmt: skip
    return Application(
        "app", builder, data_dir=str(directory / "data"), log="local:log", engine="embedded", processes=2,
        commit_interval="100ms",
    )  # fmt: skip


class Rounds:
    """An application in a process of its own, its log, and a server with the catalog."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._directory = directory
        self._token = str(directory)
        self.server = PostgresServer()
        self._uri = uri_of(self.server)
        self.surroundings = Surroundings(directory / "data")
        self.surroundings.create(**{"in": 3, "direct": 3})
        open_catalog(directory / "catalog", self._uri).close()
        self._total = 0
        self._foreign: Counter[str] = Counter()
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        with (self._directory / "stderr").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.sinks.iceberg.crash", "--run", self._directory, "--uri", self._uri],
                stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
                env={**os.environ, _MARK: self._token},
            )  # fmt: skip

    def _processes(self) -> list[psutil.Process]:
        """Return the process of the application, and its task hosts, which are no children of it."""
        assert self._process is not None
        found = []
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                if each.environ().get(_MARK) == self._token and each.pid != self._process.pid:
                    found.append(each)
        return [psutil.Process(self._process.pid), *found]

    def _put(self, count: int) -> None:
        for topic in ("in", "direct"):
            self.surroundings.put(topic, rows(range(self._total, self._total + count)))
        self._total += count

    def round(self, fault: str) -> None:
        """Let records arrive and a fault strike; then compare the tables."""
        self._ensure_running()
        before = self._total
        self._put(self._random.randrange(50, 1_000))
        reached = before + self._random.randrange(self._total - before)
        wait_until(lambda: self._written("shop.made") >= reached, f"{reached} records are written", 120)
        self._put(self._random.randrange(50, 1_000))
        time.sleep(self._random.random() / 2)
        self._meddle()
        self._strike(fault)
        self._put(self._random.randrange(50))
        self._ensure_running()
        wait_until(self._is_complete, f"the tables have {self._total} records after {fault}", seconds=120)

    def _ensure_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()

    def _meddle(self) -> None:
        """Do what others do to a table: append a row, and expire snapshots."""
        with open_catalog(self._directory / "catalog", self._uri) as catalog:
            for name in filter(catalog.table_exists, _CHANGES):
                table = catalog.load_table(name)
                table.append(pa.Table.from_pylist([_FOREIGN]))
                self._foreign[name] += 1
                table.maintenance.expire_snapshots().older_than(datetime.now()).commit()

    def _strike(self, fault: str) -> None:
        assert self._process is not None
        if fault == "kill all":
            _send(signal.SIGKILL, self._processes())
            self._process.wait()
        elif fault == "kill host":
            _send(signal.SIGKILL, [self._random.choice(self._processes()[1:] or self._processes())])
        elif fault == "kill server":
            self.server.kill()
            self.server.start()
        elif fault == "freeze server":
            self.server.freeze()
            time.sleep(self._random.choice([0.1, 2.5]))
            self.server.wake()
        elif fault == "zombie":
            # It wakes after its successor has written: past its lease.
            zombie, frozen = self._process, self._processes()
            _send(signal.SIGSTOP, frozen)
            self._process, self._token = None, f"{self._token}+"
            wait_until(self._has_successor_written, "the successor has written", 120)
            _send(signal.SIGCONT, frozen)
            with suppress(subprocess.TimeoutExpired):
                zombie.wait(3)
            _send(signal.SIGKILL, frozen)
            zombie.wait()
        else:
            frozen = self._processes()
            frozen = frozen if fault == "freeze all" else frozen[1:2]
            _send(signal.SIGSTOP, frozen)
            time.sleep(self._random.choice([0.1, 2.5]))
            _send(signal.SIGCONT, frozen)

    def _has_successor_written(self) -> bool:
        self._ensure_running()  # it is refused until the lease has ended
        return self._written("shop.made") >= self._total

    def _written(self, name: str) -> int:
        """Return the number of rows by the table's metadata."""
        with open_catalog(self._directory / "catalog", self._uri) as catalog:
            snapshot = catalog.load_table(name).current_snapshot() if catalog.table_exists(name) else None
            total = "0" if snapshot is None or snapshot.summary is None else snapshot.summary["total-records"]
            return int(total or 0) - self._foreign[name]

    def _is_complete(self) -> bool:
        """Return whether nothing is missing. What is there twice never goes away, so it fails at once."""
        if min(map(self._written, _CHANGES)) < self._total:
            return False
        for name, change in _CHANGES.items():
            expected = Counter((f"k{number % 5}", change(f"v{number}")) for number in range(self._total))
            expected += Counter({("foreign", "foreign"): self._foreign[name]})
            found = counted(self._directory / "catalog", name, self._uri)
            assert not found - expected, f"more than once, or not expected: {list((found - expected).items())[:5]}"
            assert found == expected, f"missing: {list((expected - found).items())[:5]}"
        return True

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            _send(signal.SIGKILL, self._processes())
            self._process.wait()
        self.surroundings.log.close()
        self.server.close()


def _send(number: int, processes: list[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)


FAULTS = ["kill all", "kill host", "kill server", "freeze server", "freeze all", "freeze host", "zombie"]


def run_rounds(directory: Path, rounds: int, seed: int, fault: str | None = None) -> None:
    made = Rounds(directory, seed)
    chosen = random.Random(seed)
    try:
        for number in range(rounds):
            name = fault or (FAULTS[number] if number < len(FAULTS) else chosen.choice(FAULTS))
            began = time.monotonic()
            made.round(name)
            print(f"round {number + 1}: {name}: right, {time.monotonic() - began:.1f} s", flush=True)
    finally:
        made.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--uri", default="")
    given = parser.parse_args()
    if given.run is not None:
        application(given.run, given.uri).start("continuous").wait()
        os._exit(0)
    directory = Path(tempfile.mkdtemp(prefix="iceberg-crash"))
    print(f"in {directory}", flush=True)
    run_rounds(directory, given.rounds, given.seed, given.fault)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
