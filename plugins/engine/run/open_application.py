"""OpenApplication: an application with its log and lease open, prepared to run; what every engine's run begins with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock import Application, Log, SystemClock
from penstock.plugins.engine.program.from_state import prepare_and_continue
from penstock.plugins.engine.program.lease import LeaseKeeper
from penstock.plugins.engine.program.preparation import Prepared
from penstock.plugins.engine.program.stored_id import check_sources, stored_application
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.report import TaskReport
from penstock.support.packages import other_distribution
from penstock.support.repeats import Repeats
from penstock.support.system_errors import raise_open_files_limit

_log = logging.getLogger("penstock.runs")


class OpenApplication:
    """A prepared application, its log, and its lease."""

    machine: str = ""
    """The name of this machine for others, where an engine knows it."""

    def __init__(self, prepared: Prepared, log: Log, lease: LeaseKeeper) -> None:
        self.application = prepared.application
        self.prepared = prepared
        self.log = log
        self.lease = lease
        self.repeats = Repeats(SystemClock().now_ms)
        self.server: str | None = None
        """The URL of the server of its stores that the run has beside it."""
        self._internal_ids = log.topic_ids(prepared.assignment.internal)

    def prepare_again(self) -> None:
        """Find the tasks again, after topics have changed. Raises as `prepare`."""
        self.prepared = prepare_and_continue(self.application, self.log, self.lease.renew)

    def take(self, reports: Sequence[TaskReport]) -> None:
        """Note the partitions that have a committed position now, and purge processed records of repartition topics.

        A reset makes these topics again. A driver that was frozen over it must not delete what the new ones have.
        """
        self.prepared.committed.add(each for report in reports for each in report.positions)
        for report in reports:
            for partition, position in report.purgeable.items():
                self.log.purge(partition, position, self._internal_ids.get(partition.topic, ""))


@contextmanager
def prepared_application(
    application: Application, is_wanted: Callable[[], bool] = lambda: False
) -> Iterator[tuple[Prepared, Log, LeaseKeeper]]:
    """Open the log, take the lease and prepare the application; close everything at the end.

    `is_wanted`: as for LeaseKeeper. Raises as `prepare`.
    """
    if (other := other_distribution()) is not None:
        _log.warning("%s", other)
    # Task hosts have working directories of their own.
    directory = str(Path(application.settings.data_dir).absolute())
    application = application.with_settings(data_dir=directory)
    # Processes that are started from now on inherit the limit.
    raise_open_files_limit()
    with ExitStack() as stack:
        log = open_log(application.settings)
        stack.callback(log.close)
        lease = LeaseKeeper(log, application.id, is_wanted)
        stack.callback(lease.release)
        check_sources(application, log)
        yield prepare_and_continue(stored_application(application, log), log, lease.renew), log, lease
