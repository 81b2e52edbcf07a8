"""What the runner passes to its planner: the PlannedApplication, and Orders, in memory or in files."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock import RuntimeUnavailableError, Settings, duration_ms
from penstock.plugins.engine.program.lag import offset_resets
from penstock.plugins.engine.program.preparation import Prepared
from penstock.plugins.engine.task.shipping import Arrived, pack
from penstock.support.private_files import write_private_text
from penstock.task.visits import Visit

from ..settings import MAX_RECORDS_PER_BATCH, PUNCTUATION_INTERVAL


@dataclass(frozen=True)
class Control:
    """The runner's orders to the source.

    `stopping`: plan no more batches. `next_tick`: the wall-clock time (ms) at which the first punctuator is due.
    `clock_ms`: the time that batches get, in place of the machine's. `step`: each new number asks for one batch, and
    punctuators do not cause any. `owners`: the identity of the executor that has each slot, by the slot's number as
    text; a slot that is not named may go anywhere. `unopened`: ids of the tasks that no host has open; None for all. In
    continuous mode each new number `renewal` asks for one batch, and `suspects` says why hosts seem to be dead, by the
    slot's number as text. `standbys`: by the slot's number as text, the tasks of which its host keeps copies. `paused`:
    the sub-topologies whose tasks process nothing. `visits`: requested visits.
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
        """Return the tasks' present orders, as arguments of a SlotPlan."""
        return {"paused": tuple(self.paused), "visits": tuple(Visit(*each) for each in self.visits)}


class Orders(ABC):
    """Where the runner writes a `Control` for its planner, and the planner its answer to a `step`."""

    @abstractmethod
    def write(self, control: Control) -> None:
        """Replace the orders that the planner reads."""

    @abstractmethod
    def read(self) -> Control:
        """Return the orders that were written last. Raises RuntimeUnavailableError if they are gone."""

    @abstractmethod
    def peek(self) -> Control:
        """Return the present orders without marking them as read: `has_changed` answers as before."""

    @abstractmethod
    def has_changed(self) -> bool:
        """Return whether they were written since the last `read`; costs microseconds."""

    @abstractmethod
    def write_drained(self, step: int) -> None:
        """Record that everything up to `step` was processed."""

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
    """Which log the source opens, in this user's file: Spark's UI would show passwords in an option."""

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


_FILE = "plan"


@dataclass(frozen=True)
class PlannedApplication:
    """The application as the source reads it.

    `tasks`: (topic, partition) pairs by task id. `internal`: topics of the application's own. `resets`: how topics are
    first read (`offset_reset`) that are not read from their start. `globals`: topics of global stores. `control`: the
    run's name, on Spark the directory of its orders. `interval_ms`: of Spark's trigger; 0 for batches back to back.
    `is_continuous`: batches renew the hosts' leases. `log_level`: which log lines of the source reach the driver.
    """

    application_id: str
    tasks: Mapping[str, Sequence[tuple[str, int]]]
    internal: Sequence[str]
    resets: Mapping[str, str]
    globals: Sequence[str]
    parallelism: int
    max_records: int | None
    punctuation_interval_ms: int
    control: str
    interval_ms: int = 0
    is_continuous: bool = False
    log_level: int = logging.WARNING
    upstream: Mapping[str, Sequence[int]] = field(default_factory=dict)
    holding: Sequence[int] = field(default_factory=list)
    calling: Sequence[int] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        prepared: Prepared,
        parallelism: int,
        control: str,
        interval_ms: int = 0,
        *,
        is_continuous: bool = False,
        drains_loops: bool = False,
        log_level: int = logging.WARNING,
    ) -> PlannedApplication:
        """Return the plan of a prepared application."""
        application, assignment = prepared.application, prepared.assignment
        settings = application.settings
        loops = {*application.program.sink_topics()} & {*assignment.partitions()}
        return cls(
            application.id,
            {task: [(topic, partition) for topic, partition in each] for task, each in prepared.tasks().items()},
            [*assignment.internal, *(loops if drains_loops else ())],
            offset_resets(application, assignment),
            sorted({each.topic for each in assignment.globals}),
            parallelism,
            MAX_RECORDS_PER_BATCH.of(settings),
            duration_ms(PUNCTUATION_INTERVAL.of(settings)),
            control,
            interval_ms,
            is_continuous,
            log_level,
            {str(number): sorted(above) for number, above in application.program.upstream().items()},
            sorted(application.program.holding()),
            sorted(application.program.calling()),
        )

    def write(self) -> None:
        """Write this beside the control file: as a Spark option it would be sent to workers in each batch."""
        write_private_text(Path(self.control) / _FILE, json.dumps(asdict(self)))

    @classmethod
    def read(cls, control: str) -> PlannedApplication:
        """Return the plan that `write` wrote. `control`: the directory of the control files."""
        return cls(**json.loads((Path(control) / _FILE).read_text()))


SHORTEST_REST, LONGEST_REST = 0.005, 1.0
_SHARE = 20
"""Maximum length of a rest, as a share of the quiet time before it: records that arrive then are late by a twentieth of
that time.
"""
_WORK_SHARE = 50
"""A rest is at least so many times as long as a look at the log takes, so that looking costs 2 % of a core at most."""
_MOST_SECONDS = 2.0
_TURN_SECONDS, _TURNS = 0.05, 5
"""How long a rest waits between two looks at the control file at least, and how often a long rest looks at it."""


def rest_seconds(
    quiet: float, look: float = 0.0, shortest: float = SHORTEST_REST, longest: float = LONGEST_REST
) -> float:
    """Return the seconds to rest after `quiet` seconds without work, if a look at the log takes `look` seconds."""
    return max(shortest, min(longest, quiet / _SHARE), min(_MOST_SECONDS, quiet / _SHARE, _WORK_SHARE * look))


@dataclass(eq=False)
class Rests:
    """The planner's rests. `wait` waits, and `seconds` is a clock that never goes back.

    `shortest`: the least length (seconds) of a rest. A change of the control file ends a rest early.
    """

    control: Orders
    wait: Callable[[float], object]
    seconds: Callable[[], float]
    shortest: float = SHORTEST_REST

    def __post_init__(self) -> None:
        self._quiet_since: float | None = None

    def rest(self, look: float, due_in_ms: int | None) -> None:
        """Wait, at most until the control file changes or `due_in_ms` is over. `look`: seconds that a look takes."""
        now = self.seconds()
        if self._quiet_since is None:
            self._quiet_since = now
        usual = rest_seconds(now - self._quiet_since, look)
        left = max(usual, self.shortest)
        if due_in_ms is not None:
            left = min(left, max(0.001, due_in_ms / 1000))
        turn = max(_TURN_SECONDS, min(usual, left) / _TURNS)
        while left > 0 and not self.control.has_changed():
            self.wait(min(left, turn))
            left -= turn

    def end(self) -> None:
        """End the rest: there is work."""
        self._quiet_since = None
