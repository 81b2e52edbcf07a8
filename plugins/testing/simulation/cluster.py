"""Cluster: the machines and hosts of a simulation, and which host each task was given to last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from penstock import Application, LogError, TopicPartition

from .disk import Disk
from .failure import HostDied, SimulatedOutage, SimulationFailure
from .host import BatchHost, ContinuousHost, Host, bury
from .host_files import HostFiles
from .host_world import HostWorld
from .log import HostLog, SimulatedLog
from .timeline import Timeline

_CLOCKS_AHEAD_MS = (0, 0, 5_000, -5_000)


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
        random: Random,
        edge: Callable[[Host, str, Callable[[], Any], bool], Any],
        disk_edge: Callable[[Host, str, Callable[[], Any], bool, bool], Any],
        *,
        mode: str,
        machines: int,
        directory: Path,
    ) -> None:
        self._application = application
        self._tasks = tasks
        self._log = log
        self._timeline = timeline
        self._random = random
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

    @property
    def machines(self) -> int:
        """The number of machines."""
        return len(self._machines)

    @property
    def is_complete(self) -> bool:
        """Whether as many hosts live as there are machines."""
        return len(self.live()) >= self.machines

    def _new_disk(self) -> Path:
        self._disks += 1
        return self._directory / f"disk-{self._disks}"

    # ------------------------------------------------------------------ hosts

    def begin(self) -> None:
        """Start a host on each machine, and give them the tasks by turns."""
        hosts = [self.start(machine) for machine in range(len(self._machines))]
        for number, task in enumerate(self._tasks):
            self.give(task, hosts[number % len(hosts)])

    def start(self, machine: int, ahead_ms: int = 0) -> Host:
        """Start a host on a machine; its clock is ahead of the others'."""
        number = self._started = self._started + 1
        files = HostFiles(self._disk, machine, lambda *operation: self._disk_edge(host, *operation))
        world = HostWorld(self._timeline, files, machine)
        world.ahead_ms = ahead_ms
        application = self._application.with_settings(state_dir=str(self._machines[machine]))
        log = HostLog(self._log, lambda what, call, changes: self._edge(host, what, call, changes))
        host = self._kind(number, application, self._tasks, log, world)
        self.hosts.append(host)
        clock = f", with its clock {ahead_ms} ms ahead" if ahead_ms else ""
        self._timeline.tell(f"{host} starts on machine {machine + 1}{clock}")
        return host

    def start_anywhere(self) -> None:
        """Start a host on any machine, perhaps with an empty disk, or beside a host that is frozen there."""
        machine = self._random.randrange(len(self._machines))
        if self._random.randrange(4) == 3:
            self._machines[machine] = self._new_disk()
            self._timeline.tell(f"machine {machine + 1} gets a new, empty disk")
        self.start(machine, self._random.choice(_CLOCKS_AHEAD_MS))
        self.give_orphans()

    def complete(self) -> None:
        """Start hosts until as many live as there are machines; give each task to one of them, and to no other."""
        while not self.is_complete:
            self.start(len(self.live()))
        self.give_orphans()
        for host in self.live():
            host.keep([task for task, owner in self.owners.items() if owner is host])

    def end(self, host: Host) -> None:
        """Take a host that has died out of the cluster."""
        bury(host)
        if host in self.hosts:
            self.hosts.remove(host)

    def power_off(self, machine: int) -> None:
        """Let a machine go down: all its hosts die, and what they have not synced to the shared disk is lost."""
        self._timeline.tell(f"machine {machine + 1} goes down")
        self._disk.lose(machine)
        for host in [each for each in self.hosts if each.machine == machine]:
            self.end(host)

    def power_off_any(self) -> None:
        """Let any machine go down, or all of them; three of four calls do nothing."""
        if self._random.randrange(4) == 3:
            down = self._random.randrange(self.machines + 1)
            for machine in range(self.machines) if down == self.machines else [down]:
                self.power_off(machine)

    # ------------------------------------------------------------------ tasks

    def give(self, task: str, host: Host) -> None:
        """Give a task to a host; a host that had it is not told."""
        self.owners[task] = host
        self._timeline.tell(f"task {task} is given to {host}")
        self.let(host, lambda: host.run([task]))

    def give_any(self) -> None:
        """Give any task to any host that lives."""
        task = self._random.choice(list(self._tasks))
        self.give(task, self._random.choice(self.live()))

    def give_orphans(self) -> None:
        """Give tasks whose host has died, does not answer or has lost them, to hosts that live."""
        for task in self._tasks:
            live, owner = self.live(), self.owners[task]
            if live and (owner not in live or task in owner.lost):
                self.give(task, self._random.choice(live))

    # ------------------------------------------------------------------ work

    def let(self, host: Host, act: Callable[[], object]) -> None:
        """Let a host do something. It may die in it, or its run may end with an error of the log.

        Raises SimulationFailure for an error that no fault explains.
        """
        try:
            done = act()
            if isinstance(done, int) and done:
                self._timeline.tell(f"{host} processes {done} records")
        except HostDied:
            self.end(host)
        except LogError as error:
            if not isinstance(error.__cause__, SimulatedOutage):
                raise
            self._timeline.tell(f"the run of {host} ends: {error}")
            self.end(host)
        if host.failures:
            raise SimulationFailure(host.failures[0], self._timeline.story)

    def run_call(self, host: Host) -> None:
        """Let one of a host's threads do what it was given, any of those that wait."""
        self.let(host, lambda: host.world.run(self._random.randrange(len(host.world.calls))))

    def tick(self) -> None:
        """Let the tickers of the hosts that live tick."""
        for host in self.live():
            host.world.tick()
