"""SteppingDriver: an application on Spark that processes records only in a test's steps, at the test's times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import RuntimeUnavailableError
from penstock.plugins.runtime.report import TaskReport
from penstock.settings.application import Application

from .query import ApplicationQuery
from .running import RunningApplication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.005


class SteppingDriver:
    """One query that stays open. A `step` runs as many batches as it takes to process everything, at least one.

    The wall clock that tasks see does not move in between. Use `SteppingDriver.open` in a `with` block.
    """

    def __init__(self, running: RunningApplication, query: ApplicationQuery) -> None:
        self.log = running.log
        self.prepared = running.prepared
        self._query = query
        self._running = running
        self._step = -1

    @classmethod
    @contextmanager
    def open(
        cls, application: Application, session: SparkSession, *, is_continuous: bool = False
    ) -> Iterator[SteppingDriver]:
        """Start the query on an existing session; nothing runs before the first step.

        `is_continuous`: the tasks run as with the trigger "continuous", but only within steps.
        """
        with RunningApplication.open(application, session, None) as running:
            query = running.query(clock_ms=0, step=-1, is_continuous=is_continuous)
            try:
                yield cls(running, query)
            finally:
                query.close()

    def step(self, clock_ms: int, timeout: float = 120.0) -> list[TaskReport]:
        """Process all that is in the log, at the time `clock_ms`; return the tasks' reports, one a task and batch.

        Raises what a task failed with, and RuntimeUnavailableError after `timeout` seconds.
        """
        self._step += 1
        self._query.set_control(clock_ms=clock_ms, step=self._step)
        if not self._query.is_active:
            self._query.start({"processingTime": "0 milliseconds"})
        deadline = time.monotonic() + timeout
        reports: list[TaskReport] = []
        checks = 0
        while self._query.control_file.read_drained() < self._step:
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
