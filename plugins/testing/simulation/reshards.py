"""ReshardSimulation: a history in which the application gets other numbers of partitions, with its state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from penstock.plugins.engine.program.stored_id import read_stored
from penstock.plugins.engine.task import notes
from penstock.plugins.state.transfer.reshard import accept, plan_reshard, reshard, undo

from .history import Fault, History, Step
from .host import with_state_in
from .simulation import Simulation, is_on_disk
from .tool_host import ToolHost

RESHARD = "reshard"
_LEASE_MS = 15_000
_MOST_TRIES = 6
_LOOK_SECONDS = 0.5
_FAULTS = 0.8
"""In how many tries but the last faults strike the process."""
_MOST_FAULTS = 3
"""The most that wait for it: a delay, and some others, do not end it."""
_FROZEN = 0.2
"""In how many of these it is frozen before it writes where the application is stored."""


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
        return f"process {self.number}, {self._what}"

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
        prepared = self._prepared(self._made)
        self.application = prepared.application
        self._cluster.known = {}  # frozen hosts have the commits of the layout before
        self._cluster.restart(prepared)

    def _change(self, host: ToolHost, what: str, partitions: int) -> str:
        application = with_state_in(self._made, Path(host.application.settings.state_dir))
        lease = host.log.lease(application.id, str(host), _LEASE_MS)
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
            self._timeline.pass_by(_LEASE_MS / 1000 + 1)  # the lease of a process that died
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
            elif random.random() < _FAULTS:
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
