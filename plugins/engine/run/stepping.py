"""SteppingDriver: an application that processes records only in a test's steps, at the test's times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from penstock import RuntimeUnavailableError
from penstock.plugins.engine.program.visits import asked_visits
from penstock.plugins.engine.task.report import TaskReport

from .open_application import OpenApplication
from .order import Trigger
from .query import Query

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
