"""OperatorHost: a process that an operator starts while a simulated application is stopped, such as a reset."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock import Application, LeaseTakenError, Log, PenstockError, World

from .cluster import Cluster
from .host import Host
from .host_world import HostWorld
from .log import HostLog

LEASE_SECONDS = 15.0

Act = Callable[[Log, World, Callable[[], None]], object]
"""What an operator does, with a log, a world, and a function that checks the lease."""


class OperatorHost(Host):
    """Does one thing under the application's lease. `is_done`: it has come to its end."""

    def __init__(self, number: int, application: Application, log: HostLog, world: HostWorld, act: Act) -> None:
        super().__init__(number, application, {}, log, world)
        self._do = act
        self.is_done = False

    def __str__(self) -> str:
        return f"operator {self.number}"

    def run(self, names: Iterable[str]) -> None:
        """Do nothing: it runs no tasks."""

    def work(self) -> int:
        """Do what it is for, or fail."""
        try:
            lease = self.log.lease(self.application.id, str(self), int(LEASE_SECONDS * 1000))
        except LeaseTakenError:
            return 0
        try:
            self._do(self.log, self.world.world, lease.renew)
        except PenstockError as error:
            self.judge("of the operator", error)
        else:
            self.is_done = True
        lease.release()
        return 0

    @property
    def lost(self) -> set[str]:
        return set()

    def close(self, *, commit: bool) -> None:
        self.resources.close()


def operate(cluster: Cluster, act: Act) -> bool:
    """Let an operator do something; return whether it was done.

    The process may die in it, or lose the log or its disk. One that freezes is killed, before anything else starts.
    """
    host: OperatorHost = cluster.start_beside(0, OperatorHost, act)
    cluster.let(host, host.work)
    cluster.end(host)
    return host.is_done
