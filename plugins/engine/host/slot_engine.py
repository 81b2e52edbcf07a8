"""HostEngine: the interface of a task host's work. SlotEngine: one with a log, the claim of a slot, and log lines."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from penstock import Application, Commit, Log, TopicPartition, World
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources

from .claims import Claims, SlotLayout
from .log_lines import HostLogHandler, OwnLogLines, log_to_driver
from .place import ProcessId
from .reports import HostStatus, Meter, SlotPlan, TaskFailure, TaskResult


@dataclass(frozen=True)
class HostInfo:
    """The host that runs an engine.

    `scope` distinguishes hosts of the same slot with the same cargo. `reason` says why the host was started, for the
    report of each task that it opens. `world`: the World of its tasks. `watched`: processes that the host does not
    outlive.
    """

    token: str
    slot: int
    scope: str
    reason: str
    meter: Meter
    world: World = field(default_factory=World)
    watched: Sequence[ProcessId] = ()

    def status(self, open_tasks: int) -> HostStatus:
        """Return the memory, CPU time and files that the host uses now."""
        return self.meter.status(self.token, self.slot, open_tasks)


class HostEngine(ABC):
    """The tasks that a host has open. Called from one thread."""

    @abstractmethod
    def handle(self, request: Any) -> Any:
        """Serve a proxy's request, and return the answer. An error goes to the proxy, and the engine can be used on."""

    @abstractmethod
    def close(self) -> None:
        """Close every task."""


class Cargo(ABC):
    """Makes an engine; pickled on the driver, with code and settings."""

    @abstractmethod
    def engine(self, host: HostInfo) -> HostEngine:
        """Return a new engine."""


NICE = 5
"""How much nicer than other processes: of a processor that another one wants, too, tasks get a quarter."""
_AUTOGROUP = Path("/proc/self/autogroup")
_TRIES, _AGAIN_SECONDS = 120, 0.25


def give_way(world: World) -> None:
    """Lower the priority of this thread, of those that it starts from now on, and of the session of this process.

    Other threads, and the processes that they start, keep theirs. Only a process that is alone in its session may call
    this.
    """
    os.nice(NICE)
    pool = world.threads(1, "penstock-priority")
    pool.submit(_lower_session, world)
    pool.shutdown(wait=False)


def _lower_session(world: World) -> None:
    # Linux may divide the processors among sessions first. It lets one process of all users change the share of its
    # session in a tenth of a second.
    with suppress(OSError):
        for _ in range(_TRIES):
            try:
                _AUTOGROUP.write_text(str(NICE))
                return
            except BlockingIOError:
                world.sleep(_AGAIN_SECONDS)


SERVER_SECONDS = 5.0
"""How long the first batch waits for the URL of the machine's server, which starts beside the tasks."""


@dataclass(frozen=True)
class SlotRequest:
    """A proxy's request: run the plan. `known` has, by task id, commits that the log must have.

    `heard`: the token of a host, and the number of its last message that has arrived; ("", 0) before the first one.
    None where every message arrives.
    """

    plan: SlotPlan
    known: Mapping[str, Commit]
    executor: str
    heard: tuple[str, int] | None = None


@dataclass(frozen=True)
class SlotCargo(Cargo):
    """The cargo of an application's hosts: engine, application, partitions of its tasks, and where log lines go.

    `log_directory`: "" where the tasks run in the driver's process. `layout`: None where the driver has one executor,
    and slots need not be claimed. `run` names the run of the query in heartbeats of the continuous mode; without it
    none are sent, and the driver asks the host instead. `companions`: the companions of each host. `gives_way`: there
    is a server of queries, which has the processors first.
    """

    kind: type[SlotEngine]
    application: Application
    tasks: Mapping[str, tuple[TopicPartition, ...]]
    log_directory: str
    log_level: int
    layout: SlotLayout | None = None
    run: str = ""
    companions: tuple[OpensCompanion, ...] = ()
    gives_way: bool = False

    def engine(self, host: HostInfo) -> SlotEngine:
        return self.kind(self, host)


class SlotEngine(HostEngine):
    """An engine of an application's slot, with its log open."""

    sends_at_once: ClassVar[bool] = False
    """Whether the log's producers send each record as soon as they can."""

    def __init__(self, cargo: SlotCargo, host: HostInfo) -> None:
        self._partitions = cargo.tasks
        self._host = host
        self._application = cargo.application
        self._resources = ProcessResources(host.world)
        self._resources.is_settled = False
        self._logs: HostLogHandler | OwnLogLines = OwnLogLines()
        if cargo.log_directory:
            self._logs = log_to_driver(Path(cargo.log_directory), cargo.log_level)
        self._companions: list[HostCompanion] = []
        try:
            for companion in cargo.companions:
                self._companions.append(companion(cargo.application, host))
            if cargo.log_directory and cargo.gives_way:
                # After the thread that starts the server, which keeps its priority.
                give_way(host.world)
            self._log: Log = open_log(cargo.application.settings, sends_at_once=self.sends_at_once)
        except BaseException:
            self._close_companions()
            raise
        self._claims = None if cargo.layout is None else Claims(self._log, self._application.id, cargo.layout)
        self._has_claimed = False

    def _claim(self, plan: SlotPlan, executor: str) -> None:
        """Record in the log that the executor has the slot, if the plan names no owner yet."""
        if self._claims is not None and not (plan.owner and self._has_claimed):
            self._claims.write(plan.slot, executor)
            self._has_claimed = True

    def _tell_companions(self, plan: SlotPlan) -> None:
        for companion in self._companions:
            companion.take(plan)

    def _close_companions(self) -> None:
        for companion in self._companions:
            companion.close()

    def _server_url(self, most_seconds: float = 0.0) -> str:
        """Return the URL of the machine's server of queries; "" if there is none."""
        return next((url for companion in self._companions if (url := companion.url(most_seconds))), "")

    def _failure(self, name: str, error: BaseException) -> TaskResult:
        return TaskResult(name, failure=TaskFailure.of(self._application.id, name, error))

    def close(self) -> None:
        """Close the shared resources of the tasks, and the log."""
        self._close_companions()
        self._resources.close()
        self._log.close()


class HostCompanion:
    """What a task host has beside its tasks, from its start to `close`. The host's one thread calls all methods."""

    def take(self, plan: SlotPlan) -> None:
        """Apply a plan before its tasks work."""

    def url(self, most_seconds: float) -> str:
        """Return the URL of the server of queries, "" for none; wait up to so many seconds until it is known."""
        return ""

    def close(self) -> None:
        """End it."""


OpensCompanion = Callable[[Application, HostInfo], HostCompanion]
"""Opens a companion in a host. It is pickled by name, so the hosts that have none import none."""
