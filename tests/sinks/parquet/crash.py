"""Crash rounds of a sink to Parquet files: `python -m tests.sinks.parquet.crash --rounds 10 --seed 1`.

In each round records arrive while an application runs, and one fault strikes: SIGKILL of the application with its task
hosts, or of one task host; one of them is frozen and wakes again; the location is away for a while. After each round
the files have to have each record once, and nothing else; so do all data files in the location, named or not.
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
from typing import Any

import psutil
import pyarrow.parquet as pq

from penstock import Application
from penstock.contrib.parquet import parquet
from penstock.dsl import StreamsBuilder
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from ..programs import rows
from .reading import counted

_MARK = "PENSTOCK_PARQUET_CRASH"
"""A variable of the environment, by which the processes of the application are found."""
_CHANGES: Sequence[Callable[[str], str]] = (str.upper, str)
_COLUMNS = {"name": "string", "value": "string"}


def application(directory: Path) -> Application:
    """Return a program that writes what it makes, through a topic, and the input, at once."""
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to_sink(
        parquet(
            str(directory / "made"), columns=_COLUMNS, key="name", max_rows=100, max_age="200ms",
            partition_by={"second": "%S"},
        ),
        "made", value_serde="str",
    )  # fmt: skip
    builder.stream("direct").to_sink(
        parquet(str(directory / "plain"), columns=_COLUMNS, key="name", max_age="0s"), "plain"
    )
    return Application(
        "app", builder, data_dir=str(directory / "data"), log="local:log", engine="embedded", processes=2,
        commit_interval="20ms",
    )  # fmt: skip


class Rounds:
    """An application in a process of its own, its log, and its locations."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._directory = directory
        self._token = str(directory)
        self.locations = directory / "made", directory / "plain"
        for each in self.locations:
            each.mkdir(parents=True)
        self.surroundings = Surroundings(directory / "data")
        self.surroundings.create(**{"in": 3, "direct": 3})
        self._total = 0
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        with (self._directory / "stderr").open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.sinks.parquet.crash", "--run", self._directory],
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
        """Let records arrive and a fault strike; then compare the files."""
        self._ensure_running()
        before = self._total
        self._put(self._random.randrange(50, 1_000))
        reached = before + self._random.randrange(self._total - before)
        wait_until(lambda: counted(self.locations[0]).total() >= reached, f"{reached} records are written")
        self._put(self._random.randrange(50, 1_000))
        time.sleep(self._random.random() / 4)
        self._strike(fault)
        self._put(self._random.randrange(50))
        self._ensure_running()
        wait_until(self._is_complete, f"the files have {self._total} records after {fault}", seconds=60)

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
        elif fault == "location away":
            for each in self.locations:
                each.rename(each.with_suffix(".away"))
            time.sleep(self._random.choice([0.1, 1.0]))
            for each in self.locations:
                each.with_suffix(".away").rename(each)
        elif fault == "zombie":
            # It wakes after its successor has written: past its lease.
            assert self._process is not None
            zombie, frozen = self._process, self._processes()
            _send(signal.SIGSTOP, frozen)
            self._process, self._token = None, f"{self._token}+"
            wait_until(self._has_successor_written, "the successor has written")
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
        return counted(self.locations[0]).total() >= self._total

    def _is_complete(self) -> bool:
        """Return whether nothing is missing. What is there twice never goes away, so it fails at once."""
        is_complete = True
        for location, change in zip(self.locations, _CHANGES, strict=True):
            expected = Counter((f"k{number % 5}", change(f"v{number}")) for number in range(self._total))
            for found in (counted(location), _all_rows(location)):
                assert not found - expected, f"more than once, or not expected: {list((found - expected).items())[:5]}"
                is_complete &= found == expected
        return is_complete

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            _send(signal.SIGKILL, self._processes())
            self._process.wait()
        self.surroundings.log.close()


def _all_rows(location: Path) -> Counter[tuple[Any, ...]]:
    """Return the rows of all data files that have their names, as a reader of directories finds them."""
    files = [each for each in location.rglob("*.parquet") if "_temporary" not in each.parts]
    return Counter(tuple(row.values()) for file in files for row in pq.ParquetFile(file).read().to_pylist())


def _send(number: int, processes: list[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)


FAULTS = ["kill all", "kill host", "location away", "freeze all", "freeze host", "zombie"]


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
    directory = Path(tempfile.mkdtemp(prefix="parquet-crash"))
    print(f"in {directory}", flush=True)
    run_rounds(directory, given.rounds, given.seed, given.fault)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
