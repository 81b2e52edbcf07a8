"""A changelog and store backends as somebody else's package brings them: ours, that halt their process at a call if
told to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock import hookimpl
from penstock.contrib.rocksdb.backend import RocksDbBackend
from penstock.contrib.sqlite.backend import SqliteBackend
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.store import Changes
from penstock.stores.lmdb import LmdbBackend

CHANGELOG = "crash.directory"
BACKENDS: Mapping[str, Any] = {"lmdb": LmdbBackend, "contrib.rocksdb": RocksDbBackend, "contrib.sqlite": SqliteBackend}
ORDER, HALTED = "halt-at", "halted"
"""Files in CRASH_DATA: "CALL SUB-TOPOLOGY", where the next process is to halt, and the process that did."""
METHODS = ("append", "wants_snapshot", "snapshot", "clean")
CALLS = (*METHODS, "deletions", "write")
"""Where a process can be halted: at the entry of one of the changelog's methods, before `clean` deletes, or after the
store's `write`, which is the last step of a commit."""


class HaltingChangelog(DirectoryChangelog):
    """`directory`, with a snapshot as soon as the deltas weigh more than the one before."""

    def __init__(self, location: str, application_id: str, task_id: str, **options: Any) -> None:
        super().__init__(location, application_id, task_id, snapshot_floor_bytes=1, **options)
        self.task_id = task_id


def _halting(name: str) -> Any:
    def call(self: HaltingChangelog, *args: Any, **kwargs: Any) -> Any:
        _halt_if_told(name, self.task_id)
        # The last thing that `clean` does before it deletes is to ask whether the task is still its own.
        given = [_and_then_halt(each, self.task_id) if callable(each) else each for each in args]
        return getattr(super(HaltingChangelog, self), name)(*given, **kwargs)

    return call


def _and_then_halt(function: Callable[[], bool], task_id: str) -> Callable[[], bool]:
    def call() -> bool:
        answer = function()
        _halt_if_told("deletions", task_id)
        return answer

    return call


for _name in METHODS:
    setattr(HaltingChangelog, _name, _halting(_name))


def backend_name(name: str) -> str:
    """Return the name of the store backend `name` that halts."""
    return f"crash.{name}"


def _halting_backend(backend: Any) -> Any:
    class HaltingBackend(backend):  # type: ignore[misc]
        """Another backend."""

        def __init__(self, directory: Path, stores: Sequence[str], **options: Any) -> None:
            super().__init__(directory, stores, **options)
            # STATE DIRECTORY/APPLICATION/TASK/BACKEND/NUMBER
            self._task_id = directory.parts[-3]

        def write(self, changes: Changes, previous: str | None, version: str) -> None:
            """Write, and halt behind it."""
            super().write(changes, previous, version)
            _halt_if_told("write", self._task_id)

    return HaltingBackend


def _halt_if_told(name: str, task_id: str) -> None:
    """Stop this process (SIGSTOP) if the order names this call and the task's sub-topology. One process takes the
    order."""
    data = Path(os.environ["CRASH_DATA"])
    try:
        if (data / ORDER).read_text() != f"{name} {task_id.partition('_')[0]}":
            return
        os.rename(data / ORDER, data / f"{ORDER}.{os.getpid()}")
    except FileNotFoundError:
        return
    # Out of the process group of PySpark's daemon: its end would hang up and wake a member that is stopped.
    os.setsid()
    os.rename(data / f"{ORDER}.{os.getpid()}", data / f"{HALTED}.{os.getpid()}")
    os.kill(os.getpid(), signal.SIGSTOP)


@hookimpl
def penstock_changelogs() -> Mapping[str, Any]:
    """Return the one changelog."""
    return {CHANGELOG: HaltingChangelog}


@hookimpl
def penstock_store_backends() -> Mapping[str, Any]:
    """Return the store backends."""
    return {backend_name(name): _halting_backend(backend) for name, backend in BACKENDS.items()}


def install(directory: Path) -> Path:
    """Write what makes this module an installed plugin to Python processes with `directory` on their path; return
    it."""
    info = directory / "crash-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crash\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[penstock]\ncrash = {__name__}\n")
    return directory
