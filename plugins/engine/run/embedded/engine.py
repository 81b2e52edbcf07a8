"""EmbeddedEngine: runs an application on this machine, without Spark and Java."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from penstock import Application, LeaseTakenError
from penstock.plugins.engine.program.preparation import check_open_files
from penstock.plugins.engine.task.process_resources import tune_garbage_collector

from ..engine import Engine
from ..open_application import OpenApplication, prepared_application
from ..order import RunOrder
from ..progress import RunSummary
from ..run_loop import RunLoop, begun
from ..stepping import SteppingDriver, stepping
from .query import EmbeddedQuery
from .settings import PROCESSES

_OF_SPARK = {"parallelism": "; 'processes' spreads its tasks over processes", "checkpoint_dir": ""}
"""Settings that only Spark reads, and what to set instead."""

_log = logging.getLogger("penstock.embedded")


class EmbeddedEngine(Engine):
    """The engine `embedded`: the tasks of an application run in this process, or in task hosts of this machine."""

    title = "the embedded engine"

    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        for name, instead in _OF_SPARK.items():
            if name in application.settings.of_plugins:
                what = "application %r: the embedded engine does not read the setting %r%s"
                _log.info(what, application.id, name, instead)
        try:
            return self._run(application, order)
        except LeaseTakenError:
            if order.waits and order.stop is not None and order.stop.is_set():
                return RunSummary(application.id, stopped_by="stop")
            raise

    def _run(self, application: Application, order: RunOrder) -> RunSummary:
        opening = partial(opened, application)
        with begun(application, order, opening, has_tasks_here=True) as (running, stop, statistics):
            order.note_start()
            if threading.current_thread() is threading.main_thread():
                # The process is the run's own. In a service the collector is left as it is.
                tune_garbage_collector()
            return _EmbeddedRun(running, order, stop, statistics).until_done()


class _EmbeddedRun(RunLoop):
    def new_query(self, clock_ms: int | None) -> EmbeddedQuery:
        processes = PROCESSES.of(self._running.application.settings)
        return EmbeddedQuery(self._running, processes, clock_ms=clock_ms, is_continuous=self._trigger.is_continuous)


@contextmanager
def opened(application: Application, is_wanted: Callable[[], bool] = lambda: False) -> Iterator[OpenApplication]:
    """Open an application, and close it at the end. Raises what `Engine.run` does."""
    with prepared_application(application, is_wanted) as (prepared, log, lease):
        check_open_files(prepared, log, max(1, PROCESSES.of(prepared.application.settings)))
        running = OpenApplication(prepared, log, lease)
        try:
            yield running
        finally:
            running.repeats.write_rest()


@contextmanager
def stepping_embedded(application: Application, *, is_continuous: bool = False) -> Iterator[SteppingDriver]:
    """Open an application that processes records only in a test's steps, in this process.

    `is_continuous`: the tasks run as with the trigger "continuous", but only within steps.
    """
    with (
        opened(application) as running,
        stepping(running, EmbeddedQuery(running, clock_ms=0, step=-1, is_continuous=is_continuous)) as driver,
    ):
        yield driver
