"""ReplicaHost and StandbyHost: processes of a simulation with copies of tasks' stores, which run no tasks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from penstock import Application, LogError
from penstock.plugins.state.copies import Replica, saved_tasks
from penstock.plugins.state.copies.standbys import Standbys

from .failure import HostDied
from .host import Host
from .host_log import HostLog
from .host_world import HostWorld


class ReplicaHost(Host):
    """Has a replica of each task with stores, in `directory` by task. No two may have the same one at a time.

    `check` gets a task and its replica, whenever the replica may be read.
    """

    def __init__(
        self,
        number: int,
        application: Application,
        log: HostLog,
        world: HostWorld,
        directory: Path,
        check: Callable[[str, Replica], None],
    ) -> None:
        super().__init__(number, application, log, world)
        self.directory = directory
        self._check = check
        self._replicas: dict[str, Replica] = {}

    def __str__(self) -> str:
        return f"replica host {self.number}"

    def work(self) -> int:
        """Bring each replica to the last commit, as far as its task lets it."""
        for task in saved_tasks(self.application.id, self.log):
            try:
                self._follow(task)
            except HostDied:
                raise
            except Exception as error:
                self.judge(f"{task}, its replica", error)
                self._close(task)
        return 0

    def _follow(self, task: str) -> None:
        if task not in self._replicas:
            place = self.directory / task
            self._replicas[task] = Replica(self.application, task, self.log, place, world=self.world.world)
        replica = self._replicas[task]
        self._check(task, replica)
        if replica.catch_up(lambda: self._check(task, replica)) and replica.commit is not None:
            assert replica.version == replica.commit.version, f"its commit is {replica.commit}, not {replica.version}"
        self._check(task, replica)

    def version(self, task: str) -> str | None:
        """Return the version that the replica of a task shows."""
        return self._replicas[task].version if task in self._replicas else None

    def stores(self, task: str) -> set[str]:
        """Return the stores of a task that its replica has."""
        return set(self._replicas[task].layout) if task in self._replicas else set()

    def _close(self, task: str) -> None:
        replica = self._replicas.pop(task, None)
        if replica is not None:
            with suppress(HostDied, LogError):
                replica.close()

    def close(self, *, commit: bool) -> None:
        """Close all replicas; their copies stay."""
        for task in list(self._replicas):
            self._close(task)
        super().close(commit=commit)


class StandbyHost(Host):
    """A process with the standbys of all tasks. `application` has the directory of its machine."""

    def __init__(self, number: int, application: Application, log: HostLog, world: HostWorld) -> None:
        super().__init__(number, application, log, world)
        self._standbys = Standbys(application, log, world=world.world)

    def __str__(self) -> str:
        return f"standby host {self.number}"

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

    def close(self, *, commit: bool) -> None:
        """Leave the copies; those of a process that has died are left where they are."""
        if not commit:
            self._standbys._running.clear()  # no thread of it lives
        with suppress(HostDied, LogError):
            self._standbys.close()
        super().close(commit=commit)
