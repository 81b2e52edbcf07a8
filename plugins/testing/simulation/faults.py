"""Faults: injected into hosts at their operations on the log and on the disk."""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

from penstock import LogError
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.changelogs.topic import TopicChangelog
from penstock.plugins.engine.program import reset
from penstock.plugins.engine.task import commit
from penstock.plugins.engine.task.commit import PendingCommit, TaskCommits
from penstock.plugins.engine.task.local_state.global_stores import GlobalStores
from penstock.plugins.engine.task.local_state.task_state import ChangelogUpkeep, TaskState
from penstock.plugins.engine.task.logged_task import LoggedTask
from penstock.plugins.engine.task.loop.continuous_worker import ContinuousWorker
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.positions import InputPartitions
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.state.copies import Replica
from penstock.plugins.state.transfer import changelog_move
from penstock.plugins.state.transfer.backups import backup, catalog
from penstock.plugins.state.transfer.reshard import resharding

from .history import COPY_FAULTS, DELAYED, DISK_FAULTS, LOG_FAULTS, OVERTAKEN, Fault
from .host import Host
from .host_world import UPKEEP, HostDied, SimulatedDiskError, SimulatedOutage, Timeline

_REFUSALS = (errno.ENOSPC, errno.EACCES, errno.EIO)
_REFUSED = (1, 1, 4, 20)
"""How many operations of a host one after the other its disk may refuse."""
_DELAYS = (0.2, 0.06, 2.0, 40.0, 100.0)
"""Seconds that an operation on the log may take."""


class Place(NamedTuple):
    """An operation in a step of the engine's work, and a fault before or after it ("": the operation itself)."""

    step: str
    operation: str
    fault: str = ""


class Faults:
    """Dying, freezing and losing the log, the disk or power, before and after an operation of a host."""

    power_off: Callable[[int], None]
    """Ends a machine, with all its hosts."""
    work_beside: Callable[[Host, int], None]
    """Lets other threads of a host go on for so many rounds, in the middle of an act of one."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._armed: dict[Host | None, list[tuple[Fault, int]]] = {}
        self.counts = Counter[str]()
        """How often each fault struck, by kind and operation."""
        self.places = Counter[Place]()
        """How often each operation of each step was done, and how often each fault struck there."""

    def arm(self, host: Host | None, fault: Fault) -> None:
        """Let a fault strike a host (None: any) at the next operation for which it is."""
        self._armed.setdefault(host, []).append((fault, fault.later))

    def disarm(self) -> dict[Host, Fault]:
        """Let no fault strike any more; return the unstruck ones, by their host."""
        armed, self._armed = self._armed, {}
        return {host: faults[0][0] for host, faults in armed.items() if faults and host is not None}

    def edge(self, host: Host, what: str, call: Callable[[], Any], changes: bool) -> Any:
        """Do an operation of a host on the log. Raises HostDied where it dies, LogError where it loses the log."""
        return self._do(host, what, call, LOG_FAULTS, changes=changes, tells=changes)

    def disk_edge(self, host: Host, what: str, call: Callable[[], Any], changes: bool, tells: bool) -> Any:
        """Do an operation of a host on the disk. Raises HostDied where it dies, OSError where the disk refuses."""
        if host.refusals and not host.is_dead:
            host.refusals -= 1
            raise self._refusal(host.refusals)
        return self._do(host, what, call, DISK_FAULTS, changes=changes, tells=tells)

    def copy_edge(self, host: Host, what: str, call: Callable[[], Any]) -> Any:
        """Make a write of a host to its local state. Raises HostDied where it dies, OSError where there is no room."""
        return self._do(host, what, call, COPY_FAULTS, changes=True, tells=False)

    def _do(
        self, host: Host, what: str, call: Callable[[], Any], kinds: tuple[str, ...], *, changes: bool, tells: bool
    ) -> Any:
        if host.is_dead:
            raise HostDied(str(host))
        step, operation = step_now(), what.partition(" ")[0]
        self.places[Place(step, operation)] += 1
        fault = self._striking(host, what, step, kinds)
        # After an operation that only reads, most faults are those before the next one; but a host that freezes there
        # goes on with what is no longer so.
        after = fault is not None and fault.after and (changes or fault.kind == "freezes")
        if fault is not None and not after:
            self.places[Place(step, operation, f"{fault.kind} before")] += 1
            self._strike(host, fault, "before", what)
        found = call()
        if tells or fault is not None:
            self._timeline.tell(f"{host} {what}")
        if fault is not None and after:
            self.places[Place(step, operation, f"{fault.kind} after")] += 1
            self._strike(host, fault, "after", what)
        return found

    def _striking(self, host: Host, what: str, step: str, kinds: tuple[str, ...]) -> Fault | None:
        armed = [(owner, number) for owner in (host, None) for number in range(len(self._armed.get(owner, ())))]
        for owner, number in armed:
            fault, later = self._armed[owner][number]
            if fault.kind not in kinds or fault.on_copy != (kinds is COPY_FAULTS) or not fault.is_at(step, what):
                continue
            if fault.kind == OVERTAKEN and host.world.pool != UPKEEP:
                continue
            if not later:
                return self._armed[owner].pop(number)[0]
            self._armed[owner][number] = fault, later - 1
        return None

    def _strike(self, host: Host, fault: Fault, when: str, what: str) -> None:
        self.counts[f"{fault.kind} {when} it {what.partition(' ')[0]}"] += 1
        self._timeline.tell(f"{host} {fault.kind} {when} it {what}", is_event=True)
        if fault.kind == "freezes":
            host.freeze()
        elif fault.kind == OVERTAKEN:
            self._overtake(host, 1 + fault.amount % 12)
        elif fault.kind == DELAYED:
            self._timeline.pass_by(_DELAYS[fault.amount % len(_DELAYS)])
        elif fault.kind == "loses the log":
            if what.startswith(asks := "asks whether task "):
                host.unanswered.add(what.removeprefix(asks).partition(" ")[0])
            raise LogError(f"the simulated log is away for {host}") from SimulatedOutage()
        elif fault.kind == "is refused by its disk":
            if not fault.on_copy:
                host.refusals = _REFUSED[fault.amount % len(_REFUSED)] - 1
            raise self._refusal(fault.amount)
        else:
            host.is_dead = True
            if fault.kind == "loses power":
                self.power_off(host.machine)
            raise HostDied(str(host))

    def _overtake(self, host: Host, rounds: int) -> None:
        self.work_beside(host, rounds)
        if host.is_dead:
            raise HostDied(str(host))

    def _refusal(self, number: int) -> OSError:
        code = _REFUSALS[number % len(_REFUSALS)]
        return SimulatedDiskError(code, os.strerror(code))


_METHODS: dict[str, tuple[tuple[Any, str], ...]] = {
    "cleaning": ((DirectoryChangelog, "clean"),),
    "snapshot": ((ChangelogUpkeep, "write_snapshot"),),
    "looking for a snapshot": ((ChangelogUpkeep, "wants_snapshot"),),
    "first commit": ((commit, "make_first"),),
    "change of the stores": ((TaskCommits, "settle"),),
    "commit": ((PendingCommit, "write"),),
    "applying": ((TaskState, "apply"),),
    "sending": ((TaskCommits, "send"),),
    "following": ((Replica, "catch_up"), (Replica, "__init__")),
    "restoring": ((LoggedTask, "restore"), (TopicChangelog, "restore")),
    "opening": (
        (LoggedTask, "_prepare"),
        (LoggedTask, "prepare"),
        (LoggedTask, "_ensure_open"),
        (ContinuousWorker, "open"),
    ),
    "ending": ((LoggedTask, "abandon"), (LoggedTask, "cause_of")),
    "global stores": ((GlobalStores, "update"),),
    "reading": ((InputPartitions, "fetch"), (TaskLoop, "_poll")),
    "working": ((TaskWorker, "try_batch"), (TaskLoop, "turn")),
    "reset": ((reset, "reset"),),
    "move of the changelog": ((changelog_move, "move_changelog"),),
    "backup": ((backup, "back_up"),),
    "prune": ((catalog, "prune"),),
    "reshard": ((resharding, "reshard"), (resharding, "accept"), (resharding, "undo")),
    "planning and closing": ((Faults, "_overtake"),),  # an act in the middle of another one
}
STEPS = tuple(_METHODS)
"""The steps, the inner ones first: a snapshot is written in the middle of a batch."""


@cache
def by_code() -> dict[CodeType, str]:
    """Return the steps by the code of their methods; cleared by what replaces one of these."""
    return {getattr(owner, name).__code__: step for step, methods in _METHODS.items() for owner, name in methods}


def step_now() -> str:
    """Return the step in which the calling code runs."""
    steps, frame = by_code(), sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if (step := steps.get(frame.f_code)) is not None:
            return step
    return STEPS[-1]
