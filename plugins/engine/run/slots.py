"""Slots: the driver's view of the task hosts, from the reports of each batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from penstock import TaskId
from penstock.plugins.engine.host.reports import HostStatus, SlotMessage, TaskFailure, TaskResult
from penstock.plugins.engine.task.local_state.restoring import RestoreProgress
from penstock.plugins.engine.task.logged_task import FIRST
from penstock.plugins.engine.task.report import TaskReport

MOVED, HOST_LOST = "moved", "host lost"
"""Why a task that was open before is opened by a new host: on another executor, or on the same one."""


class Slots:
    """The slots of one query: which host has each, and which tasks that host has open. `tasks`: task ids by slot."""

    def __init__(self, tasks: Mapping[int, Sequence[str]]) -> None:
        self._tasks = tasks
        self._tokens: dict[int, str] = {}
        self._open: dict[int, set[str]] = {slot: set() for slot in tasks}
        self._ever_opened: set[str] = set()
        self._next_ticks: dict[str, int | None] = {}
        self.paused: frozenset[int] = frozenset()
        """The sub-topologies that are to be paused."""
        self._obeyed: dict[int, Collection[int]] = {}
        """By slot, the sub-topologies that its host has paused."""
        self.executors: dict[int, str] = {}
        """The identity of the executor that ran each slot last."""
        self.servers: dict[int, str] = {}
        """The URL of the server of queries beside each slot's host, as of its last answer; "": none."""
        self.hosts: dict[int, HostStatus] = {}
        """The host of each slot, as of its last answer."""
        self.processes: dict[str, int] = {}
        """The process that ran each task last."""
        self.restoring: dict[str, RestoreProgress] = {}
        """Progress of the restores of tasks that are being opened, as of the last message."""
        self._gone: set[str] = set()
        self._early: dict[str, set[str]] = {}
        """By the token of a host that no batch has named yet: the tasks that it has open."""
        self._counted: set[tuple[int, str, int]] = set()
        self._told: set[tuple[int, str, int]] = set()
        self._heard: dict[str, int] = {}
        """By the token of a host, the number of its last message."""
        self._losses: list[str] = []
        self.lost = 0
        """How many hosts were lost."""

    def take(self, message: SlotMessage, *, is_heartbeat: bool = False) -> tuple[list[TaskReport], list[TaskFailure]]:
        """Record the reports of a slot's tasks; return reports and failures.

        Only a batch says which host has a slot. A heartbeat may be of a frozen host, of one whose executor lost the
        slot, or of a new one: its work is returned, but no failures after it has a successor. Each lost host counts
        once, and so does work that a host reports repeatedly.
        """
        failures = [] if message.failure is None else [message.failure]
        if message.elsewhere:
            return [], failures
        host, slot = message.host, message.slot
        if is_heartbeat and host is not None and not self.is_host(message):
            reports, others = self._results(message.results, host, self._early.setdefault(host.token, set()))
            return (reports, []) if host.token in self._gone else (reports, failures + others)
        if host is not None and host.token in self._gone:
            if slot in self._tokens:
                host = None  # a batch from before the end of a host that has a successor
            else:
                self._gone.discard(host.token)  # the slot was to move, and has come back
        for loss in message.losses:
            lost = slot, message.executor, loss.process
            self._count_lost(lost)
            if not loss.process or lost not in self._told:
                self._told.add(lost)
                self._losses.append(loss.text)
        opened, before = self._open[slot], self._tokens.get(slot)
        again = HOST_LOST if self.executors.get(slot) == message.executor else MOVED
        if host is not None and host.token != before:
            if before is not None:
                self._gone.add(before)
                self._count_lost((slot, self.executors.get(slot, ""), self.hosts[slot].process))
            opened.clear()
            opened |= self._early.pop(host.token, set())
        self.executors[slot] = message.executor
        self.servers[slot] = message.server
        if host is not None:
            self._obeyed[slot] = message.paused
            self._tokens[slot], self.hosts[slot] = host.token, host
        reports = self._kept_reports(message, opened, again)
        results, others = self._results(message.results, message.host, opened, again)
        return reports + results, failures + others

    def is_host(self, message: SlotMessage) -> bool:
        """Return whether a heartbeat comes from the slot's host, as far as batches have named one."""
        host = message.host
        return host is None or (host.token not in self._gone and self._tokens.get(message.slot) in (None, host.token))

    def _kept_reports(self, message: SlotMessage, opened: set[str], again: str) -> list[TaskReport]:
        """Return the host's reports of earlier batches whose messages did not arrive."""
        if message.host is None:
            return []
        token, reports = message.host.token, []
        for number, results in sorted(message.kept.items()):
            if number > self._heard.get(token, 0):
                reports += self._results(results, message.host, opened, again)[0]
        self._heard[token] = max(message.number, self._heard.get(token, 0))
        return reports

    def _results(
        self, results: Sequence[TaskResult], host: HostStatus | None, opened: set[str], again: str = HOST_LOST
    ) -> tuple[list[TaskReport], list[TaskFailure]]:
        """Return reports and failures; note in `opened` which tasks are open. `again`: why one was opened again."""
        reports, failures = [], []
        for result in results:
            task, report = result.task_id, result.report
            opened.discard(task)
            self.restoring.pop(task, None)
            if result.restoring is not None:
                self.restoring[task] = result.restoring
            if result.failure is not None:
                failures.append(result.failure)
            if report is None:
                continue
            if report.opened == FIRST and task in self._ever_opened:
                report = report.opened_for(again)
            opened.add(task)
            self._ever_opened.add(task)
            self._next_ticks[task] = report.next_tick
            if host is not None:
                self.processes[task] = host.process
            reports.append(report)
        return reports, failures

    def _count_lost(self, lost: tuple[int, str, int]) -> None:
        """Count a lost host of a slot, by its executor and process; that of 0 is another one each time."""
        self.lost += not lost[2] or lost not in self._counted
        self._counted.add(lost)

    def take_losses(self) -> list[str]:
        """Return a text for each host that was lost since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def next_tick(self) -> int | None:
        """Return when (ms) the first wall-clock punctuator is due; None if there is none."""
        due = (tick for task, tick in self._next_ticks.items() if tick is not None and not self._is_paused(task))
        return min(due, default=None)

    def paused_everywhere(self) -> frozenset[int]:
        """Return the sub-topologies of `paused` that no host processes any more."""
        working = {
            TaskId.parse(task).subtopology
            for slot, tasks in self._tasks.items()
            for task in tasks
            if TaskId.parse(task).subtopology not in self._obeyed.get(slot, ())
        }
        return frozenset(self.paused) - working

    def _is_paused(self, task: str) -> bool:
        return bool(self.paused) and TaskId.parse(task).subtopology in self.paused

    def unopened(self) -> list[str]:
        """Return the tasks that no host has open."""
        return [task for slot, tasks in self._tasks.items() for task in tasks if task not in self._open[slot]]

    def tasks(self) -> Iterator[tuple[str, int, bool]]:
        """Yield each task with its slot, and whether a host has it open."""
        for slot, tasks in self._tasks.items():
            yield from ((task, slot, task in self._open[slot]) for task in tasks)

    def take_lost(self) -> int:
        """Return the number of hosts lost since the last call."""
        lost, self.lost = self.lost, 0
        return lost

    def move(self, slots: Iterable[int], lost: Collection[int] = ()) -> None:
        """Forget the hosts of slots that may go to other executors; those of `lost` ended with theirs."""
        for slot in slots:
            self._open[slot].clear()
            if slot in lost and slot in self._tokens:
                self._count_lost((slot, self.executors.get(slot, ""), self.hosts[slot].process))
            if (token := self._tokens.pop(slot, None)) is not None:
                self._gone.add(token)
            self.hosts.pop(slot, None)
            self._obeyed.pop(slot, None)
            self.executors.pop(slot, None)
            self.servers.pop(slot, None)


def slot(task_id: TaskId, slots: int) -> int:
    """Return the number of the slot that runs a task; tasks with neighbouring numbers are spread."""
    return (task_id.subtopology + task_id.partition) % slots


def slots(tasks: Iterable[str], number: int) -> dict[int, list[str]]:
    """Return the ids of the tasks of each slot."""
    found: dict[int, list[str]] = {each: [] for each in range(number)}
    for task in tasks:
        found[slot(TaskId.parse(task), number)].append(task)
    return found
