"""The application as an operator runs it: `penstock run` in a process of its own, with all processes below it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import psutil

from penstock.settings.settings import Settings

from ..processes import is_alive
from . import plugin
from .oracle import Stores

ROOT = Path(__file__).parents[2]
TARGET = "tests.crash.programs:application"
TRIGGERS = {"batch": "0s", "continuous": "continuous"}
HOST_TITLE = "penstock task host"
"""What stands in the command line of a task host."""
_MARK = "CRASH_START"


class Marked:
    """Starts that leave a mark in the environment of each process below them.

    By that a process is found when its parents are gone.
    """

    starts = 0

    def __init__(self, directory: Path) -> None:
        self._mark = f"{directory.name}-{os.getpid()}"

    def mark(self) -> dict[str, str]:
        """Return what the environment of the present start has in addition."""
        return {_MARK: f"{self._mark}-{self.starts}"}

    def processes(self, every_start: bool = False) -> list[psutil.Process]:
        """Return the live processes of the last start, or of all: the driver, Spark's JVM, its Python workers, and the
        task hosts."""
        mark = f"{self._mark}-" if every_start else f"{self._mark}-{self.starts}"
        found = []
        for each in psutil.process_iter():
            try:
                value = each.environ().get(_MARK, "")
                if value == mark or (every_start and value.startswith(mark)):
                    found.append(each)
            except (psutil.Error, OSError):
                continue
        return [each for each in found if each.pid != os.getpid() and is_alive(each)]

    def jvm(self) -> list[psutil.Process]:
        """Return Spark's JVM."""
        return [each for each in self.processes() if _name(each).startswith("java")]

    def executors(self) -> list[psutil.Process]:
        """Return the JVMs of executors, where they have their own."""
        return [each for each in self.jvm() if "CoarseGrainedExecutorBackend" in _command(each)]

    def daemons(self) -> list[psutil.Process]:
        """Return what Python workers are forked from: a child of the JVM."""
        return self._of_spark(forked_by_jvm=True)

    def workers(self) -> list[psutil.Process]:
        """Return Spark's Python workers, which hand batches to the task hosts; they outlive their daemon."""
        return self._of_spark(forked_by_jvm=False)

    def hosts(self) -> list[psutil.Process]:
        """Return the task hosts: nobody's children, in sessions of their own."""
        return [each for each in self.processes() if HOST_TITLE in _command(each)]

    def _of_spark(self, forked_by_jvm: bool) -> list[psutil.Process]:
        processes = self.processes()
        jvms = {each.pid for each in processes if _name(each).startswith("java")}
        pythons = [each for each in processes if _command(each).endswith("pyspark.daemon pyspark.worker")]
        return [each for each in pythons if (_parent(each) in jvms) == forked_by_jvm]


class Driver(Marked):
    """Starts one application again and again, on hosts that differ in what they keep for themselves."""

    def __init__(
        self,
        directory: Path,
        log: str,
        guarantee: str,
        changelog: str,
        program: str,
        mode: str,
        backend: str = "lmdb",
        engine: str = "spark",
    ) -> None:
        super().__init__(directory)
        self.directory = directory
        self._engine = engine
        self.trigger = TRIGGERS[mode]
        self.settings = Settings(log=log, data_dir=str(directory / "data"), processing_guarantee=guarantee)
        self.log_file = directory / "driver.log"
        self.temporary = directory / "tmp"
        (self.temporary / "spark").mkdir(parents=True)
        (directory / "data").mkdir(exist_ok=True)
        path = [str(plugin.install(directory / "site")), str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "CRASH_DATA": self.settings.data_dir,
            "CRASH_LOG": log,
            "CRASH_GUARANTEE": guarantee,
            "CRASH_CHANGELOG": changelog,
            "CRASH_BACKEND": plugin.backend_name(backend),
            "CRASH_PROGRAM": program,
            # What is left behind is seen.
            "TMPDIR": str(self.temporary),
            "SPARK_LOCAL_DIRS": str(self.temporary / "spark"),
        }
        self._output: IO[bytes] = self.log_file.open("ab")
        self.process: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self.host = "a"
        self.metrics_port = 0
        self._ours: set[int] = set()
        """The drivers that were ended on purpose, or may end by what was done to them."""

    # ------------------------------------------------------------------ starting and ending

    def start(self, host: str) -> None:
        """Start the driver on a host, in a process group of its own."""
        self.starts += 1
        self.host = host
        self.metrics_port = _free_port()
        self._output.write(f"\n===== start {self.starts} on host {host}\n".encode())
        self._output.flush()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.plugins.operate.cli", "run", TARGET, *self.how()],
            cwd=ROOT,
            env=self.environment(host),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append(self.process)

    def how(self) -> list[str]:
        """Return the options of `penstock run`; with the engines "both", each start has the other one."""
        is_embedded = self._engine == "embedded" or (self._engine == "both" and self.starts % 2)
        engine = ["--engine", "embedded"] if is_embedded else ["--master", "local[2]"]
        return ["--trigger", self.trigger, *engine, "--metrics-port", str(self.metrics_port)]

    def environment(self, host: str) -> dict[str, str]:
        """Return the environment of a process that runs on a host."""
        return {**self._environment, "CRASH_HOST": host, **self.mark()}

    @property
    def is_down(self) -> bool:
        """Whether no driver runs."""
        return self.process is None or self.process.poll() is not None

    def expect_end(self) -> None:
        """Take the end of the driver that runs now, whenever it comes, for what was asked for."""
        assert self.process is not None
        self._ours.add(self.process.pid)

    def unexpected_end(self) -> str | None:
        """Return how the driver ended, with the last that it said, if nobody asked for that."""
        if self.process is None or self.process.poll() is None or self.process.pid in self._ours:
            return None
        self._ours.add(self.process.pid)
        return f"start {self.starts} ended by itself, exit code {self.process.returncode}: {self.said()[-600:]}"

    def terminate(self, patience: float) -> int:
        """Stop the driver as an operator does (SIGTERM), and return its exit code. Raises TimeoutExpired."""
        assert self.process is not None
        self.expect_end()
        self.process.terminate()
        return self.process.wait(patience)

    def said(self) -> str:
        """Return what the last driver printed."""
        return self.log_file.read_text(errors="replace").rpartition("=====")[2].strip()

    def command(self, *arguments: str, host: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run `penstock ARGUMENTS` on a host, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "penstock.plugins.operate.cli", *arguments],
            cwd=ROOT, env=self.environment(host or self.host), capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def stores(self, host: str) -> Stores:
        """Return what the stores hold as a host finds them, in a process of its own. Raises RuntimeError with what it
        said."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.crash.state"],
            cwd=ROOT, env=self.environment(host), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"host {host} cannot open the state: {done.stderr.strip()[-1500:]}")
        stores: Stores = json.loads(done.stdout.splitlines()[-1])
        return stores

    def close(self) -> None:
        """Kill whatever is left of any start."""
        send(self.processes(every_start=True), signal.SIGKILL)
        for process in self._started:
            process.wait()
        self._output.close()

    # ------------------------------------------------------------------ looking

    def places(self) -> list[Path]:
        """Return where task hosts of any start listen: their directories and lock files."""
        return sorted(self.temporary.glob("penstock-host-*"))

    def held_places(self) -> list[Path]:
        """Return the places that task hosts have now."""
        return [each for lock in self.places() if _is_held(lock) for each in (lock, lock.with_suffix(""))]

    def left_behind(self, before: Iterable[str] = ()) -> list[str]:
        """Return the names of temporary files and directories that were not there before."""
        places = (self.temporary, self.temporary / "spark")
        names = {str(path.relative_to(self.temporary)) for place in places for path in place.iterdir()}
        return sorted(names - set(before) - {"spark"})

    def locks(self) -> list[Path]:
        """Return the lock files of local state that somebody holds."""
        return [path for path in Path(self.settings.data_dir).glob("state-*/*/*.lock") if _is_held(path)]

    def state_directories(self) -> dict[Path, int]:
        """Return the tasks' directories of local state on the present host, with the numbers that the system gives."""
        locks = Path(self.settings.data_dir).glob(f"state-{self.host}/*/*.lock")
        return {each: each.stat().st_ino for lock in locks if (each := lock.with_suffix("")).is_dir()}

    def tracebacks(self) -> int:
        """Return how many Python tracebacks drivers printed, on all starts."""
        return len(re.findall(r"^Traceback \(most recent", self.log_file.read_text(errors="replace"), re.MULTILINE))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _is_held(lock: Path) -> bool:
    """Return whether a process holds a lock file; False for what is none."""
    try:
        with lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (FileNotFoundError, IsADirectoryError):
        pass
    return False


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for each in processes:
        try:
            each.send_signal(number)
        except psutil.Error:
            pass


def wait_for_end(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until all have ended; return those that have not."""
    deadline = time.monotonic() + seconds
    left = [each for each in processes if is_alive(each)]
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = [each for each in left if is_alive(each)]
    return left


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return -1


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
