"""ExecutorIdentity: which executor the present process belongs to, found in its ancestors. No Spark in here."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

LOCAL_EXECUTOR = "driver"
"""Spark's name of the executor where driver and executor are one JVM (master `local[n]`)."""

_MOST_ANCESTORS = 16


@dataclass(frozen=True)
class ExecutorIdentity:
    """One executor: its id in Spark, its host, and the process of its JVM.

    Pids are used again, so `start` (when the JVM started, in the system's unit) and `boot` (the machine's present run)
    are part of it. `node`: Spark's name of the machine, "" in local mode. `daemon`: the pid of PySpark's daemon, None
    without one; it may be replaced, so it is not compared.
    """

    executor: str
    host: str
    process: int
    start: str
    boot: str
    node: str = ""
    daemon: int | None = None

    @property
    def text(self) -> str:
        """The identity as it is in plans and reports."""
        node = f"/{self.node}" if self.node else ""
        return f"{self.executor}@{self.host}/{self.process}/{self.start}/{self.boot}{node}"


def executor_id(identity: str) -> str:
    """Return Spark's id of the executor from `ExecutorIdentity.text`.

    >>> executor_id("7@node-1/4711/812345/9f0c")
    '7'
    """
    return identity.rpartition("@")[0]


def host_name(identity: str) -> str:
    """Return the host from `ExecutorIdentity.text`; "" for an unknown one.

    >>> host_name("7@node-1/4711/812345/9f0c")
    'node-1'
    """
    return identity.rpartition("@")[2].partition("/")[0]


def node_name(identity: str) -> str:
    """Return Spark's name of the machine from `ExecutorIdentity.text`; the host where Spark has none.

    >>> node_name("7@node-1/4711/812345/9f0c/10.0.1.7"), node_name("driver@node-1/4711/812345/9f0c")
    ('10.0.1.7', 'node-1')
    """
    parts = identity.rpartition("@")[2].split("/")
    return parts[4] if len(parts) > 4 else parts[0]


def describe(identity: str) -> str:
    """Return `ExecutorIdentity.text` for a person.

    >>> describe("7@node-1/4711/812345/9f0c")
    'executor 7 on node-1 (process 4711)'
    """
    executor, _, rest = identity.rpartition("@")
    host, process, *_ = (*rest.split("/"), "?")
    return f"executor {executor} on {host} (process {process})"


class OrphanError(Exception):
    """This worker's daemon ended before the worker knew its executor. Spark ends a worker that raises an error."""


def executor_identity() -> ExecutorIdentity:
    """Return the executor of this process, which is one of Spark's Python workers.

    A worker outlives its daemon, and Spark goes on using it: it stays where it was, and `daemon` is None from then on.
    Raises OrphanError if the daemon has ended before the first call.
    """
    found = _cached(os.getpid())
    return found if found.daemon in (None, os.getppid()) else replace(found, daemon=None)


@lru_cache(maxsize=1)
def _cached(process: int) -> ExecutorIdentity:
    parent, processes = os.getppid(), system_processes()
    if is_orphan(parent, os.getpgid(0), processes):
        raise OrphanError("the daemon of this Python worker has ended, and the worker's executor is not known")
    return find_identity(parent, processes)


def is_orphan(parent: int, group: int, processes: MachineProcesses) -> bool:
    """Return whether a worker of PySpark's daemon has lost it. `group`: the worker's process group.

    A daemon leads the process group of its workers, so the group's number is the daemon's pid.
    """
    is_below_jvm = any(_is_jvm(ancestor) for ancestor in _ancestors(parent, processes))
    return parent != group and not is_below_jvm and processes.find(group) is None


@dataclass(frozen=True)
class MachineProcess:
    """A process: its parent, its command line, and when it started in the system's own unit."""

    pid: int
    parent: int
    command: Sequence[str]
    start: str


class MachineProcesses(Protocol):
    """The processes of this machine."""

    def find(self, pid: int) -> MachineProcess | None:
        """Return a process; None if it has ended or is not visible from here."""

    def boot(self) -> str:
        """Return a name for the machine's present run; "" if there is none."""


def find_identity(parent: int, processes: MachineProcesses) -> ExecutorIdentity:
    """Return the executor whose JVM is the nearest ancestor. `parent` is the parent of a Python worker.

    The worker's parent is PySpark's daemon, a child of the JVM. Without the daemon it is the JVM itself. Where no
    ancestor is a JVM, the parent of the daemon counts, or the parent.
    """
    ancestors = list(_ancestors(parent, processes))
    place = next((place for place, each in enumerate(ancestors) if _is_jvm(each)), None)
    if place is None:
        place = 1 if len(ancestors) > 1 and _is_daemon(ancestors[0]) else 0
    host = socket.gethostname()
    if not ancestors:
        return ExecutorIdentity(LOCAL_EXECUTOR, host, parent, "", processes.boot())
    jvm = ancestors[place]
    daemon = ancestors[place - 1].pid if place else None
    node = _option(jvm.command, "--hostname")
    # Every cluster's executor has the option; a local JVM is the driver's.
    executor = _option(jvm.command, "--executor-id") or LOCAL_EXECUTOR
    return ExecutorIdentity(executor, host, jvm.pid, jvm.start, processes.boot(), node, daemon)


def _ancestors(pid: int, processes: MachineProcesses) -> Iterator[MachineProcess]:
    for _ in range(_MOST_ANCESTORS):
        found = processes.find(pid) if pid > 0 else None
        if found is None:
            return
        yield found
        pid = found.parent


def _is_jvm(process: MachineProcess) -> bool:
    return bool(process.command) and os.path.basename(process.command[0]) in ("java", "java.exe")


def _is_daemon(process: MachineProcess) -> bool:
    # `python -m pyspark.daemon pyspark.worker`; `spark.python.daemon.module` names another module.
    return "-m" in process.command and any("daemon" in each for each in process.command)


def reachable_name(pids: Sequence[int]) -> str:
    """Return the name of this machine for other machines: that of the executor among the processes, as Spark has it."""
    found = [each for each in map(system_processes().find, pids) if each is not None]
    return next((name for each in found if (name := _option(each.command, "--hostname"))), socket.gethostname())


def _option(command: Sequence[str], name: str) -> str:
    """Return the value of an option in a command line; "" if it is not there."""
    for place, each in enumerate(command):
        if each == name and place + 1 < len(command):
            return command[place + 1]
        if each.startswith(f"{name}="):
            return each.partition("=")[2]
    return ""


def system_processes() -> MachineProcesses:
    """Return this machine's processes: from /proc, elsewhere from `ps`."""
    return ProcFiles() if Path("/proc/self/stat").exists() else PsCommand()


class ProcFiles(MachineProcesses):
    """Linux: processes as files. `start` is in clock ticks since boot."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root

    def find(self, pid: int) -> MachineProcess | None:
        try:
            # The name, in parentheses, may have spaces and parentheses itself.
            fields = (self._root / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            command = (self._root / str(pid) / "cmdline").read_bytes()
        except OSError:
            return None
        # Fields 4 and 22 of proc(5); the first one after the name is number 3.
        arguments = command.decode(errors="replace").rstrip("\0").split("\0")
        return MachineProcess(pid, int(fields[1]), arguments, fields[19])

    def boot(self) -> str:
        try:
            return (self._root / "sys/kernel/random/boot_id").read_text().strip()[:8]
        except OSError:
            return ""


class PsCommand(MachineProcesses):
    """macOS and others: processes from `ps`. `start` is the time of day, to the second."""

    def find(self, pid: int) -> MachineProcess | None:
        # `lstart` is five words long in the C locale; the command's arguments follow, divided by spaces.
        words = _output_of("ps", "-ww", "-o", "ppid=,lstart=,command=", "-p", str(pid)).split()
        if len(words) < 7:
            return None
        return MachineProcess(pid, int(words[0]), words[6:], "-".join(words[1:6]))

    def boot(self) -> str:
        words = _output_of("sysctl", "-n", "kern.boottime").split()
        # "{ sec = 1700000000, usec = 0 } Tue Nov 14 ..."
        return words[3].rstrip(",") if len(words) > 3 else ""


def _output_of(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
