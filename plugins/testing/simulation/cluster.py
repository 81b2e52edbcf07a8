"""Cluster: the machines and hosts of a simulation, and which host each task was given to last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock import Application, LogError, TopicPartition

from .disk import Disk
from .failure import HostDied, SimulatedOutage, SimulationFailure
from .host import BatchHost, ContinuousHost, Host, with_state_in
from .host_files import HostFiles
from .host_world import HostWorld
from .local_state import LocalState
from .log import HostLog, SimulatedLog
from .timeline import Timeline

_MOST_STRETCHES = 50
"""Stretches of work after which a host rests in any case."""


class Cluster:
    """Hosts run on `machines` machines, each with a disk of its own, and several may run on one. `disk` is shared.

    A driver would give each task to one host. Here a task may be given to another host while the one that had it still
    runs and knows nothing of it. `edge` and `disk_edge` are called for each operation of a host on the log and on the
    shared disk.
    """

    def __init__(
        self,
        application: Application,
        tasks: Mapping[str, tuple[TopicPartition, ...]],
        log: SimulatedLog,
        disk: Disk,
        timeline: Timeline,
        edge: Callable[[Host, str, Callable[[], Any], bool], Any],
        disk_edge: Callable[[Host, str, Callable[[], Any], bool, bool], Any],
        *,
        mode: str,
        machines: int,
        directory: Path,
    ) -> None:
        self.tasks = tasks
        self.application = application
        self._log = log
        self._timeline = timeline
        self._edge = edge
        self._disk = disk
        self._disk_edge = disk_edge
        self._kind = ContinuousHost if mode == "continuous" else BatchHost
        self._directory = directory
        self._disks = 0
        self._machines = [self._new_disk() for _ in range(machines)]
        self._started = 0
        self.hosts: list[Host] = []
        """Those that have not died; some may be frozen."""
        self.owners: dict[str, Host] = {}
        """By task, the host that it was given to last, which may have died."""

    def live(self) -> list[Host]:
        """Return the hosts that have not died and are not frozen."""
        return [host for host in self.hosts if not host.is_frozen and not host.is_dead]

    def of_this_program(self) -> list[Host]:
        """Return the hosts that live and run the program that was deployed last."""
        return [host for host in self.live() if not host.is_of_earlier_program]

    def frozen(self) -> list[Host]:
        """Return the hosts that are frozen."""
        return [host for host in self.hosts if host.is_frozen]

    @property
    def machines(self) -> int:
        """How many machines there are."""
        return len(self._machines)

    @property
    def is_complete(self) -> bool:
        """Whether as many hosts of this program live as there are machines."""
        return len(self.of_this_program()) >= self.machines

    def _new_disk(self) -> LocalState:
        self._disks += 1
        return LocalState(self._directory / f"disk-{self._disks}")

    # ------------------------------------------------------------------ hosts

    def begin(self) -> None:
        """Start a host on each machine, and give them the tasks by turns."""
        hosts = [self.start(machine) for machine in range(self.machines)]
        for number, task in enumerate(self.tasks):
            self.give(task, hosts[number % len(hosts)])

    def start(self, machine: int) -> Host:
        """Start a host on a machine, perhaps beside a host that is frozen there."""
        number = self._started = self._started + 1
        application = with_state_in(self.application, self._machines[machine].directory)
        log = HostLog(self._log, lambda what, call, changes: self._edge(host, what, call, changes))
        files = HostFiles(self._disk, machine, lambda *operation: self._disk_edge(host, *operation))
        host = self._kind(number, application, self.tasks, log, HostWorld(self._timeline, files, machine))
        self.hosts.append(host)
        self._timeline.tell(f"{host} starts on machine {machine + 1}")
        return host

    def replace_disk(self, machine: int) -> None:
        """Give a machine a new, empty disk, on which the hosts run that start from now on."""
        self._machines[machine] = self._new_disk()
        self._timeline.tell(f"machine {machine + 1} gets a new, empty disk")

    def deploy(self, application: Application, tasks: Mapping[str, tuple[TopicPartition, ...]]) -> None:
        """End the hosts that live, with their last commits, and start others, which run another program.

        A host that is frozen wakes later, with the program and the tasks that it had.
        """
        for host in self.live():
            self.let(host, lambda host=host: host.close(commit=True))  # type: ignore[misc]
            self.end(host)
        for host in self.hosts:
            host.is_of_earlier_program = True
        self.application, self.tasks = application, tasks
        self.begin()

    def complete(self) -> None:
        """Start hosts until as many live as there are machines; give each task to one of them, and to no other."""
        while not self.is_complete:
            self.start(len(self.of_this_program()))
        self.give_orphans()
        for host in self.live():
            host.keep([task for task, owner in self.owners.items() if owner is host])

    def end(self, host: Host) -> None:
        """Take a host that has died out of the cluster."""
        host.bury()
        if host in self.hosts:
            self.hosts.remove(host)

    def power_off(self, machine: int) -> None:
        """Let a machine go down: all its hosts die, and what they have not synced to the shared disk is lost."""
        self._timeline.tell(f"machine {machine + 1} goes down")
        self._disk.lose(machine)
        for host in [each for each in self.hosts if each.machine == machine]:
            self.end(host)
        self._machines[machine].lose(self._disk.random)

    # ------------------------------------------------------------------ tasks

    def give(self, task: str, host: Host) -> None:
        """Give a task to a host; a host that had it is not told."""
        self.owners[task] = host
        self._timeline.tell(f"task {task} is given to {host}")
        self.let(host, lambda: host.run([task]))

    def give_orphans(self) -> None:
        """Give tasks whose host has died, does not answer or has lost them, to hosts that live, by turns."""
        for number, task in enumerate(self.tasks):
            live, owner = self.of_this_program(), self.owners[task]
            if live and (owner not in live or task in owner.lost):
                self.give(task, live[number % len(live)])

    # ------------------------------------------------------------------ work

    def let(self, host: Host, act: Callable[[], object]) -> None:
        """Let a host do something. It may die or freeze in it, or its run may end with an error of the log.

        Raises SimulationFailure for an error that no fault explains.
        """
        host.let(lambda: self._act(host, act))
        self._judge(host)

    def wake(self, host: Host) -> None:
        """Let a frozen host go on in the middle of what it did."""
        self._timeline.tell(f"{host} wakes")
        host.wake()
        self._judge(host)

    def _act(self, host: Host, act: Callable[[], object]) -> None:
        try:
            done = act()
            if isinstance(done, int) and done:
                self._timeline.tell(f"{host} processes {done} record{'s' if done > 1 else ''}")
        except HostDied:
            self.end(host)
        except LogError as error:
            if not isinstance(error.__cause__, SimulatedOutage):
                raise
            self._timeline.tell(f"the run of {host} ends: {error}")
            self.end(host)
        self._machines[host.machine].note()

    def _judge(self, host: Host) -> None:
        if host.failures:
            raise SimulationFailure(host.failures[0], self._timeline.story, self._timeline.events)

    def work(self, host: Host) -> None:
        """Let a host do a stretch of work."""
        self.let(host, host.work)

    def run_call(self, host: Host, number: int) -> None:
        """Let one of a host's threads do what it was given: one of the calls that wait."""
        self.let(host, lambda: host.world.run(number))

    def work_on(self, host: Host) -> None:
        """Let a host and its threads work until they have nothing to do."""

        def work_on() -> int:
            total = idle = 0
            for _ in range(_MOST_STRETCHES):
                done, calls = host.work(), len(host.world.calls)
                while host.world.calls:
                    host.world.run(0)
                total += done
                idle = 0 if done or calls else idle + 1
                if idle > len(self.tasks):  # in batches, each stretch of work is that of one task
                    break
            return total

        self.let(host, work_on)

    def work_beside(self, host: Host, rounds: int) -> None:
        """Let a host work, in the middle of an act of one of its other threads."""
        for _ in range(rounds):
            self._timeline.pass_by(0.05)
            while host.world.calls and not host.is_dead:
                self._act(host, lambda: host.world.run(0))
            if not host.is_dead:
                self._act(host, host.work)

    def tick(self) -> None:
        """Let the tickers of the hosts that live tick."""
        for host in self.live():
            host.world.tick()
