"""Crash rounds of a sink to Delta tables: `python -m tests.sinks.delta.crash --rounds 10 --seed 1`.

In each round records arrive while an application runs, and one fault strikes: SIGKILL of the application with its task
hosts, or of one task host; one of them is frozen and wakes again; the tables are away for a while; another program
compacts, deletes in and vacuums a table. After each round the tables have to have each record once, and nothing else.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from penstock import Application
from penstock.contrib.delta import delta
from penstock.dsl import StreamsBuilder
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from ..programs import rows
from .programs import counted

_MARK = "PENSTOCK_DELTA_CRASH"
"""A variable of the environment, by which the processes of the application are found."""
_CHANGES: Sequence[Callable[[str], str]] = (str.upper, str)
_COLUMNS = {"name": "string", "value": "string"}
_OTHERS = "of another program"


def application(directory: Path) -> Application:
    """Return a program that writes what it makes, through a topic, and the input, directly."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to_sink(
        delta(directory / "tables" / "made", columns=_COLUMNS, key="name", partition_by="name"), "made",
        value_serde="str",
    )  # fmt: skip
    builder.stream("direct").to_sink(delta(directory / "tables" / "plain", columns=_COLUMNS, key="name"), "plain")
    return Application(
        "app", builder, data_dir=str(directory / "data"), log="local:log", engine="embedded", processes=2,
        commit_interval="50ms",
    )  # fmt: skip


class Rounds:
    """An application in a process of its own, its log, and its tables."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._directory = directory
        self._token = str(directory)
        self._location = directory / "tables"
        self._location.mkdir(parents=True)
        self.tables = self._location / "made", self._location / "plain"
        self.surroundings = Surroundings(directory / "data")
        self.surroundings.create(**{"in": 3, "direct": 3})
        self._total = 0
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        with (self._directory / "stderr").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.sinks.delta.crash", "--run", self._directory],
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
        wait_until(lambda: counted(self.tables[0]).total() >= reached, f"{reached} records are written", seconds=60)
        self._put(self._random.randrange(50, 1_000))
        time.sleep(self._random.random() / 4)
        self._strike(fault)
        self._put(self._random.randrange(50))
        wait_until(self._is_complete, f"the tables have {self._total} records after {fault}", seconds=90)

    def _ensure_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()

    def _strike(self, fault: str) -> None:
        assert self._process is not None
        if fault == "kill all":
            _send(signal.SIGKILL, self._processes())
            self._process.wait()
        elif fault == "kill host":
            _send(signal.SIGKILL, [self._random.choice(self._processes()[1:] or self._processes())])
        elif fault == "tables away":
            away = self._location.with_name("away")
            self._location.rename(away)
            time.sleep(self._random.choice([0.1, 1.0]))
            # Only a commit that began before may have made directories there.
            shutil.rmtree(self._location, ignore_errors=True)
            away.rename(self._location)
        elif fault == "other programs":
            for _ in range(5):
                self._put(20)
                for table in self.tables:
                    _maintain(table)
        elif fault == "zombie":
            # It wakes after its successor has written: past its lease.
            zombie, frozen = self._process, self._processes()
            _send(signal.SIGSTOP, frozen)
            self._process, self._token = None, f"{self._token}+"
            wait_until(self._has_successor_written, "the successor has written", seconds=90)
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
        return counted(self.tables[0]).total() >= self._total

    def _is_complete(self) -> bool:
        """Return whether nothing is missing. What is there twice never goes away, so it fails at once."""
        is_complete = True
        self._ensure_running()  # a killed process has its lease for a while, so the next one may be refused
        for table, change in zip(self.tables, _CHANGES, strict=True):
            expected = Counter((f"k{number % 5}", change(f"v{number}")) for number in range(self._total))
            found = Counter({row: n for row, n in counted(table).items() if row[0] != _OTHERS})
            assert not found - expected, f"more than once, or not expected: {list((found - expected).items())[:5]}"
            is_complete &= found == expected
        return is_complete

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            _send(signal.SIGKILL, self._processes())
            self._process.wait()
        self.surroundings.log.close()


def _maintain(table: Path) -> None:
    """Append, compact, delete, write a checkpoint and vacuum, as other programs do."""
    with suppress(CommitFailedError):  # the sink has won
        write_deltalake(table, pa.table({"name": [_OTHERS], "value": ["x"]}), mode="append")
        DeltaTable(table).optimize.compact()
        DeltaTable(table).delete(f"name = '{_OTHERS}'")
        DeltaTable(table).create_checkpoint()
        DeltaTable(table).cleanup_metadata()
        DeltaTable(table).vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)


def _send(number: int, processes: list[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)


FAULTS = ["kill all", "kill host", "tables away", "other programs", "freeze all", "freeze host", "zombie"]


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
    given = parser.parse_args()
    if given.run is not None:
        application(given.run).start("continuous").wait()
        os._exit(0)
    directory = Path(tempfile.mkdtemp(prefix="delta-crash"))
    print(f"in {directory}", flush=True)
    run_rounds(directory, given.rounds, given.seed, given.fault)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
