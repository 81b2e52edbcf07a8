"""Engine: what a task host runs. The cargo that it gets from the first proxy says which."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock import World

from .life import Process
from .status import HostStatus, Meter


@dataclass(frozen=True)
class HostInfo:
    """The host that runs an engine.

    `scope` tells hosts of the same slot apart, where the cargo does not. `reason` says why the host was started, for
    the report of each task that it opens. `world` is what its tasks take from outside. `watched`: processes that the
    host does not outlive.
    """

    token: str
    slot: int
    scope: str
    reason: str
    meter: Meter
    world: World = field(default_factory=World)
    watched: Sequence[Process] = ()

    def status(self, open_tasks: int) -> HostStatus:
        """Return the memory, CPU time and files that the host uses now."""
        return self.meter.status(self.token, self.slot, open_tasks)


class Engine(ABC):
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
    def engine(self, host: HostInfo) -> Engine:
        """Return a new engine."""
