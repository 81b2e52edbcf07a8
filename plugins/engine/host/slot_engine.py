"""SlotEngine: what the engines of an application have in common: its log, the claim of the slot, log lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from penstock import Application, Commit, Log, TopicPartition
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources

from .claims import Claims, SlotLayout
from .companion import HostCompanion, OpensCompanion
from .engine import Cargo, Engine, HostInfo
from .log_lines import HostLogHandler, OwnLogLines, log_to_driver
from .plan import SlotPlan
from .priority import give_way
from .reports import TaskFailure, TaskResult

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
    none are sent, and the driver asks the host instead. `companions`: what each host has beside its tasks.
    `gives_way`: there is a server of queries, which has the processors first.
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


class SlotEngine(Engine):
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
            for each in cargo.companions:
                self._companions.append(each(cargo.application, host))
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
        """Note in the log that the executor has the slot, if the plan names no owner yet."""
        if self._claims is not None and not (plan.owner and self._has_claimed):
            self._claims.write(plan.slot, executor)
            self._has_claimed = True

    def _tell_companions(self, plan: SlotPlan) -> None:
        for each in self._companions:
            each.take(plan)

    def _close_companions(self) -> None:
        for each in self._companions:
            each.close()

    def _server_url(self, most_seconds: float = 0.0) -> str:
        """Return the URL of the machine's server of queries; "" if there is none."""
        return next((url for each in self._companions if (url := each.url(most_seconds))), "")

    def _failure(self, name: str, error: BaseException) -> TaskResult:
        return TaskResult(name, failure=TaskFailure.of(self._application.id, name, error))

    def close(self) -> None:
        """Close what tasks share, and the log."""
        self._close_companions()
        self._resources.close()
        self._log.close()
