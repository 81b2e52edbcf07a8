"""Rounds of faults for a query of `transform` on a cluster of two executors, while files arrive; and its oracle."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

import psutil

from ..processes import ROOT
from ..spark.standalone import spark_home
from ..waiting import wait_until
from .driver import Marked, send, wait_for_end

FAULTS = ("driver", "executor", "workers", "hosts")
"""What is killed: the driver with its JVM, an executor, all Python workers with their daemons, all task hosts."""
ROWS, KEYS = 40, 7
"""Rows of each file, and keys."""
CLUSTER = "local-cluster[2,1,1024]"
_LOST_WORKERS = ("PythonWorkerFactory.stopWorker", "Python worker exited unexpectedly")
"""In what Spark says of an idle worker whose daemon is gone, and of one that is gone itself. Only the last of the four
attempts that end a query is told."""
PATIENCE = 240.0
"""Seconds after which waiting for a condition is a failure, on a usual machine."""


class Pipeline(Marked):
    """The query of `tests.spark.dataframe_driver` in a driver of its own, started again and again; ends with its block.

    `options`: Spark's settings, KEY=VALUE. Spark's folder of what executors log is in `directory`, too.
    """

    def __init__(self, directory: Path, master: str = CLUSTER, options: Sequence[str] = ()) -> None:
        super().__init__(directory)
        self.directory = directory
        self.files = 0
        self._master = master
        self._options = ["spark.executor.memory=512m", *options]
        self._output: IO[bytes] = (directory / "driver.log").open("ab")
        self._home = directory / "spark"
        self._home.mkdir()
        for each in spark_home().iterdir():
            (self._home / each.name).symlink_to(each)
        (directory / "in").mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self.ends = 0
        """How often Spark ended the query because workers were killed."""
        self._said_before = 0

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._output.close()

    def start(self) -> None:
        """Start the driver, unless it runs."""
        if self.process is not None and self.process.poll() is None:
            return
        self.starts += 1
        self._said_before = (self.directory / "driver.log").stat().st_size
        environment = {"SPARK_HOME": str(self._home), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        arguments = [str(self.directory), "arriving", self._master, *self._options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.dataframe_driver", *arguments],
            cwd=ROOT,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment, **self.mark()},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill everything of every start."""
        send(self.processes(every_start=True), signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def write(self, files: int = 1) -> None:
        """Let files arrive, one for each batch."""
        for _ in range(files):
            # A minute for each file: after a kill a batch may have two, which the source had logged, and Spark not.
            minute = f"2026-01-01 {self.files // 60:02}:{self.files % 60:02}"
            rows = [
                {"key": key, "value": value, "timestamp": f"{minute}:{number:02}", "number": number}
                for number, (key, value) in enumerate(_rows(self.files))
            ]
            aside = self.directory / "aside"
            aside.write_text("\n".join(map(json.dumps, rows)))
            os.utime(aside, (1_700_000_000 + self.files,) * 2)  # files are read in the order of their times
            aside.rename(self.directory / "in" / f"{self.files:04}.json")
            self.files += 1

    def wait(self, condition: Callable[[], bool], what: str, *, workers_killed: bool = False) -> None:
        """Wait for a condition while the driver runs.

        `workers_killed`: start a driver again whose query Spark has ended for that, as its operator would. Spark 4.3
        fails a task for each idle worker whose daemon is gone, and a job after four failures of a task.
        """

        def holds() -> bool:
            if (
                workers_killed
                and self._has_ended()
                and any(each in self.said(self._said_before) for each in _LOST_WORKERS)
            ):
                self.ends += 1
                self.start()
            assert not self._has_ended(), f"the driver ended by itself:\n{self.said()[-20_000:]}"
            return condition()

        wait_until(holds, what, PATIENCE)

    def wait_for(self, files: int, *, workers_killed: bool = False) -> None:
        """Wait until the outputs of so many files are there."""
        self.wait(
            lambda: self.rows_out() >= files * ROWS, f"{files} files are processed", workers_killed=workers_killed
        )

    def rows_out(self) -> int:
        """Return how many rows are committed."""
        return sum(1 for _ in written(self.directory / "out"))

    def said(self, start: int = 0) -> str:
        """Return what drivers printed, from a byte on."""
        return (self.directory / "driver.log").read_bytes()[start:].decode(errors="replace")

    def _has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def judge(self) -> Verdict:
        """Compare all outputs with the files."""
        return judged(written(self.directory / "out"), self.files)


def _rows(file: int) -> list[tuple[str, str]]:
    return [(f"k{number % KEYS}", f"v{file}-{number}") for number in range(ROWS)]


def written(out: Path) -> Iterator[tuple[str, str]]:
    """Yield key and value of the rows that the file sink has committed: those in files that its log names."""
    log = out / "_spark_metadata"
    names = [each.name for each in log.glob("[0-9]*")] if log.exists() else []
    compact = max((int(name.partition(".")[0]) for name in names if name.endswith(".compact")), default=-1)
    chosen = [name for name in names if name == f"{compact}.compact" or (name.isdigit() and int(name) > compact)]
    for name in chosen:
        for entry in map(json.loads, (log / name).read_text().splitlines()[1:]):
            for line in Path(unquote(urlsplit(entry["path"]).path)).read_text().splitlines():
                row = json.loads(line)
                yield row["key"], row["value"]


@dataclass
class Verdict:
    """What is wrong with outputs. `miscounted`: keys whose counts are not 1, 2, 3 ... in the order of the files."""

    lost: int = 0
    doubled: int = 0
    miscounted: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether nothing is."""
        return not (self.lost or self.doubled or self.miscounted)


def judged(rows: Iterator[tuple[str, str]], files: int) -> Verdict:
    """Return what is wrong with the outputs of so many files."""
    found, counts = Counter[tuple[str, str]](), defaultdict[str, dict[str, int]](dict)
    for key, text in rows:
        value, _, count = text.rpartition(":")
        found[key, value] += 1
        counts[key][value] = int(count)
    wanted = [row for file in range(files) for row in _rows(file)]
    expected, number = defaultdict[str, dict[str, int]](dict), Counter[str]()
    for key, value in wanted:
        number[key] += 1
        expected[key][value] = number[key]
    missing, more = Counter(wanted) - found, found - Counter(wanted)
    return Verdict(missing.total(), more.total(), sorted(key for key in expected if counts[key] != expected[key]))


@dataclass
class Tally:
    """What was done, and what was wrong."""

    faults: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    verdict: Verdict = field(default_factory=Verdict)

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        return (
            f"rounds {self.faults.total()} inputs {self.rows} lost {self.verdict.lost} duplicated "
            f"{self.verdict.doubled} wrong {len(self.verdict.miscounted)} (killed: {faults})"
        )


def run(rounds: int, seed: int, say: Callable[[str], None] = lambda line: None) -> Tally:
    """Kill something in each round, in the middle of its files; end with the first round after which a row is wrong."""
    chance, tally = random.Random(seed), Tally()
    with tempfile.TemporaryDirectory(prefix="penstock-operator-") as place, Pipeline(Path(place)) as pipeline:
        for number in range(rounds):
            kind = FAULTS[number % len(FAULTS)]
            pipeline.start()
            assert pipeline.process is not None
            before = pipeline.files
            pipeline.write(4)
            pipeline.wait_for(before + chance.randrange(1, 4))
            victims: list[psutil.Process] = wait_until(partial(_victims, pipeline, kind), f"{kind} to kill", PATIENCE)
            if kind == "executor":
                victims = [chance.choice(victims)]
            at = pipeline.rows_out() // ROWS
            send(victims, signal.SIGKILL)
            wait_for_end(victims, PATIENCE)
            if kind == "driver":
                pipeline.process.wait()  # its last threads may end after it
            pipeline.write()
            pipeline.start()
            pipeline.wait_for(pipeline.files, workers_killed=kind == "workers")
            tally.verdict = pipeline.judge()
            tally.rows = pipeline.files * ROWS
            tally.faults[kind] += 1
            ends = f", the query ended {pipeline.ends} times so far" if pipeline.ends else ""
            say(
                f"round {number + 1}: killed {len(victims)} ({kind}) after {at - before} of 5 files: "
                f"{tally.verdict}{ends}"
            )
            if not tally.verdict.is_good:
                break
    return tally


def _victims(pipeline: Pipeline, kind: str) -> list[psutil.Process]:
    if kind == "driver":
        assert pipeline.process is not None
        executors = {each.pid for each in pipeline.executors()}
        return [psutil.Process(pipeline.process.pid), *(each for each in pipeline.jvm() if each.pid not in executors)]
    if kind == "executor":
        return pipeline.executors()
    return [*pipeline.workers(), *pipeline.daemons()] if kind == "workers" else pipeline.hosts()
