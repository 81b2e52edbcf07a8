"""RunningApplication: an application with its log, lease and Spark session open."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.clock import SystemClock
from penstock.log import Log
from penstock.plugins.applications.lease import LeaseKeeper
from penstock.plugins.applications.new_topics import prepare_and_continue
from penstock.plugins.applications.open_files import check_open_files
from penstock.plugins.applications.preparation import Prepared
from penstock.plugins.runtime.locations import open_log
from penstock.plugins.runtime.report import TaskReport
from penstock.settings.application import Application
from penstock.settings.settings import Settings
from penstock.support.repeats import Repeats
from penstock.support.system_errors import raise_open_files_limit

from .placement.executors import LateExecutors, wait_for_executors
from .query import ApplicationQuery
from .session.interpreter import log_interpreter
from .session.sessions import check_session, is_cluster, local_cores, make_session
from .settings import PARALLELISM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("penstock.spark")


class RunningApplication:
    """An application with its log, lease and session open; what `run` and the stepping driver share."""

    def __init__(self, prepared: Prepared, log: Log, lease: LeaseKeeper, session: SparkSession) -> None:
        self.application = prepared.application
        self.prepared = prepared
        self.log = log
        self.lease = lease
        self.session = session
        self.repeats = Repeats(SystemClock().now_ms)
        self._late = LateExecutors()
        self._internal_ids = log.topic_ids(prepared.assignment.internal)

    @classmethod
    @contextmanager
    def open(
        cls,
        application: Application,
        session: SparkSession | None,
        master: str | None,
        conf: Mapping[str, str] | None = None,
    ) -> Iterator[RunningApplication]:
        """Open everything, and close it at the end. Raises what `run` does."""
        # Workers have working directories of their own.
        directory = str(Path(application.settings.data_dir).absolute())
        application = application.with_settings(data_dir=directory)
        # Before Spark starts: its processes inherit the limit.
        raise_open_files_limit()
        with ExitStack() as stack:
            log = open_log(application.settings)
            stack.callback(log.close)
            lease = LeaseKeeper(log, application.id)
            stack.callback(lease.release)
            prepared = prepare_and_continue(application, log, lease.check)
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

    def prepare_again(self) -> None:
        """Find the tasks again, after topics have changed. Raises as `prepare`."""
        self.prepared = prepare_and_continue(self.application, self.log, self.lease.check)

    def query(self, **options: Any) -> ApplicationQuery:
        """Return a new query, not started."""
        return ApplicationQuery(self.session, self.prepared, self.log, self._late, self.repeats, **options)

    def take(self, reports: list[TaskReport]) -> None:
        """Note the partitions that have a committed position now, and purge processed records of repartition topics.

        A reset makes these topics again. A driver that was frozen over it must not delete what the new ones have.
        """
        self.prepared.committed.add(each for report in reports for each in report.positions)
        for report in reports:
            for partition, position in report.purgeable.items():
                self.log.purge(partition, position, self._internal_ids.get(partition.topic, ""))


def local_changelog(settings: Settings, master: str) -> str | None:
    """Return a warning if the changelog is in a plain directory and tasks run on several machines, else None."""
    name, _, location = settings.changelog.partition(":")
    if master.startswith("local") or name != "directory" or "://" in location or settings.log.startswith("local:"):
        return None
    return (
        f"changelog={settings.changelog!r} is a directory of each host by itself, and Spark runs on {master}: unless "
        "all executors share it, "
        'a task that moves does not find its state. Use changelog="topic:", or a location that all reach '
        "(s3://, hdfs://, a shared mount)"
    )


def _stop_quietly(session: SparkSession) -> None:
    try:
        session.stop()
    except Exception as error:
        _log.debug("stopping Spark raised %s", error)
