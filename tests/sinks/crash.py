"""Crash rounds of a sink to PostgreSQL: `python -m tests.sinks.crash --rounds 20 --seed 1`.

In each round records arrive while an application runs, and one fault strikes: SIGKILL of the application with its task
hosts, of one task host or of the server; a frozen server, task host or application that wakes again. After each round
the table has to have each record once, and nothing else.
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
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from penstock import Application
from penstock.contrib.postgres import postgres as postgres_sink
from penstock.dsl import StreamsBuilder

from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .postgres_server import PostgresServer
from .programs import rows

_MARK = "PENSTOCK_SINK_CRASH"
"""A variable of the environment, by which the processes of the application are found."""
COLUMNS = {"name": "text", "value": "text", "part": "text"}


def application(directory: Path, dsn: str) -> Application:
    """Return a program that inserts what it makes, and upserts counts, both through topics; and inserts the input."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.map_values(_made).to_sink(
        postgres_sink(dsn, table="made", columns=COLUMNS, key="name", mode="insert", timeout="2s"), "made",
        value_serde="json",
    )  # fmt: skip
    stream.group_by_key().count().to_stream().to_sink(
        postgres_sink(dsn, table="counts", columns={"name": "text", "n": "bigint"}, key="name", timeout="2s"), "counts"
    )
    builder.stream("direct").to_sink(
        postgres_sink(dsn, table="plain", columns={"name": "text", "value": "text"}, key="name", mode="insert"), "plain"
    )
    return Application(
        "app", builder, data_dir=str(directory), log="local:log", engine="embedded", processes=2,
        commit_interval="20ms",
    )  # fmt: skip


def _made(value: str) -> dict[str, str]:
    return {"value": value, "part": value[-1]}


class Rounds:
    """An application in a process of its own, its log, and a server."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._directory = directory
        self._token = str(directory)
        self.server = PostgresServer()
        self.surroundings = Surroundings(directory)
        self.surroundings.create(**{"in": 3, "direct": 3})
        self._total = 0
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        with (self._directory / "stderr").open("ab") as errors:
            self._spawn(errors)

    def _spawn(self, errors: BinaryIO) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name if __spec__ else "tests.sinks.crash", "--run", self._directory,
             "--dsn", self.server.dsn],
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

    def _kill(self, processes: list[psutil.Process]) -> None:
        for each in processes:
            each.send_signal(signal.SIGKILL)

    def _put(self, count: int) -> None:
        for topic in ("in", "direct"):
            self.surroundings.put(topic, rows(range(self._total, self._total + count)))
        self._total += count

    def round(self, fault: str) -> None:
        """Let records arrive and a fault strike; then compare the tables."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        before = self._total
        self._put(self._random.randrange(50, 2_000))
        reached = before + self._random.randrange(self._total - before)
        wait_until(lambda: self._written() >= reached, f"{reached} records are written")
        self._put(self._random.randrange(50, 2_000))
        self._strike(fault)
        self._put(self._random.randrange(50))
        if self._process is None or self._process.poll() is not None:
            self._start()
        wait_until(self._is_complete, f"the tables have {self._total} records after {fault}", seconds=120)

    def _strike(self, fault: str) -> None:
        if fault == "kill all":
            self._kill(self._processes())
            assert self._process is not None
            self._process.wait()
        elif fault == "kill host":
            self._kill([self._random.choice(self._processes()[1:])])
        elif fault == "kill server":
            self.server.kill()
            self.server.start()
        elif fault == "freeze server":
            self.server.freeze()
            time.sleep(self._random.choice([0.1, 2.5]))
            self.server.wake()
        else:
            frozen = self._processes()
            frozen = frozen if fault == "freeze all" else frozen[1:2]
            for each in frozen:
                each.send_signal(signal.SIGSTOP)
            time.sleep(self._random.choice([0.1, 2.5]))
            for each in frozen:
                each.send_signal(signal.SIGCONT)

    def _written(self) -> int:
        (there,) = self.server.query("SELECT to_regclass('made')")
        count: int = self.server.query("SELECT count(*) FROM made")[0][0] if there[0] is not None else 0
        return count

    def _is_complete(self) -> bool:
        """Return whether nothing is missing. What is there twice never goes away, so it fails at once."""
        if any(
            self.server.query("SELECT to_regclass(%s)", table)[0][0] is None for table in ("made", "counts", "plain")
        ):
            return False
        expected = Counter((f"k{number % 5}", f"v{number}") for number in range(self._total))
        counts = Counter(f"k{number % 5}" for number in range(self._total))
        made = Counter((name, value) for name, value in self.server.query("SELECT name, value FROM made"))
        plain = Counter((name, value) for name, value in self.server.query("SELECT name, value FROM plain"))
        for found in (made, plain):
            assert not found - expected, f"not expected, or more than once: {list((found - expected).items())[:5]}"
        return made == plain == expected and dict(self.server.query("SELECT name, n FROM counts")) == counts

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._kill(self._processes())
            self._process.wait()
        self.surroundings.log.close()
        self.server.close()


FAULTS = ["kill all", "kill host", "kill server", "freeze server", "freeze all", "freeze host"]


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
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--dsn", default="")
    given = parser.parse_args()
    if given.run is not None:
        application(given.run, given.dsn).start("continuous").wait()
        os._exit(0)
    directory = Path(tempfile.mkdtemp(prefix="sink-crash"))
    print(f"in {directory}", flush=True)
    run_rounds(directory, given.rounds, given.seed, given.fault)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
