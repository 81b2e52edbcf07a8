"""A standalone cluster of Spark on this machine: a master and workers, each in a JVM of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from penstock.plugins.engine.task.class_archive import archive_options
from penstock.plugins.spark.sessions import JAVA_OPTIONS, check_java, class_archive, launch_home

from ..waiting import wait_until


def spark_home() -> Path:
    """Return the SPARK_HOME of a local session, from where the archive of classes is valid."""
    import pyspark

    return launch_home() or Path(pyspark.__file__).parent


def java_options() -> str:
    """Return the options with which a JVM starts as fast as that of a local session."""
    return " ".join([JAVA_OPTIONS, *archive_options(class_archive(check_java()))])


class Standalone:
    """A master on a free port of loopback, and workers of two cores. Ends with its block; SPARK_HOME must be set.

    The environment variable MACHINE of a worker's executors is the worker's name.
    """

    def __init__(self, directory: Path, java_options: str) -> None:
        self.directory = directory
        self._environment = {
            **os.environ,
            "CLUSTER": str(directory),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": java_options,
            "PYSPARK_PYTHON": sys.executable,
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self._workers = 0
        self.master = ""

    def __enter__(self) -> Standalone:
        output = self._start("master", "master.Master", "127.0.0.1")
        self.master = _said(output, r"spark://127\.0\.0\.1:\d+")
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def add_workers(self, *hosts: str) -> None:
        """Start a worker on each of the hosts, and wait until the master has them."""
        outputs = []
        for host in hosts:
            self._workers += 1
            name = f"worker{self._workers}"
            directory = str(self.directory / name)
            outputs.append(
                self._start(
                    name, "worker.Worker", host, "--cores", "2", "--memory", "600m", "-d", directory, self.master
                )
            )
        for output in outputs:
            _said(output, "Successfully registered with master")

    def executors(self) -> dict[str, int]:
        """Return the process of each executor, by its id."""
        found = {}
        for worker in self._started:
            for process in psutil.Process(worker.pid).children():
                try:
                    command = process.cmdline()
                except (psutil.NoSuchProcess, psutil.ZombieProcess):
                    continue
                if "--executor-id" in command:
                    found[command[command.index("--executor-id") + 1]] = process.pid
        return found

    def lose(self, executor: str) -> None:
        """Kill an executor and all other processes of its worker, with those of Python, as a lost machine does."""
        machine = psutil.Process(self.executors()[executor]).environ()["MACHINE"]
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                if (environment.get("CLUSTER"), environment.get("MACHINE")) == (str(self.directory), machine):
                    process.kill()

    def _start(self, name: str, role: str, host: str, *arguments: str) -> Path:
        output = self.directory / f"{name}.log"
        launcher = str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-class")
        free_ports = ("--host", host, "--port", "0", "--webui-port", "0")
        with output.open("w") as file:
            self._started.append(
                subprocess.Popen(
                    [launcher, f"org.apache.spark.deploy.{role}", *free_ports, *arguments],
                    env={**self._environment, "SPARK_LOCAL_IP": host, "MACHINE": name},
                    stdout=file,
                    stderr=file,
                    cwd=self.directory,
                    start_new_session=True,
                )
            )
        return output


def _said(output: Path, pattern: str) -> str:
    found = wait_until(lambda: re.search(pattern, output.read_text()), f"{output.name} says {pattern}", 120)
    text: str = found[0]
    return text
