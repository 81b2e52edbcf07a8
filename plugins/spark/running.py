"""RunningApplication: an application with its log, lease and Spark session open."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from penstock import Application, Log, Settings
from penstock.plugins.engine.program.lease import LeaseKeeper
from penstock.plugins.engine.program.preparation import Prepared, check_open_files
from penstock.plugins.engine.run.open_application import OpenApplication, prepared_application
from penstock.plugins.engine.run.stepping import SteppingDriver, stepping

from .placement.executors import LateExecutors, wait_for_executors
from .query import ApplicationQuery
from .session.interpreter import log_interpreter
from .session.sessions import check_session, is_cluster, local_cores, make_session
from .settings import PARALLELISM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("penstock.spark")


class RunningApplication(OpenApplication):
    """An application with its log, lease and session open; what `run` and the stepping driver share."""

    def __init__(self, prepared: Prepared, log: Log, lease: LeaseKeeper, session: SparkSession) -> None:
        super().__init__(prepared, log, lease)
        self.session = session
        self.machine = session.conf.get("spark.driver.host", "") or ""
        self._late = LateExecutors()

    @classmethod
    @contextmanager
    def open(
        cls,
        application: Application,
        session: SparkSession | None,
        master: str | None,
        conf: Mapping[str, str] | None = None,
        is_wanted: Callable[[], bool] = lambda: False,
    ) -> Iterator[RunningApplication]:
        """Open everything, and close it at the end. Raises what `run` does."""
        with ExitStack() as stack:
            prepared, log, lease = stack.enter_context(prepared_application(application, is_wanted))
            application = prepared.application
            cores = local_cores(session.sparkContext.master if session is not None else master)
            given = PARALLELISM.of(application.settings)
            check_open_files(prepared, log, cores if cores is None or given is None else min(cores, given))
            if session is None:
                session = make_session(master, conf)
                stack.callback(_stop_quietly, session)
                # Spark's own configuration files count, too, and are read only now.
                check_session(session)
            wait_for_executors(session.sparkContext)
            log_interpreter(session, is_cluster(session.sparkContext.master))
            warning = local_changelog(application.settings, session.sparkContext.master or "local")
            if warning is not None:
                _log.warning("application %r: %s", application.id, warning)
            running = cls(prepared, log, lease, session)
            stack.callback(running.repeats.write_rest)
            yield running

    def query(self, **options: Any) -> ApplicationQuery:
        """Return a new query, not started."""
        return ApplicationQuery(
            self.session, self.prepared, self.log, self._late, self.repeats, server=self.server, **options
        )


def local_changelog(settings: Settings, master: str) -> str | None:
    """Return a warning if the changelog is in a plain directory and tasks run on several machines, else None."""
    name, _, location = settings.changelog.partition(":")
    if master.startswith("local") or name != "directory" or "://" in location or settings.log.startswith("local:"):
        return None
    return (
        f"changelog={settings.shown('changelog')!r} is a directory of each host by itself, and Spark runs on "
        f"{master}: unless all executors share it, a task that moves does not find its state. "
        'Use changelog="topic:", or a location that all reach '
        "(s3://, hdfs://, a shared mount)"
    )


def _stop_quietly(session: SparkSession) -> None:
    try:
        session.stop()
    except Exception as error:
        _log.debug("stopping Spark raised %s", error)


@contextmanager
def stepping_on_spark(
    application: Application, session: SparkSession, *, is_continuous: bool = False
) -> Iterator[SteppingDriver]:
    """Start the query on an existing session; nothing runs before the first step.

    `is_continuous`: the tasks run as with the trigger "continuous", but only within steps.
    """
    with (
        RunningApplication.open(application, session, None) as running,
        stepping(running, running.query(clock_ms=0, step=-1, is_continuous=is_continuous)) as driver,
    ):
        yield driver
