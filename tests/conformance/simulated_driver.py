"""Runs a case on two simulated hosts; at each input one of them may die, freeze, lose the log or lose its task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from random import Random
from typing import Any

from penstock.errors import PenstockError
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.testing.simulation import SimulatedCluster, SimulationFailure
from penstock.plugins.testing.simulation.host import with_state_in
from penstock.program.nodes import TaskId
from penstock.store import StateStore

from .backlog import KEEP_ATTRIBUTES
from .runner import Case, application_of, headers_of, output_of, records

_MACHINES = (1, 2)
"""A driver is on the first one."""
_MOST_ROUNDS = 50
"""Rounds of work after an input; an input that is not processed then never is."""
_FAULTS = ("die now", "die", "freeze", "lose the log", "lose a task", "lose power", "", "")
"""What may strike at an input; "": nothing does."""


def survives(case: Case, mode: str) -> bool:
    """Return whether the answers of a case do not depend on what a fault changes.

    They do where a processor counts in an attribute, and where records are processed before a global store has what
    was there before them. In batches a task waits for records, so a wall clock does not stand still.
    """
    if case["topology"] in KEEP_ATTRIBUTES or application_of(case).program.global_stores:
        return False
    return mode == "continuous" or not case.get("config", {}).get("outer_join_emit_interval_ms")


class _Cluster(SimulatedCluster):
    def heal(self) -> None:
        """Let no fault strike any more; start hosts, and give them the tasks that have none."""
        self._faults.disarm()
        self._cluster.complete()

    @property
    def state_of_rest(self) -> object:
        """Everything that changes as long as the application gets on."""
        return self._checks.progress()

    @property
    def is_all_read(self) -> bool:
        """Whether every record is processed and committed."""
        return not self._checks.unread()

    @property
    def frozen(self) -> list[int]:
        """The hosts that are frozen."""
        return [host.number for host in self._cluster.frozen()]

    def open_workers(self, stack: ExitStack) -> Iterator[tuple[TaskWorker, ProcessResources]]:
        """Open every task with what its changelog has, in no host."""
        application = with_state_in(self.application, self._directory / "fresh")
        resources = stack.enter_context(closing(ProcessResources(self._outside.world)))
        for task, partitions in self._cluster.tasks.items():
            worker = TaskWorker(application, TaskId.parse(task), partitions, self._log, resources=resources)
            stack.enter_context(closing(worker))
            worker.run_batch({}, self._timeline.now_ms())
            yield worker, resources


class SimulatedDriver:
    """The faults are those of a seed. Time stands still between inputs that advance it.

    Every input is committed before the next one arrives, whatever strikes, so the answers are those of the case.
    """

    notes_side_effects = False

    def __init__(self, case: Case, seed: int, mode: str) -> None:
        self._case = case
        self._random = Random(f"{case['name']} {seed}")
        outputs = {output["topic"] for output in case["expected"]["outputs"]}
        read = {op["topic"] for op in records(case)}
        # A driver would have a successor only once its lease has expired, and time stands still.
        self._machines = _MACHINES if mode == "continuous" else _MACHINES[1:]
        self._stack = ExitStack()
        self._cluster = self._stack.enter_context(
            _Cluster(
                application_of(case), mode=mode, hosts=len(_MACHINES), partitions=1, store_backend="memory",
                topics={topic: {} for topic in sorted(outputs | read)},
                initial_wall_clock_ms=case.get("config", {}).get("initial_wall_clock_ms", 0),
            )
        )  # fmt: skip
        self._sinks = sorted(outputs)
        self._do(lambda: None)

    @property
    def story(self) -> list[str]:
        """A line for each thing that happened."""
        return self._cluster.story

    def pipe(self, op: dict[str, Any]) -> None:
        self._strike()
        self._do(lambda: self._append([op]))

    def backlog(self, records: list[dict[str, Any]]) -> None:
        self._strike()
        self._do(lambda: self._append(records))

    def _append(self, records: list[dict[str, Any]]) -> None:
        for op in records:
            self._cluster.pipe(op["topic"], op["key"], op["value"], op["ts"], headers_of(op))

    def advance_wall_clock(self, ms: int) -> None:
        self._strike()
        self._do(lambda: self._cluster.advance(f"{ms}ms"))

    def _strike(self) -> None:
        cluster, random = self._cluster, self._random
        live = [host for host in cluster.hosts if host not in cluster.frozen]
        host, fault = random.choice(live), random.choice(_FAULTS)
        at = {random.choice(("before", "after")): random.choice(("commit", "commit", "fetch", "ask"))}
        if fault == "die now":
            cluster.crash(host)
        elif fault == "die":
            cluster.crash(host, **at)
        elif fault == "freeze":
            cluster.freeze(host, **at)
        elif fault == "lose the log":
            cluster.cut_off(host, **at)
        elif fault == "lose a task":
            cluster.move(random.choice(sorted(cluster.owners)), host)
        elif fault == "lose power":
            cluster.power_off(random.choice(self._machines))
        if cluster.frozen and not random.randrange(3):
            cluster.wake(random.choice(cluster.frozen))

    def _do(self, act: Callable[[], object]) -> None:
        """Do something and everything that follows from it. Raises PenstockError where a task fails."""
        try:
            act()
            self._cluster.work()
            before = None
            for _ in range(_MOST_ROUNDS):
                self._cluster.heal()
                self._cluster.work()
                before, last = self._cluster.state_of_rest, before
                if before == last and self._cluster.is_all_read:
                    return
        except SimulationFailure as failure:
            raise PenstockError(str(failure)) from failure
        raise AssertionError("\n".join(["an input is never processed", *self.story]))

    def outputs(self) -> Iterator[dict[str, Any]]:
        for topic in self._sinks:
            for record in self._cluster.read_all(topic):
                yield output_of(topic, record)

    def store(self, name: str) -> StateStore:
        for worker, resources in self._cluster.open_workers(self._stack):
            assert worker.task is not None
            stores: dict[str, StateStore] = {
                **resources.globals_of(self._cluster.application).stores,
                **worker.task.stores,
            }
            if name in stores:
                return stores[name]
        raise KeyError(name)

    def dropped_records(self) -> int:
        """Return the number that is expected: a process that dies takes its counters with it."""
        dropped: int = self._case["expected"].get("metrics", {}).get("dropped_records", 0)
        return dropped

    def close(self) -> None:
        self._stack.close()
