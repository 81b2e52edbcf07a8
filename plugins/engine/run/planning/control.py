"""Orders: what the runner passes to its planner, in memory, or in files where Spark runs the planner in a process."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock import RuntimeUnavailableError, Settings
from penstock.plugins.engine.task.shipping import Arrived, pack
from penstock.support.private_files import write_private_text
from penstock.task.visits import Visit


@dataclass(frozen=True)
class Control:
    """The runner's orders to the source.

    `stopping`: plan no more batches. `next_tick`: the wall-clock time (ms) at which the first punctuator is due.
    `clock_ms`: the time that batches get, in place of the machine's. `step`: each new number asks for one batch, and
    punctuators do not cause any. `owners`: the identity of the executor that has each slot, by the slot's number as
    text; a slot that is not named may go anywhere. `unopened`: ids of the tasks that no host has open; None for all.
    In continuous mode each new number `renewal` asks for one batch, and `suspects` says why hosts seem to be dead, by
    the slot's number as text. `standbys`: by the slot's number as text, the tasks of which its host keeps copies.
    `paused`: the sub-topologies whose tasks process nothing. `visits`: those that were asked for.
    """

    stopping: bool = False
    next_tick: int | None = None
    clock_ms: int | None = None
    step: int | None = None
    owners: Mapping[str, str] = field(default_factory=dict)
    unopened: list[str] | None = None
    renewal: int = 0
    suspects: Mapping[str, str] = field(default_factory=dict)
    standbys: Mapping[str, list[str]] = field(default_factory=dict)
    paused: Sequence[int] = ()
    visits: Sequence[Sequence[Any]] = ()

    def of_tasks(self) -> Mapping[str, Any]:
        """Return what tasks do at present, as arguments of a SlotPlan."""
        return {"paused": tuple(self.paused), "visits": tuple(Visit(*each) for each in self.visits)}


class Orders(ABC):
    """Where the runner writes a `Control` for its planner, and the planner its answer to a `step`."""

    @abstractmethod
    def write(self, control: Control) -> None:
        """Replace what the planner sees."""

    @abstractmethod
    def read(self) -> Control:
        """Return the orders that were written last. Raises RuntimeUnavailableError if they are gone."""

    @abstractmethod
    def peek(self) -> Control:
        """Return the same; `has_changed` answers as before."""

    @abstractmethod
    def has_changed(self) -> bool:
        """Return whether they were written since the last `read`; costs microseconds."""

    @abstractmethod
    def write_drained(self, step: int) -> None:
        """Note that everything up to `step` was processed."""

    @abstractmethod
    def read_drained(self) -> int:
        """Return the last step that was processed to its end; -1 before the first."""


class OwnOrders(Orders):
    """Orders to a planner in the process of the runner."""

    def __init__(self) -> None:
        self._control, self._drained = Control(), -1
        self._seen: Control | None = None

    def write(self, control: Control) -> None:
        self._control = control

    def read(self) -> Control:
        self._seen = self._control
        return self._seen

    def peek(self) -> Control:
        return self._control

    def has_changed(self) -> bool:
        return self._control is not self._seen

    def write_drained(self, step: int) -> None:
        self._drained = step

    def read_drained(self) -> int:
        return self._drained


class ControlFile(Orders):
    """Orders in a file that is replaced whole, and the answer in another beside it."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._path = self.directory / "control"
        self._answer = self.directory / "drained"
        self._seen: tuple[int, int] | None = None

    def write(self, control: Control) -> None:
        _replace(self._path, json.dumps(asdict(control)))

    def read(self) -> Control:
        self._seen = self._stamp()
        return self.peek()

    def peek(self) -> Control:
        try:
            return Control(**json.loads(self._path.read_text()))
        except FileNotFoundError:
            raise RuntimeUnavailableError(
                f"{self.directory}, from which the planner reads what the run wants, is gone: the run has ended, or "
                "something that cleans temporary files has deleted it. Let the environment variable TMPDIR of the "
                "driver name a directory that nothing cleans"
            ) from None

    def has_changed(self) -> bool:
        return self._stamp() != self._seen

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def write_drained(self, step: int) -> None:
        _replace(self._answer, str(step))

    def read_drained(self) -> int:
        try:
            return int(self._answer.read_text())
        except FileNotFoundError:
            return -1


class LogFile:
    """Which log the source opens, in a file that only this user can read.

    A Spark option would show the log's passwords in Spark's UI.
    """

    def __init__(self, directory: str | Path) -> None:
        self._path = Path(directory) / "log"

    def write(self, settings: Settings) -> None:
        """Write the settings about the log, for one reader."""
        self._path.unlink(missing_ok=True)
        about_the_log = Settings(
            log=settings.log,
            data_dir=settings.data_dir,
            clients=settings.clients,
            processing_guarantee=settings.processing_guarantee,
            task_timeout=settings.task_timeout,
            replication_factor=settings.replication_factor,
        )
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pack(about_the_log))  # with the plugins of this process, which may have the log

    def take(self) -> Settings:
        """Return the settings that were written; delete the file: if the runner is killed, no password stays behind."""
        packed = self._path.read_bytes()
        self._path.unlink(missing_ok=True)
        settings: Settings = Arrived(packed).cargo
        return settings


def _replace(path: Path, text: str) -> None:
    aside = path.with_suffix(f".{os.getpid()}")
    try:
        write_private_text(aside, text)
        os.replace(aside, path)
    except FileNotFoundError:
        pass  # the directory went with its runner, or was cleaned: the planner's next look raises
