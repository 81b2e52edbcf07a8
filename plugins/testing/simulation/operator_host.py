"""OperatorHost: a process that an operator starts while a simulated application is stopped, such as a reset."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock import Application, LeaseTakenError, Log, PenstockError, World

from .cluster import Cluster
from .history import Step
from .host import Host
from .host_log import HostLog
from .host_world import HostWorld

LEASE_SECONDS = 15.0

Act = Callable[[Log, World, Callable[[], None]], object]
"""What an operator does, with a log, a world, and a function that checks the lease."""


class OperatorHost(Host):
    """Does one thing under the application's lease. `is_done`: it has come to its end.

    `between` is called before each check of the lease, which comes before each part of the work.
    """

    def __init__(
        self, number: int, application: Application, log: HostLog, world: HostWorld, act: Act,
        between: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(number, application, log, world)
        self._do, self._between = act, between
        self.is_done = False

    def __str__(self) -> str:
        return f"operator {self.number}"

    def work(self) -> int:
        """Do what it is for, or fail."""
        try:
            lease = self.log.lease(self.application.id, str(self), int(LEASE_SECONDS * 1000))
        except LeaseTakenError:
            return 0

        def check_lease() -> None:
            self._between()
            lease.renew()

        try:
            self._do(self.log, self.world.world, check_lease)
        except PenstockError as error:
            self.judge("of the operator", error)
        else:
            self.is_done = True
        lease.release()
        return 0


def operate(cluster: Cluster, act: Act, step: Step) -> bool:
    """Let an operator do something; return whether it was done.

    The process may die in it, or lose the log or its disk. One that freezes is killed, before anything else starts. In
    half of these steps, hosts that are frozen wake in the middle of it.
    """
    random = Random(step.amount)

    def wake_one() -> None:
        frozen = cluster.frozen()
        if step.host % 2 and frozen and random.randrange(2):
            cluster.wake(random.choice(frozen))

    host: OperatorHost = cluster.start_beside(0, OperatorHost, act, wake_one)
    cluster.let(host, host.work)
    cluster.end(host)
    return host.is_done
