"""Cluster: the machines and hosts of a simulation, which host each task was given to last, and copies of its stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from penstock import Application, Commit, FencedError, LogError, TaskId, TopicPartition, is_version, version_counter
from penstock.plugins.engine.program.preparation import Prepared
from penstock.plugins.state.copies import Replica

from .disk import Disk, HostFiles, LocalState
from .faults import Faults
from .host import BatchHost, ContinuousHost, DriverHost, Host, ReplicaHost, StandbyHost, ToolHost, with_state_in
from .host_world import HostDied, HostWorld, SimulatedOutage, Timeline
from .log import HostLog, SimulatedLog

T = TypeVar("T", bound=Host)
_MOST_BATCHES = 8
"""Batches that a driver plans, one after the other, in which a host works on."""
_MOST_STRETCHES = 50
"""Stretches of work after which a host rests in any case."""


class Cluster:
    """Hosts run on `machines` machines, each with a disk of its own, and several may run on one. `disk` is shared.

    A driver would give each task to one host. Here a task may be given to another host while the one that had it still
    runs and knows nothing of it. `faults` strike at the operations of hosts on log, shared disk and local state.
    """

    def __init__(
        self,
        prepared: Prepared,
        log: SimulatedLog,
        disk: Disk,
        timeline: Timeline,
        faults: Faults,
        *,
        mode: str,
        machines: int,
        directory: Path,
        has_replicas: bool,
        has_standbys: bool,
    ) -> None:
        self.prepared = prepared
        self.tasks: Mapping[str, tuple[TopicPartition, ...]] = prepared.tasks()
        self.application = prepared.application
        self._log = log
        self._timeline = timeline
        self._disk = disk
        self._faults = faults
        faults.power_off, faults.work_beside = self.power_off, self.work_beside
        self._kind = ContinuousHost if mode == "continuous" else BatchHost
        self._directory = directory
        self.has_replicas = has_replicas
        self.has_standbys = has_standbys
        self._disks = 0
        self._machines = [self._new_disk() for _ in range(machines)]
        self._started = self._beside = 0
        self.hosts: list[Host] = []
        """Those that have not died; some may be frozen."""
        self.followers: list[ReplicaHost] = []
        self.standbys: list[StandbyHost] = []
        self.drivers: list[DriverHost] = []
        """Those of each kind that have not died; some may be frozen. There are drivers in batches only."""
        self.tools: list[ToolHost] = []
        """Processes beside the application that have neither died nor ended, such as backups; some may be frozen."""
        self.contents = Contents(log)
        self.owners: dict[str, Host] = {}
        """By task, the host that it was given to last, which may have died."""
        self.known: dict[str, Commit] = {}
        """By task, the last commit that hosts have reported to the driver."""

    def live(self) -> list[Host]:
        """Return the hosts that have not died and are not frozen."""
        return [host for host in self.hosts if host.can_act]

    def of_this_program(self) -> list[Host]:
        """Return the hosts that live and run the program that was deployed last."""
        return [host for host in self.live() if not host.is_of_earlier_program]

    def everyone(self) -> list[Host]:
        """Return the live hosts, including replicas and drivers."""
        return [process for process in self.processes() if process.can_act]

    def frozen(self) -> list[Host]:
        """Return the hosts that are frozen."""
        return [host for host in self.processes() if host.is_frozen]

    def processes(self) -> list[Host]:
        """Return all processes that have not died."""
        return [*self.hosts, *self.followers, *self.standbys, *self.drivers, *self.tools]

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
        self._started += 1
        host = self._start(machine, self._kind, self._started, self.tasks)
        host.known = self.known
        self.hosts.append(host)
        return host

    def _start(self, machine: int, kind: Callable[..., T], number: int, *given: object) -> T:
        application = with_state_in(self.application, self._machines[machine].directory)
        log = HostLog(self._log, lambda *operation: self._faults.edge(host, *operation))
        files = HostFiles(self._disk, machine, lambda *operation: self._faults.disk_edge(host, *operation))
        world = HostWorld(self._timeline, files, machine, lambda *write: self._faults.copy_edge(host, *write))
        host = kind(number, application, log, world, *given)
        self._timeline.tell(f"{host} starts on machine {machine + 1}")
        return host

    def follow(self, machine: int) -> None:
        """Let the host with replicas on a machine work; start it if there is none."""
        directory = self._machines[machine].replicas

        def check(host: Host, task: str, replica: Replica) -> None:
            self.contents.check(self.application, task, replica, str(host))

        self._let_one(machine, self.followers, lambda: self.start_beside(machine, ReplicaHost, directory, check))

    def stand_by(self, machine: int) -> None:
        """Let the host with standbys on a machine work; start it if there is none."""
        self._let_one(machine, self.standbys, lambda: self.start_beside(machine, StandbyHost))

    def _let_one(self, machine: int, group: list[T], start: Callable[[], T]) -> None:
        host = next((each for each in group if each.machine == machine), None)
        if host is None:
            group.append(host := start())
        if not host.is_frozen:
            self.let(host, host.work)

    def start_tool(self, machine: int, kind: Callable[..., ToolHost], *given: object) -> ToolHost:
        """Start a process beside the application on a machine; `given` describes its work."""
        self.tools.append(self.start_beside(machine, kind, *given))
        return self.tools[-1]

    def start_beside(self, machine: int, kind: Callable[..., T], *given: object) -> T:
        """Start a process that runs no tasks."""
        started = self._start(machine, kind, self._beside + 1, *given)
        self._beside += 1
        return started

    def drive(self) -> None:
        """Let the driver plan, in batches; start one where none of this program lives, once the lease is free."""
        if self._kind is not BatchHost:
            return
        last = self.drivers[-1] if self.drivers else None
        if last is None or last.is_frozen or last.is_of_earlier_program:
            machine = self._beside % self.machines
            try:
                self.drivers.append(self.start_beside(machine, DriverHost, self.prepared, lambda: self.owners))
            except LogError:  # another one has the lease
                return
        for driver in [each for each in self.drivers if not each.is_frozen]:
            self.let(driver, lambda driver=driver: self._plan(driver))  # type: ignore[misc]

    def _plan(self, driver: DriverHost) -> None:
        try:
            driver.work()
        except FencedError:
            self._timeline.tell(f"{driver} ends: another one has the lease")
            self.end(driver)

    def adopt(self, task: str, machine: int) -> None:
        """Let the replica of a task on a machine without any host be the local state of a host that starts there."""
        if any(each.machine == machine for each in (*self.hosts, *self.followers, *self.standbys)):
            return
        place = self._machines[machine]
        if (place.replicas / task).is_dir():
            place.adopt(task, self.application.id)
            self._timeline.tell(f"the replica of task {task} becomes its local state on machine {machine + 1}")
            self.give(task, self.start(machine))

    def replace_disk(self, machine: int) -> None:
        """Give a machine a new, empty disk, on which the hosts run that start from now on."""
        self._machines[machine] = self._new_disk()
        self._timeline.tell(f"machine {machine + 1} gets a new, empty disk")

    def stop(self) -> None:
        """End the hosts and drivers that live, with their last commits; the others are of an earlier program then."""
        drivers = [driver for driver in self.drivers if not driver.is_frozen]
        for host in (*self.live(), *drivers):
            self.let(host, lambda host=host: host.close(commit=True))  # type: ignore[misc]
            self.end(host)
        for host in (*self.hosts, *self.drivers):
            host.is_of_earlier_program = True

    def restart(self, prepared: Prepared) -> None:
        """Start hosts after `stop`, with any program."""
        self.prepared, self.application, self.tasks = prepared, prepared.application, prepared.tasks()
        self.begin()

    def complete(self) -> None:
        """Start hosts until as many live as there are machines; give each task to one of them, and to no other."""
        while not self.is_complete:
            self.start(len(self.of_this_program()))
        self.give_orphans()
        for host in self.live():
            host.keep([task for task, owner in self.owners.items() if owner is host])

    def kill(self, host: Host, *, is_event: bool = False) -> None:
        """Let a host die, wherever it is."""
        self._timeline.tell(f"{host} dies", is_event=is_event)
        self.end(host)

    def end(self, host: Host) -> None:
        """Take a host that has died out of the cluster."""
        host.bury()
        groups: tuple[list[Any], ...] = self.hosts, self.followers, self.standbys, self.drivers, self.tools
        for group in groups:
            if host in group:
                group.remove(host)

    def power_off(self, machine: int) -> None:
        """Let a machine go down: all its hosts die, and their unsynced writes to the shared disk are lost."""
        self._timeline.tell(f"machine {machine + 1} goes down")
        self._disk.lose(machine)
        for host in [process for process in self.processes() if process.machine == machine]:
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
        """Let a host act: it may die, freeze or lose the log. Raises SimulationFailure for an error without a fault."""
        host.let(lambda: self._act(host, act))
        self._judge(host)

    def wake(self, host: Host) -> None:
        """Let a frozen host continue its interrupted work."""
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
            if not (isinstance(error.__cause__, SimulatedOutage) or host.is_of_earlier_program):
                raise
            self._timeline.tell(f"the run of {host} ends: {error}")
            self.end(host)
        place = self._machines[host.machine]
        place.note()
        self._note_contents(place, str(host))
        for task, commit in () if host.is_of_earlier_program else host.reported.items():
            if task not in self.known or version_counter(self.known[task].version) < version_counter(commit.version):
                self.known[task] = commit
        host.reported.clear()

    def _note_contents(self, place: LocalState, where: str) -> None:
        if self.has_replicas or self.has_standbys:
            own = os.path.realpath(place.directory / self.application.id)
            for path, (version, tables) in place.contents().items():
                task = os.path.relpath(path, own).partition(os.sep)[0]
                if task in self.tasks and self._is_content_of(task, version):
                    self.contents.note(self.application, task, version, tables, f"the local state of {where}")

    def _is_content_of(self, task: str, version: str | None) -> bool:
        """Return whether a copy named after a version has that version's content exactly.

        With a changelog in topics, a host that wakes may restore later changes under an earlier version: harmless, as
        they are applied once more.
        """
        if self.application.settings.log_changelog is None:
            return True
        last = self._log.last_commit(self.application.id, task, self.tasks[task])
        return last is not None and last.version == version

    def _judge(self, host: Host) -> None:
        if self.contents.wrong:
            raise self._timeline.failure(self.contents.wrong[0])
        if host.failures:
            raise self._timeline.failure(host.failures[0])

    def work(self, host: Host) -> None:
        """Let a host do a stretch of work."""
        self.let(host, host.work)

    def run_call(self, host: Host, number: int) -> None:
        """Run one of the waiting calls of a host's threads."""
        self.let(host, lambda: host.world.run(number))

    def work_on(self, host: Host, late: str = "") -> None:
        """Let a host and its threads work until they have nothing to do. Calls of the pool `late` are run last."""
        self.drive()
        for _ in range(_MOST_BATCHES):
            if not host.can_act:
                break
            self.let(host, lambda: self._work_on(host, late))
            self.drive()
            if not host.has_plans:
                break

    def _work_on(self, host: Host, late: str) -> int:
        total = idle = 0
        for _ in range(_MOST_STRETCHES):
            done, calls = host.work(), host.world.run_all(but=late)
            total += done
            idle = 0 if done or calls else idle + 1
            if idle > len(self.tasks):  # in batches, each stretch of work is that of one task
                break
        host.world.run_first(late)
        return total

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
        for host in self.everyone():
            host.world.tick()


Tables = Mapping[str, Mapping[bytes, bytes]]


class Contents:
    """Compares copies of a task's stores at the same version, which is never made twice.

    Stores that free old rows on their own host are left out.
    """

    def __init__(self, log: SimulatedLog) -> None:
        self._log = log
        self._found: dict[tuple[str, str, str], tuple[str, Mapping[bytes, bytes]]] = {}
        self.wrong: list[str] = []
        """What is wrong of a replica."""

    def note(self, application: Application, task: str, version: str | None, tables: Tables, where: str) -> None:
        """Record a copy's rows by store at a version (None: it shows none), and compare them with earlier ones."""
        if version is None or not is_version(version):
            return
        logged = logged_stores(application, task).intersection(tables)
        for store in sorted(logged - freeing_stores(application, task)):
            first, rows = self._found.setdefault((task, version, store), (where, dict(tables[store])))
            if rows != tables[store]:
                self.wrong.append(
                    f"task {task}, store {store!r}, version {version}: {where} has {_shown_rows(tables[store])}, and "
                    f"{first} had {_shown_rows(rows)}"
                )

    def check(self, application: Application, task: str, replica: Replica, where: str) -> None:
        """Check that a replica shows a committed version with its content."""
        version = replica.version
        if version is not None and version not in self._log.versions:
            self.wrong.append(f"task {task}: {where} shows version {version}, which was not committed")
        if version is not None:
            tables = {store: dict(replica.backend(store).range(store)) for store in replica.layout}
            self.note(application, task, version, tables, where)


def _shown_rows(rows: Mapping[bytes, bytes]) -> str:
    return ", ".join(f"{key!r}: {value!r}" for key, value in sorted(rows.items())) or "nothing"


def logged_stores(application: Application, task: str) -> set[str]:
    """Return the stores of a task that its changelog has."""
    stores = application.program.subtopology(TaskId.parse(task).subtopology).stores
    return {store.name for store in stores if store.logged}


def freeing_stores(application: Application, task: str) -> set[str]:
    """Return the stores of a task that free old rows on their host only."""
    in_topics = application.settings.log_changelog is not None
    return {
        store.name
        for store in application.program.subtopology(TaskId.parse(task).subtopology).stores
        if store.traits.has_index or (not in_topics and "bucket_ms" in store.traits.fixed_options)
    }
