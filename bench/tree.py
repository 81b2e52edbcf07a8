"""The processes of a measured application, found by a mark in their environment, and what each one uses."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

import psutil

MARK = "BENCH_MARK"
"""The environment variable. Processes inherit it, also those that leave their parent's session or outlive it."""


_BEGINNING = "beginning"
"""The part of a process that the JVM has just made: it has the memory of its parent until it runs its own program."""


@dataclass(frozen=True)
class Usage:
    """The usage of one process. `own_mb` is the memory that it does not share; `cpu_s` is since its start."""

    pid: int
    kind: str
    is_python: bool
    cpu_s: float
    own_mb: float
    descriptors: int
    threads: int


class MarkedProcesses:
    """All processes that were started with this object's mark in their environment.

    `with_this`: also this process, and all that it starts from now on.
    """

    def __init__(self, *, with_this: bool = False) -> None:
        self.peak_mb = self.worker_mb = 0.0
        self._is_ours: dict[tuple[int, float], bool] = {}
        self._cpu: dict[tuple[int, str], float] = {}
        if with_this:
            # A JVM that an earlier measurement started goes on with the environment of then.
            self.mark = os.environ.setdefault(MARK, secrets.token_hex(8))
            me = psutil.Process()
            self._is_ours[me.pid, me.create_time()] = True
        else:
            self.mark = secrets.token_hex(8)

    def processes(self) -> list[psutil.Process]:
        """Return those that run now, the oldest first."""
        found = []
        for process in psutil.process_iter():
            try:
                key = process.pid, process.create_time()
                if key not in self._is_ours:
                    self._is_ours[key] = process.environ().get(MARK) == self.mark
                if self._is_ours[key] and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return sorted(found, key=lambda each: each.create_time())

    def look(self) -> list[Usage]:
        """Return the present usage of each. `peak_mb` is the most that all had at one look, `worker_mb` that one Python
        process had which runs tasks."""
        found = []
        for process in self.processes():
            try:
                with process.oneshot():
                    memory = process.memory_info()
                    usage = Usage(
                        process.pid,
                        kind_of(process),
                        "python" in process.name(),
                        sum(process.cpu_times()[:2]),
                        (memory.rss - memory.shared) / 2**20,
                        process.num_fds(),
                        process.num_threads(),
                    )
            except psutil.Error:
                continue
            if usage.kind == _BEGINNING:
                continue
            self._cpu[usage.pid, usage.kind] = usage.cpu_s
            found.append(usage)
        self.peak_mb = max(self.peak_mb, sum(each.own_mb for each in found))
        self.worker_mb = max([self.worker_mb, *(each.own_mb for each in found if each.kind in ("host", "worker"))])
        return found

    def cpu_s(self) -> dict[tuple[int, str], float]:
        """Look, and return the CPU seconds of each process seen so far, by process id and kind. A process that has
        ended keeps the seconds it had at the last look."""
        self.look()
        return dict(self._cpu)

    def total_cpu_s(self) -> float:
        """Look, and return the CPU seconds of all."""
        return sum(self.cpu_s().values())

    def kill(self) -> None:
        """End all of them."""
        for process in self.processes():
            try:
                process.kill()
            except psutil.Error:
                continue


def kind_of(process: psutil.Process) -> str:
    """Return the part that a process has in an application."""
    words = process.cmdline()
    command = " ".join(words)
    if "java" in process.name():
        return "JVM"
    if words and words[0].rpartition("/")[2] == "java":
        return _BEGINNING
    if "bench.steady_app" in command or "bench.kafka_app" in command:
        return "driver"
    if "python_streaming_source_runner" in command:
        return "source"
    if "plugins.engine.host" in command:
        return "host"
    if "pyspark.daemon" in command:
        parent = process.parent()
        job = command.rpartition(".")[2]
        # Spark has a daemon, and workers below it, for each kind of work.
        suffix = " daemon" if parent is not None and "java" in parent.name() else ""
        return job + suffix
    return process.name()
