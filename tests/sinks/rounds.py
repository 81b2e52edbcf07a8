"""Crash rounds of sinks: records arrive while an application runs, and one fault strikes in each round.

The faults of all sinks: SIGKILL of the application with its task hosts, or of one task host; one of them is frozen and
wakes again; a zombie, which wakes after another process has taken over and written. After each round the target has to
have each record once, and nothing else. Modules named `crash` have a sink's own program and faults.
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil

from penstock import Application
from tests.rotation import of_today
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from .postgres_server import PostgresServer
from .programs import expected, rows

Row = tuple[str, str]
_MARK = "PENSTOCK_SINK_CRASH"
"""A variable of the environment, by which the processes of the application are found."""


class Rounds:
    """An application in a process of its own, its log, and its target."""

    MODULE: ClassVar[str]
    """The module whose `--run DIRECTORY` runs the application."""
    OWN_FAULTS: ClassVar[list[str]] = []
    """What strikes beside the faults of all sinks: see `strike`."""
    CHANGES: ClassVar[dict[str, Callable[[str], str]]] = {"made": str.upper, "plain": str}
    """The targets, and what becomes of a record's value there; the first one takes what it gets through a topic."""
    MOST_RECORDS: ClassVar[int] = 1_000

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self._token = str(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.surroundings = Surroundings(directory / "data")
        self.surroundings.create(**{"in": 3, "direct": 3})
        self.total = 0
        self._process: subprocess.Popen[bytes] | None = None

    def arguments(self) -> list[str]:
        """Return what the process of the application needs to know beside its directory."""
        return []

    def written(self, target: str) -> int:
        """Return how many rows a target has; cheap."""
        return self.found(target).total()

    def found(self, target: str) -> Counter[Row]:
        """Return the rows of a target."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Do what others do to the targets, in front of a fault."""

    def strike(self, fault: str) -> None:
        """Do one of the sink's own faults."""
        raise NotImplementedError(fault)

    def check(self) -> bool:
        """Return whether all is there that is no row of `CHANGES`."""
        return True

    # ------------------------------------------------------------------ a round

    @classmethod
    def faults(cls) -> list[str]:
        return ["kill all", "kill host", *cls.OWN_FAULTS, "freeze all", "freeze host", "zombie"]

    def round(self, fault: str) -> None:
        """Let records arrive and a fault strike; then compare the targets."""
        self._ensure_running()
        first, before = next(iter(self.CHANGES)), self.total
        self.put(self.random.randrange(50, self.MOST_RECORDS))
        reached = before + self.random.randrange(self.total - before)
        self._wait_until(lambda: self.written(first) >= reached, f"{reached} records are written")
        self.put(self.random.randrange(50, self.MOST_RECORDS))
        time.sleep(self.random.random() / 4)
        self.prepare()
        self._strike(fault)
        self.put(self.random.randrange(50))
        self._wait_until(self._is_complete, f"the targets have {self.total} records after {fault}")

    def put(self, count: int) -> None:
        for topic in ("in", "direct"):
            self.surroundings.put(topic, rows(range(self.total, self.total + count)))
        self.total += count

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait while the application runs. It is started again where it has ended: while the lease of the one before
        lasts, it is refused."""

        def is_so() -> bool:
            self._ensure_running()
            return condition()

        wait_until(is_so, what, seconds=120)

    def _ensure_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            with (self.directory / "stderr").open("ab") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", self.MODULE, "--run", self.directory, *self.arguments()],
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

    def _strike(self, fault: str) -> None:
        assert self._process is not None
        if fault in self.OWN_FAULTS:
            self.strike(fault)
        elif fault == "kill all":
            _send(signal.SIGKILL, self._processes())
            self._process.wait()
        elif fault == "kill host":
            _send(signal.SIGKILL, [self.random.choice(self._processes()[1:] or self._processes())])
        elif fault == "zombie":
            zombie, frozen = self._process, self._processes()
            _send(signal.SIGSTOP, frozen)
            self._process, self._token = None, f"{self._token}+"
            self.put(1 + self.random.randrange(50))  # for the successor, if all before them is written
            first = next(iter(self.CHANGES))
            self._wait_until(lambda: self.written(first) >= self.total, "the successor has written")
            _send(signal.SIGCONT, frozen)
            with suppress(subprocess.TimeoutExpired):
                zombie.wait(3)
            _send(signal.SIGKILL, frozen)
            zombie.wait()
        else:
            frozen = self._processes()
            frozen = frozen if fault == "freeze all" else frozen[1:2]
            _send(signal.SIGSTOP, frozen)
            time.sleep(self.random.choice([0.1, 2.5]))
            _send(signal.SIGCONT, frozen)

    def _is_complete(self) -> bool:
        """Return whether nothing is missing. What is there twice never goes away, so it fails at once."""
        if min(map(self.written, self.CHANGES)) < self.total:
            return False
        is_complete = self.check()
        for target, change in self.CHANGES.items():
            wanted, found = expected(range(self.total), change), self.found(target)
            assert not found - wanted, f"more than once, or not expected: {list((found - wanted).items())[:5]}"
            is_complete &= found == wanted
        return is_complete

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            _send(signal.SIGKILL, self._processes())
            self._process.wait()
        self.surroundings.log.close()


class RoundsWithServer(Rounds):
    """With a server of its own, which is killed and frozen, too."""

    OWN_FAULTS = ["kill server", "freeze server"]

    def __init__(self, directory: Path, seed: int) -> None:
        self.server = PostgresServer()
        super().__init__(directory, seed)

    def strike(self, fault: str) -> None:
        if fault == "kill server":
            self.server.kill()
            self.server.start()
        else:
            self.server.freeze()
            time.sleep(self.random.choice([0.1, 2.5]))
            self.server.wake()

    def close(self) -> None:
        super().close()
        self.server.close()


def _send(number: int, processes: list[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(number)


def run_today(kind: type[Rounds], directory: Path) -> None:
    """Run a round of every second fault, of the others tomorrow."""
    _run(kind, directory, of_today(kind.faults(), 2), seed=1)


def _run(kind: type[Rounds], directory: Path, faults: list[str], seed: int) -> None:
    made = kind(directory, seed)
    try:
        for number, fault in enumerate(faults, 1):
            began = time.monotonic()
            made.round(fault)
            print(f"round {number}: {fault}: right, {time.monotonic() - began:.1f} s", flush=True)
    finally:
        made.close()


def main(kind: type[Rounds], application: Callable[..., Application]) -> None:
    """Run rounds, or the application of one: `application(DIRECTORY, *arguments())`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=kind.faults())
    parser.add_argument("--run", type=Path)
    parser.add_argument("rest", nargs="*")
    given = parser.parse_args()
    if given.run is not None:
        application(given.run, *given.rest).start("continuous").wait()
        os._exit(0)
    directory = Path(tempfile.mkdtemp(prefix="sink-crash"))
    print(f"in {directory}", flush=True)
    chosen = random.Random(given.seed)
    faults = [*kind.faults(), *(chosen.choice(kind.faults()) for _ in range(given.rounds))][: given.rounds]
    _run(kind, directory, [given.fault] * given.rounds if given.fault else faults, given.seed)
    shutil.rmtree(directory)
