"""run: runs an application on Spark until it is done or stopped, and starts it again when workers are lost."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock, SystemClock, duration_ms
from penstock.errors import ConfigError, RuntimeUnavailableError
from penstock.log import Log
from penstock.plugins.hosts.status import HostStatus
from penstock.plugins.metrics import metrics_endpoint
from penstock.plugins.runtime.application.lag import PartitionLag, find_lag
from penstock.plugins.runtime.application.lease import LeaseKeeper
from penstock.plugins.runtime.application.open_files import check_open_files
from penstock.plugins.runtime.application.preparation import Prepared, prepare, resolve
from penstock.plugins.runtime.locations import open_log
from penstock.plugins.runtime.report import TaskReport
from penstock.record import TopicPartition
from penstock.settings.application import Application
from penstock.system_errors import raise_open_files_limit

from .executors import LateExecutors, wait_for_executors
from .progress import RunProgress, RunSummary
from .query import ApplicationQuery, SparkFailure
from .rates import BatchRates, Rates, RecentRates
from .rests import rest_seconds
from .session import check_java, check_session, local_changelog, local_cores, make_session
from .statistics import RunStatistics
from .status_writer import StatusWriter
from .stop_request import StopRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.05, 1.0
_LAG_SECONDS, _LONGEST_LAG_SECONDS = 0.5, 5.0
_MAINTENANCE_SECONDS = 60.0
_REASSIGN_SECONDS = 5.0
_COST_SHARE = 50
"""What is done now and then is done after so many times the time that it takes, so that it costs 2 % at most."""
_MOST_RESTARTS = 5
CONTINUOUS = "continuous"

_log = logging.getLogger("penstock.spark")


def run(
    application: Application,
    trigger: str = "available_now",
    *,
    session: SparkSession | None = None,
    master: str | None = None,
    on_progress: Callable[[RunProgress], None] | None = None,
    clock: Clock | None = None,
    stop: threading.Event | None = None,
) -> RunSummary:
    """Run `application` on Spark and return what it did.

    `trigger` "available_now": process what the topics hold now, and return. A duration such as "10s": a batch that
    often (as often as possible with "0s"), until SIGTERM, Ctrl-C or `stop`; each ends it after the running batch.
    "continuous": tasks read, process and commit on their own, every `commit_interval`, until the same; each ends it
    after one more commit.
    `session`: an existing SparkSession, which stays open; otherwise one is made on `master` (all cores of this host)
    and stopped at the end. `on_progress` is called after each batch, and twice a second within one. `clock`: the wall
    clock that tasks see.

    Raises TopologyError for topics that are missing, IncompatibleStateError when the program no longer fits what it
    saved, LogError when another driver runs the application, RuntimeUnavailableError when Spark cannot start or keeps
    failing, and what a task failed with.
    """
    triggers, is_continuous = spark_trigger(trigger), trigger == CONTINUOUS
    if session is None:
        check_java()
    else:
        check_session(session)
    with ExitStack() as stack:
        statistics = RunStatistics(application.id, trigger)
        stack.enter_context(metrics_endpoint(application.settings, statistics.status, lambda: statistics.lag))
        running = stack.enter_context(RunningApplication.open(application, session, master))
        stack.enter_context(StatusWriter(running.log, statistics))
        stopped_by = stack.enter_context(StopRequest.listening(stop))
        return _Run(running, triggers, is_continuous, on_progress, clock, stopped_by, statistics).until_done()


def spark_trigger(trigger: str) -> dict[str, Any]:
    """Return Spark's trigger arguments for "available_now", "continuous" or a duration; raise ConfigError otherwise."""
    if trigger == "available_now":
        return {"availableNow": True}
    if trigger == CONTINUOUS:
        return {"processingTime": "0 milliseconds"}
    try:
        return {"processingTime": f"{duration_ms(trigger)} milliseconds"}
    except ConfigError:
        raise ConfigError(
            f'trigger {trigger!r}: expected "available_now", "continuous" or a time between batches such as "10s"'
        ) from None


class RunningApplication:
    """An application with its log, lease and session open; what `run` and the stepping driver share."""

    def __init__(self, prepared: Prepared, log: Log, lease: LeaseKeeper, session: SparkSession) -> None:
        self.application = prepared.application
        self.prepared = prepared
        self.log = log
        self.lease = lease
        self.session = session
        self._late = LateExecutors()

    @classmethod
    @contextmanager
    def open(
        cls, application: Application, session: SparkSession | None, master: str | None
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
            prepared = prepare(application, log)
            check_open_files(prepared, log, local_cores(session.sparkContext.master if session is not None else master))
            if session is None:
                session = make_session(master)
                stack.callback(_stop_quietly, session)
                # Spark's own configuration files count, too, and are read only now.
                check_session(session)
            wait_for_executors(session.sparkContext)
            warning = local_changelog(application.settings, session.sparkContext.master or "local")
            if warning is not None:
                _log.warning("application %r: %s", application.id, warning)
            yield cls(prepared, log, lease, session)

    def query(self, **options: Any) -> ApplicationQuery:
        """Return a new query, not started."""
        return ApplicationQuery(self.session, self.prepared, self.log, self._late, **options)

    def take(self, reports: list[TaskReport]) -> None:
        """Note the partitions that have a committed position now, and purge processed records of repartition topics."""
        self.prepared.committed.add(each for report in reports for each in report.positions)
        for report in reports:
            for partition, position in report.purgeable.items():
                self.log.purge(partition, position)


class _Run:
    """One call of `run`."""

    def __init__(
        self,
        running: RunningApplication,
        trigger: dict[str, Any],
        is_continuous: bool,
        on_progress: Callable[[RunProgress], None] | None,
        clock: Clock | None,
        stop: StopRequest,
        statistics: RunStatistics,
    ) -> None:
        self._running = running
        self._trigger = trigger
        self._is_continuous = is_continuous
        self._on_progress = on_progress
        self._clock = clock
        self._stop = stop
        self._query: ApplicationQuery | None = None
        self._began = time.monotonic()
        self._statistics, self._summary = statistics, statistics.summary
        self._rates: Rates = RecentRates(time.monotonic) if is_continuous else BatchRates()
        self._reports: list[TaskReport] = []
        """Reports since the last progress."""
        self._next_lag = self._next_assignment = 0.0
        self._worked_at = self._began
        self._next_maintenance = self._began + _MAINTENANCE_SECONDS
        self._failures_in_a_row = 0
        self._is_reassigning = False
        self._moves: Counter[str] = Counter()
        """Slots that moved in earlier queries, by reason."""

    def until_done(self) -> RunSummary:
        """Run queries until one ends as it should."""
        try:
            while True:
                try:
                    if self._run_query():
                        break
                except SparkFailure as failure:
                    if self._stop.reason is not None:
                        self._summary.stopped_by = self._stop.reason
                        break
                    self._after(failure)
                except Exception as error:
                    if not _says_that_the_jvm_is_gone(error):
                        raise
                    if self._stop.reason is None:
                        raise RuntimeUnavailableError(
                            f"application {self._running.application.id!r}: Spark's JVM has ended "
                            f"({type(error).__name__}: {error}); "
                            "nothing since the tasks' last commits counts, and nothing is lost: start it again"
                        ) from error
                    # The JVM got the signal as well, and does not wait for a batch.
                    self._summary.stopped_by = self._stop.reason
                    break
        finally:
            self._close_query()
        self._maintain()
        return self._finish()

    def _run_query(self) -> bool:
        """Start a query and watch it to its end. Return False when it must be started again."""
        if self._query is None:
            clock_ms = None if self._clock is None else self._clock.now_ms()
            self._query = self._running.query(clock_ms=clock_ms, is_continuous=self._is_continuous)
        query = self._query
        self._is_reassigning = False
        # If this process was frozen while Spark started, it must not take the tasks from its successor.
        if self._running.lease.lost is not None:
            raise self._running.lease.lost
        query.start(self._trigger)
        while True:
            ended = not query.is_active
            self._take(query.poll())
            if ended:
                break
            if self._wants_to_stop():
                query.drain()
                if query.is_at_rest():
                    query.stop()
                    continue
            if self._running.lease.lost is not None:
                query.stop()
                raise self._running.lease.lost
            self._do_periodic_work()
            # Each look costs the JVM some time as well: look rarely while nothing happens.
            self._stop.wait(rest_seconds(self._quiet_seconds(), shortest=_POLL_SECONDS, longest=_LONGEST_POLL_SECONDS))
        if self._stop.reason is not None:
            self._summary.stopped_by = self._stop.reason
            return True
        if self._is_reassigning:
            if query.placement.is_outgrown:
                query.placement.give_up()
            self._close_query()
            self._running.prepared = prepare(self._running.application, self._running.log)
            return False
        return True

    def _wants_to_stop(self) -> bool:
        return self._stop.reason is not None or self._is_reassigning

    def _take(self, batches: list[Any]) -> None:
        for batch in batches:
            self._failures_in_a_row = 0
            is_heartbeat = batch.number is None
            if batch.reports or not is_heartbeat:
                self._worked_at = time.monotonic()
            self._summary.batches += not is_heartbeat
            self._summary.hosts = batch.hosts
            self._summary.moves = self._all_moves()
            if self._query is not None:
                self._statistics.take(batch, self._query.slots)
            self._rates.add(batch.reports, batch.seconds)
            self._running.take(batch.reports)
            self._reports += batch.reports
            if not is_heartbeat or time.monotonic() >= self._next_lag:
                self._report_progress(batch.seconds, batch.hosts)

    def _report_progress(self, seconds: float = 0.0, hosts: tuple[HostStatus, ...] = ()) -> None:
        reports, self._reports = tuple(self._reports), []
        began = time.monotonic()
        self._next_lag = began + _LAG_SECONDS
        if self._on_progress is None and not self._running.application.settings.metrics_port:
            return
        self._statistics.lag = lag = self._lag()
        now = time.monotonic()
        quiet = min(_LONGEST_LAG_SECONDS, self._quiet_seconds() / 10)
        self._next_lag = now + max(_LAG_SECONDS, quiet, _COST_SHARE * (now - began))
        positions = {TopicPartition(each.topic, each.partition): each.next_offset for each in lag}
        ends = {TopicPartition(each.topic, each.partition): each.end for each in lag}
        if self._on_progress is None:
            return
        summary, rate = self._summary, self._rates.now()
        self._on_progress(
            RunProgress(
                summary.batches, summary.records_in, summary.records_out, summary.dropped,
                rate.records_in, sum(each.lag for each in lag), positions, ends, reports, seconds,
                hosts, dict(summary.moves), rate.records_out, sum(host.open_tasks for host in summary.hosts),
            )
        )  # fmt: skip

    def _quiet_seconds(self) -> float:
        """Return how long ago the last batch with work ended; a run that should end is not quiet."""
        return 0.0 if self._wants_to_stop() else time.monotonic() - self._worked_at

    def _all_moves(self) -> dict[str, int]:
        return dict(self._moves if self._query is None else self._moves + self._query.placement.moves)

    def _lag(self) -> list[PartitionLag]:
        prepared = self._running.prepared
        now_ms = (self._clock or SystemClock()).now_ms()
        return find_lag(prepared.application, prepared.assignment, self._running.log, now_ms)

    def _do_periodic_work(self) -> None:
        now = time.monotonic()
        if self._clock is not None and self._query is not None:
            self._query.set_control(clock_ms=self._clock.now_ms())
        if now >= self._next_lag:
            self._report_progress()
        if now >= self._next_maintenance:
            self._next_maintenance = now + _MAINTENANCE_SECONDS
            self._maintain()
        if "availableNow" not in self._trigger and self._query is not None and self._query.placement.is_outgrown:
            if not self._is_reassigning:
                _log.info("Spark has more executors: starting again with more slots")
            self._is_reassigning = True
        if "availableNow" not in self._trigger and now >= self._next_assignment:
            running = self._running
            found = resolve(running.application, running.log).tasks
            ended = time.monotonic()
            self._next_assignment = ended + max(_REASSIGN_SECONDS, _COST_SHARE * (ended - now))
            if found != running.prepared.assignment.tasks:
                _log.info("topics or their partitions have changed: starting again with other tasks")
                self._is_reassigning = True

    def _maintain(self) -> None:
        self._running.log.maintain(SystemClock().now_ms())

    def _after(self, failure: SparkFailure) -> None:
        """Decide whether to start the query again after a failure that no task caused. Raises if not."""
        query = self._query
        assert query is not None
        if failure.stays:
            raise RuntimeUnavailableError(
                f"application {self._running.application.id!r}: Spark ended the query: {failure}"
            )
        self._failures_in_a_row += 1
        self._summary.workers_lost += 1
        self._statistics.note(f"Spark ended the query: {failure}")
        if self._failures_in_a_row > _MOST_RESTARTS:
            raise RuntimeUnavailableError(
                f"application {self._running.application.id!r}: Spark ended the query {self._failures_in_a_row} "
                f"times without a batch "
                f"in between; the last time it said: {failure}"
            )
        if self._failures_in_a_row >= 2 and not query.checkpoint.is_new:
            _log.warning("Spark ended the query (%s): starting it again with a new checkpoint", failure)
            # The old checkpoint would show that the log has lost commits: check that first.
            prepared = self._running.prepared
            prepared.committed.check(prepared.application, prepared.assignment)
            query.checkpoint.renew()
        else:
            _log.warning("Spark ended the query (%s): starting it again", failure)

    def _close_query(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            self._moves += query.placement.moves
            query.close()
            self._summary.workers_lost += query.slots.take_lost()

    def _finish(self) -> RunSummary:
        summary = self._summary
        summary.seconds = time.monotonic() - self._began
        summary.moves = self._all_moves()
        summary.tasks = len(self._running.prepared.assignment.tasks)
        summary.lag = sum(each.lag for each in self._lag())
        return summary


def _says_that_the_jvm_is_gone(error: Exception) -> bool:
    return isinstance(error, (ConnectionError, EOFError)) or type(error).__module__.startswith("py4j.")


def _stop_quietly(session: SparkSession) -> None:
    try:
        session.stop()
    except Exception as error:
        _log.debug("stopping Spark raised %s", error)
