"""StandbyHost: a process of a simulation that keeps standbys in the local state of its machine, and runs no tasks."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from penstock import Application, LogError
from penstock.plugins.replicas.standbys import Standbys

from .failure import HostDied
from .host import Host
from .host_world import HostWorld
from .log import HostLog


class StandbyHost(Host):
    """A process with the standbys of all tasks. `application` has the directory of its machine."""

    def __init__(self, number: int, application: Application, log: HostLog, world: HostWorld) -> None:
        super().__init__(number, application, {}, log, world)
        self._standbys = Standbys(application, log, world=world.world)

    def __str__(self) -> str:
        return f"standby host {self.number}"

    def run(self, names: Iterable[str]) -> None:
        """Do nothing: it runs no tasks."""

    def work(self) -> int:
        """Bring on the copies that are due."""
        self.world.tick()
        while self.world.calls:
            self.world.run(0)
        return 0

    def unsettled(self) -> list[str]:
        """Return the tasks whose copies are neither at the last commit nor taken by their task, and why."""
        states = self._standbys.status()
        return [] if self._standbys.are_current else [f"{each.task} {each.state} {each.error}" for each in states]

    @property
    def lost(self) -> set[str]:
        return set()

    def close(self, *, commit: bool) -> None:
        """Leave the copies; those of a process that has died are left where they are."""
        if not commit:
            self._standbys._running.clear()  # no thread of it lives
        with suppress(HostDied, LogError):
            self._standbys.close()
        self.resources.close()
