"""Query: an application's tasks as one engine runs them. SteppingDriver: a query in a test's steps."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from penstock import PenstockError, RuntimeUnavailableError
from penstock.plugins.engine.host.log_lines import forward
from penstock.plugins.engine.host.reports import SlotMessage, TaskFailure
from penstock.plugins.engine.program.visits import asked_visits
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.task_runner import is_taken_over
from penstock.support.repeats import Repeats
from penstock.task.visits import Visit

from .companion import OpenApplication
from .order import Trigger
from .planning.control import Control, Orders
from .progress import EndedBatch
from .settings import UncaughtExceptionHandler, replaces
from .slots import Slots


class Query(ABC):
    """Runs the tasks of a prepared application. All methods are called by one thread, that of the run.

    `orders`: the source of its planner's orders; at first that is `control`.
    """

    slots: Slots
    visits: Sequence[Visit] = ()
    """The visits that tasks make."""

    def __init__(self, orders: Orders, control: Control) -> None:
        self._orders = orders
        self._control, self._control_lock = control, threading.Lock()
        self._orders.write(control)

    @abstractmethod
    def start(self, trigger: Trigger) -> None:
        """Start to run the tasks; returns at once."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether the query still runs."""

    @abstractmethod
    def poll(self) -> list[EndedBatch]:
        """Return the batches that ended since the last call. Raises what a task failed with."""

    def set_control(self, **changes: Any) -> None:
        """Change the orders to the planner, fields of `Control`. Any thread may call it."""
        with self._control_lock:
            changed = replace(self._control, **changes)
            if changed != self._control:
                self._control = changed
                self._orders.write(changed)

    def pause(self, subtopologies: Collection[int]) -> None:
        """Pause the tasks of these sub-topologies, and resume all others."""
        self.slots.paused = frozenset(subtopologies)
        self.set_control(paused=sorted(subtopologies), next_tick=self.slots.next_tick())

    def visit(self, visits: Sequence[Visit]) -> None:
        """Let tasks make these visits, and no others."""
        self.visits = visits
        self.set_control(visits=[list(each) for each in visits])

    def drained_step(self) -> int:
        """Return the last step of a test that was processed to its end; -1 before the first."""
        return self._orders.read_drained()

    @abstractmethod
    def drain(self) -> None:
        """Begin no more work, and let tasks commit their work; returns at once."""

    @abstractmethod
    def is_at_rest(self) -> bool:
        """Return, after `drain`, whether no task works any more."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the query; uncommitted work does not count."""

    @abstractmethod
    def close(self) -> None:
        """Stop the query and remove its files on this host; idempotent."""

    @property
    def moves(self) -> Counter[str]:
        """How many slots have moved, by reason."""
        return Counter()

    @property
    def is_outgrown(self) -> bool:
        """Whether the tasks could be spread over more processes: a new start with more slots is worth its price."""
        return False


_POLL_SECONDS = 0.005


class SteppingDriver:
    """One query that stays open. A `step` runs as many batches as it takes to process everything, at least one.

    The wall clock that tasks see does not move in between.
    """

    def __init__(self, running: OpenApplication, query: Query) -> None:
        self.log = running.log
        self.prepared = running.prepared
        self._query = query
        self._running = running
        self._step = -1

    def step(self, clock_ms: int, timeout: float = 120.0) -> list[TaskReport]:
        """Process all that is in the log, at the time `clock_ms`; return the tasks' reports, one a task and batch.

        Raises what a task failed with, and RuntimeUnavailableError after `timeout` seconds.
        """
        self._step += 1
        self._query.visit(asked_visits(self.prepared.application.id, self.log))
        self._query.set_control(clock_ms=clock_ms, step=self._step)
        if not self._query.is_active:
            self._query.start(Trigger.of("0s"))
        deadline = time.monotonic() + timeout
        reports: list[TaskReport] = []
        checks = 0
        while self._query.drained_step() < self._step:
            checks += 1
            if checks % 10 == 0:
                reports += self._collect()
            if time.monotonic() > deadline:
                raise RuntimeUnavailableError(f"step {self._step} took longer than {timeout:g} s")
            time.sleep(_POLL_SECONDS)
        return reports + self._collect()

    @property
    def processes(self) -> dict[str, int]:
        """The process that ran each task last."""
        return self._query.slots.processes

    def _collect(self) -> list[TaskReport]:
        reports = [report for batch in self._query.poll() for report in batch.reports]
        self._running.take(reports)
        return reports


@contextmanager
def stepping(running: OpenApplication, query: Query) -> Iterator[SteppingDriver]:
    """Yield a driver of `query`, which is closed at the end; nothing runs before the first step.

    Make the query with `clock_ms=0` and `step=-1`.
    """
    try:
        yield SteppingDriver(running, query)
    finally:
        query.close()


_MOST_FENCES = 3
"""How often a task may be taken over without a report in between."""

_log = logging.getLogger("penstock.runs")


class HostMessages:
    """Passes the hosts' messages to `slots`. `uncaught`: the setting `uncaught_exception_handler`."""

    def __init__(self, slots: Slots, repeats: Repeats, uncaught: UncaughtExceptionHandler) -> None:
        self._slots = slots
        self._uncaught = uncaught
        self._repeats = repeats
        self._fenced: Counter[str] = Counter()

    def batch(
        self, number: int | None, seconds: float, messages: Sequence[SlotMessage], failures: list[TaskFailure]
    ) -> EndedBatch:
        """Return the work of hosts as a batch; add their failures to `failures`. `number`: None for heartbeats."""
        reports: list[TaskReport] = []
        for message in messages:
            for line in message.lines:
                forward(line)
            slot_reports, slot_failures = self._slots.take(message, is_heartbeat=number is None)
            reports += slot_reports
            failures += slot_failures
        losses = self._slots.take_losses()
        for loss in losses:
            self._repeats.log(_log, logging.WARNING, "host lost", "%s; another one was started", loss)
        return EndedBatch(number, seconds, reports, tuple(self._slots.hosts.values()), losses)

    def judge(self, failures: Sequence[TaskFailure], batches: Sequence[EndedBatch]) -> PenstockError | None:
        """Return the error that ends the run, if there is one.

        The first fences of a task are no errors: an attempt that was given up was still at work. The next batch starts
        from the log's commit.
        """
        replaced = [failure for failure in failures if not is_taken_over(failure.error())]
        for failure in replaced:
            error = failure.error()
            if not (failure.is_of_task and replaces(self._uncaught, error)):
                return error
            text = "%s; the task is opened again, from its last commit"
            self._repeats.log(_log, logging.WARNING, ("replaced", failure.task_id), text, failure.message)
        failures = [failure for failure in failures if failure not in replaced]
        for report in (each for batch in batches for each in batch.reports):
            self._fenced.pop(report.task_id, None)
        for failure in failures:
            self._fenced[failure.task_id] += 1
            if self._fenced[failure.task_id] >= _MOST_FENCES:
                return failure.error()
        if failures:
            text = "%s; the next batch takes it up again"
            self._repeats.log(_log, logging.WARNING, "fenced", text, failures[0].message)
        return None
