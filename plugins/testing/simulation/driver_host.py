"""DriverHost: the driver of a simulated application: it keeps the lease, and plans what each task reads in a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock import Application
from penstock.plugins.engine.program.preparation import Prepared
from penstock.plugins.engine.run.planning.control import Control, OwnOrders
from penstock.plugins.engine.run.planning.planner import BatchPlanner
from penstock.plugins.engine.run.planning.run_plan import Plan

from .host import Host, Planned
from .host_log import HostLog
from .host_world import HostWorld

_LEASE_MS = 15_000


class DriverHost(Host):
    """A driver with the lease of its application. `owners`: by task, the host that runs it, which gets its plans.

    Making one raises LogError while another one has the lease, and `work` FencedError after one has taken it.
    """

    def __init__(
        self,
        number: int,
        prepared: Prepared,
        application: Application,
        log: HostLog,
        world: HostWorld,
        owners: Callable[[], Mapping[str, Host]],
    ) -> None:
        super().__init__(number, application, log, world)
        self._owners = owners
        self._lease = log.lease(application.id, str(self), _LEASE_MS)
        self._control, self._orders = OwnOrders(), Control()
        plan = Plan.of(prepared, len(prepared.tasks()), str(self))
        self._planner = BatchPlanner(plan, log, world, world.world.sleep, world.world.seconds, self._control)
        self._offset = self._planner.first()

    def __str__(self) -> str:
        return f"driver {self.number}"

    def work(self) -> int:
        """Renew the lease, and plan one batch, if there is one."""
        self._lease.renew()
        owners = dict(self._owners())
        ticks = {task: host.ticks[task] for task, host in owners.items() if task in host.opened}
        orders = Control(
            unopened=[task for task, host in owners.items() if task not in host.opened],
            next_tick=min(ticks.values(), default=None),
        )
        if orders != self._orders:
            self._orders = orders
            self._control.write(orders)
        following = self._planner.next(self._offset, None)
        if following != self._offset:
            self._offset = following
            for plan in self._planner.plans(following):
                for task, ends in plan.ends.items():
                    owners[task].planned[task] = Planned(ends, plan.clock_ms, plan.front_of(task))
            of_all = self._planner.plans(following)[0]
            for task in [each for each, tick in ticks.items() if tick <= of_all.clock_ms]:
                owners[task].planned.setdefault(task, Planned({}, of_all.clock_ms, of_all.front_of(task)))
        return 0

    def close(self, *, commit: bool) -> None:
        """Give up the lease, where it ends as it should; a driver that dies keeps it until it expires."""
        if commit:
            self._lease.release()
        super().close(commit=commit)
