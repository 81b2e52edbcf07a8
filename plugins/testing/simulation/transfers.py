"""BackupSimulation and ReshardSimulation: histories with backups, and with other numbers of partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from penstock import Application, IncompatibleStateError, Record, RecordBatch, TopicPartition
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.stored_id import read_stored, renamed
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.state.transfer.backups import (
    Backup,
    Catalog,
    back_up,
    plan_restore,
    prune,
    restore_backup,
    verify_backup,
)
from penstock.plugins.state.transfer.reshard import accept, plan_reshard, reshard, undo

from ..topics import TopicReader
from .history import Fault, History, Step
from .host import LEASE_SECONDS, ToolHost, with_state_in
from .host_world import HostWorld
from .log import TRANSACTION_SECONDS, HostLog, SimulatedLog
from .simulation import Simulation, is_on_disk

BACK_UP, PRUNE = "backup", "prune"
_SHARE, _PRUNES = 0.5, 0.05
"""Share of a history's steps that a backup, or a prune, follows."""
_FAULTS = {BACK_UP: 0.08, PRUNE: 0.6}
"""Share of these steps in which a fault strikes the process: a prune is one step, and a backup takes many."""
_PASSES = (0.02, 0.1, 0.3)
"""Seconds that pass while a backup rests."""
_PATIENCE_SECONDS = 20.0
_MOST_RESTORED = 2
"""The most backups of a history that are restored; all are read."""
RESHARD = "reshard"
_MOST_TRIES = 6
_LOOK_SECONDS = 0.5
_FAULTY_TRIES = 0.8
"""Number of tries, except the last, in which faults strike the process."""
_MOST_FAULTS = 3
"""The most that wait for it: a delay, and some others, do not end it."""
_FROZEN = 0.2
"""Share of these in which it is frozen before it switches the application to the new layout."""


def with_backups(history: History, random: Random) -> History:
    """Return a history with steps of backups and prunes between its own. The same choices make the same history."""
    steps: list[Step] = []
    for step in history.steps:
        steps.append(step)
        drawn = random.random()
        if drawn < _SHARE:
            kind = PRUNE if drawn < _PRUNES else BACK_UP
            fault = Fault.of_process(random, on_disk=True, step=kind) if random.random() < _FAULTS[kind] else None
            steps.append(Step(kind, random.randrange(8), random.randrange(64), fault))
    return replace(history, steps=tuple(steps))


class BackupSimulation(Simulation):
    """A history with steps that make backups, and delete old ones. Processes that make them die, freeze and wake, too.

    At the end each backup that is listed has to be whole. Of some, the application is restored under another id, and
    processes everything: its answers follow those that the first one had given up to the backup.
    """

    _may_be_moved = False

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        sizes = Random(self._history.dice + 1)
        self._place = f"/backups?chunk_bytes=64&snapshot_floor_bytes={sizes.choice((1, 400, 100_000))}"
        self._steps = {**self._steps, BACK_UP: self._back_up, PRUNE: self._prune}
        self._started = 0
        self.made: list[str] = []
        """The names of the backups that were made."""
        self.failed: list[str] = []
        """What the others ended with."""
        self.restored: dict[str, Mapping[str, list[Record]]] = {}
        """By backup: the answers of both, by topic."""
        self._own: Mapping[str, Mapping[str, list[Record]]] = {}

    # ------------------------------------------------------------------ steps

    def _back_up(self, step: Step) -> None:
        """Begin a backup, or continue the running one; hosts work meanwhile."""
        resting = [each for each in self._cluster.tools if each.rests]
        if resting:
            self._timeline.pass_by(_PASSES[step.amount % len(_PASSES)])
            for host in self._cluster.live():
                self._cluster.work(host)
                while step.amount % 3 and host.world.calls and not host.is_frozen:
                    self._cluster.run_call(host, 0)
            if step.amount % 4 == 0:
                self._write_markers()  # as mostly at once, on a real log
            self._go_on(resting[0], step)
        elif step.amount % 2:
            self._start_tool(step, BACK_UP, self._made_backup)

    def _prune(self, step: Step) -> None:
        keep = 1 + step.amount % 3

        def act(tool: ToolHost) -> str:
            prune(Catalog(self._place, self._made.id, tool.own_world), keep)
            return ""

        self._start_tool(step, PRUNE, act)

    def _made_backup(self, tool: ToolHost) -> str:
        patience, world = _PATIENCE_SECONDS, tool.own_world
        written = back_up(
            tool.application, tool.log, self._place, named=self._made.id, patience_seconds=patience, world=world
        )
        return written.backup.name

    def _start_tool(self, step: Step, what: str, act: Callable[[ToolHost], str]) -> None:
        self._started += 1
        random, machine = Random(self._history.dice + self._started), step.host % self._cluster.machines
        self._go_on(self._cluster.start_tool(machine, ToolHost, random, f"{what} process", act), step)

    def _damage(self, step: Step) -> None:
        super()._damage(step)
        for path, how in list(self._disk.damaged.items()):
            if "/backups/pruning" in path:
                del self._disk.damaged[path]  # a backup would not know what is being deleted
            elif how == "is missing" and path.endswith((".json", ".claim")):
                # An entry does not come back: a prune would not know of it, and delete the files of its backup.
                self._disk.damaged[path] = "is cut off"

    def _go_on(self, tool: ToolHost, step: Step) -> None:
        if step.fault is not None:
            self._faults.arm(tool, step.fault)
        if tool.is_frozen:
            self._cluster.wake(tool)
        else:
            self._cluster.let(tool, tool.work)
        for tool in [each for each in self._cluster.tools if each.is_done]:
            if tool.error is not None:
                self.failed.append(f"{type(tool.error).__name__}: {tool.error}")
                self._timeline.tell(f"{tool} fails: {self.failed[-1]}")
            elif tool.made:
                self.made.append(tool.made)
                self._timeline.tell(f"{tool} has made {tool.made}")
            self._cluster.end(tool)

    # ------------------------------------------------------------------ what has to be true

    def settle(self) -> None:
        """Let everything be processed; a backup that is under way is killed."""
        for tool in list(self._cluster.tools):
            self._timeline.tell(f"{tool} is killed")
            self._cluster.end(tool)
        super().settle()

    def check_state(self) -> None:
        """Check the stores as `Simulation`, then the backups. Raises SimulationFailure."""
        super().check_state()
        catalog = Catalog(self._place, self._made.id, self._outside.world)
        names = catalog.names()
        if self.made and max(names, default="") < max(self.made):
            raise self.failure(f"backup {max(self.made)} is gone, which was the last one")
        self._timeline.pass_by(TRANSACTION_SECONDS)  # what killed hosts have sent is given up
        self._own = super().answers()
        for number, name in enumerate(reversed(names)):
            self._check_backup(catalog.read(name), is_restored=number < _MOST_RESTORED)

    def _check_backup(self, backup: Backup, *, is_restored: bool) -> None:
        copy = with_state_in(renamed(self._made, f"copy-{backup.name}"), self._directory / f"copy-{backup.name}")
        world = self._outside.world
        try:
            plan = plan_restore(copy, self._log, self._place, name=backup.name, of=self._made.id, world=world)
        except IncompatibleStateError as error:
            if "and the backup continues at" not in str(error):
                raise
            self._timeline.tell(f"backup {backup.name} cannot be restored, because records are deleted")
            return
        verify_backup(plan)
        if is_restored:
            restore_backup(copy, self._log, plan, world=world)
            begun = self._log.end_offsets(list(backup.outputs))
            run_to_end(copy, self._log, self._outside)
            between = {each: (at, begun[each]) for each, at in backup.outputs.items()}
            reader = TopicReader(self.application, _WithoutBetween(self._log, between))
            written = [
                TopicPartition(topic, number)
                for topic in self._own[""]
                for number in range(self._log.topic(topic).partitions)
            ]
            if backup.outputs.keys() >= set(written):
                found = {topic: list(reader.unread(topic)) for topic in self._own[""]}
                self.restored[backup.name] = found

    def answers(self) -> Mapping[str, Mapping[str, list[Record]]]:
        """Return the answers of the application, and those together with those of each restored one."""
        found = {f"restored from {name}: ": answers for name, answers in self.restored.items() if answers}
        return {**self._own, **found}


class _WithoutBetween(HostLog):
    """A log without the records of some partitions from one offset to another."""

    def __init__(self, shared: SimulatedLog, between: Mapping[TopicPartition, tuple[int, int]]) -> None:
        super().__init__(shared, lambda what, call, changes: call())
        self._between = between

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        first, last = self._between.get(partition, (0, 0))
        return [] if first <= offset < last else super().fetch(partition, offset, end, max_bytes)


def run_to_end(application: Application, log: SimulatedLog, outside: HostWorld) -> None:
    """Let an application process everything that is there, without faults."""
    prepared = prepare(application, log)
    with ExitStack() as stack:
        resources = stack.enter_context(closing(ProcessResources(outside.world)))
        workers = [
            stack.enter_context(closing(TaskWorker(prepared.application, task, inputs, log, resources=resources)))
            for task, inputs in prepared.assignment.tasks.items()
        ]
        before: Mapping[TopicPartition, int] | None = None
        while True:
            positions: dict[TopicPartition, int] = {}
            log.write_markers()
            for worker in workers:
                ends = log.end_offsets(worker.partitions)
                positions |= worker.run_batch(ends, outside.now_ms()).positions
            prepared.committed.add(positions)
            if positions == before:
                return
            before = positions


def with_reshards(history: History, random: Random, numbers: tuple[int, ...]) -> History:
    """Return a history with a step for each of the numbers of partitions that the application gets."""
    steps = list(history.steps)
    places = sorted(random.randrange(len(steps) + 1) for _ in numbers)
    for at, number in reversed(list(zip(places, numbers, strict=True))):
        steps.insert(at, Step(RESHARD, number, random.randrange(1 << 16)))
    return replace(history, steps=tuple(steps))


class ReshardHost(ToolHost):
    """Reshards an application, which stands still, to the partitions that its topics have; or takes that back."""

    def __str__(self) -> str:
        return f"process {self.number}, {self.kind}"

    def _rest(self, seconds: float) -> None:
        """Let time pass, more of it than was asked for: the application stands still, and there are fewer looks."""
        self.world.world.sleep(max(seconds, _LOOK_SECONDS))

    def _let_others_act(self) -> None:
        """Do nothing, for the same reason."""


class ReshardSimulation(Simulation):
    """A history with steps in which the application is stopped, its topics grow, and it is resharded.

    The process that does it dies, freezes and loses the log; it is repeated until it is done. Frozen hosts, and frozen
    processes of that kind, wake later. Sometimes the new layout is taken back before it has run, and made again.
    """

    _may_be_moved = False

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._steps = {**self._steps, RESHARD: self._reshard}
        self.failed: list[str] = []
        """What tries ended with that did not do it."""
        self.reshards = 0
        """How often the application got another number of partitions."""

    def _reshard(self, step: Step) -> None:
        """Stop the application, let its topics grow to as many partitions as the step says, and start it again."""
        if step.host <= self._partitions:
            return  # a history that is made shorter has such steps
        random = Random(step.amount)
        self._timeline.tell(f"the application is stopped, and its topics get {step.host} partitions")
        self._cluster.stop()
        for topic in self._source_topics():
            self._log.grow(topic, step.host)
        self._partitions = step.host
        if read_stored(self._made.id, self._log).before:
            self._try(random, "accept", step.host)
        self._try(random, RESHARD, step.host)
        if not random.randrange(4):
            self._try(random, "undo", step.host)
            self._try(random, RESHARD, step.host)
        if random.randrange(2):
            self._try(random, "accept", step.host)
        self.reshards += 1
        self._cluster.known = {}  # frozen hosts have the commits of the layout before
        self._restart()

    def _change(self, host: ToolHost, what: str, partitions: int) -> str:
        application = with_state_in(self._made, Path(host.application.settings.state_dir))
        lease = host.log.lease(application.id, str(host), int(LEASE_SECONDS * 1000))
        if what == RESHARD:
            reshard(plan_reshard(application, host.log, partitions), host.log, lease, world=host.own_world)
        else:
            {"undo": undo, "accept": accept}[what](application, host.log, lease, world=host.own_world)
        lease.release()
        return ""

    def _source_topics(self) -> list[str]:
        read = self.application.program.topics()
        return [topic for topic in self._topics if topic in read]

    def _faults_of_process(self, random: Random) -> list[Fault]:
        if random.random() < _FROZEN:
            return [Fault("freezes", "notes the stored")]
        on_disk = is_on_disk(self._settings)
        return [Fault.of_process(random, on_disk=on_disk) for _ in range(1 + random.randrange(_MOST_FAULTS))]

    def _try(self, random: Random, what: str, partitions: int) -> None:
        """Let processes do it, one after the other, until one has."""
        before = read_stored(self._made.id, self._log)
        for number in range(_MOST_TRIES):
            self._timeline.pass_by(LEASE_SECONDS + 1)  # the lease of a process that died
            if notes.RESHARDING.read(self._made.id, self._log).get("before") == before.id:
                self._arrive(random.randrange(3))  # the ends are noted, so writers may write again
            tool = self._cluster.start_tool(
                random.randrange(self._cluster.machines),
                ReshardHost,
                Random(random.random()),
                what,
                lambda host: self._change(host, what, partitions),
            )
            if number == _MOST_TRIES - 1:
                self._faults.disarm()
                self._disk.damaged.clear()
            elif random.random() < _FAULTY_TRIES:
                for fault in self._faults_of_process(random):
                    self._faults.arm(tool, fault)
            self._cluster.let(tool, tool.work)
            if tool.is_done:
                self._cluster.end(tool)
            if tool.error is not None:
                self.failed.append(f"{what}: {type(tool.error).__name__}: {tool.error}")
                self._timeline.tell(f"{tool} fails: {tool.error}")
            if read_stored(self._made.id, self._log) != before:
                return
        raise self.failure(f"{what}: not done in {_MOST_TRIES} tries, the last one without a fault: {self.failed[-1:]}")
