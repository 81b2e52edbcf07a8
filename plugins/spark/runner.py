"""run: runs an application on Spark until it is done or stopped, and starts it again when workers are lost."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock, SystemClock, duration_ms
from penstock.errors import ConfigError, RuntimeUnavailableError
from penstock.plugins.applications.lag import PartitionLag, find_lag
from penstock.plugins.applications.preparation import resolve
from penstock.plugins.hosts.status import HostStatus
from penstock.plugins.metrics.endpoint import metrics_endpoint
from penstock.plugins.metrics.settings import METRICS_PORT
from penstock.plugins.runs.planning.rests import rest_seconds
from penstock.plugins.runs.progress import RunProgress, RunSummary
from penstock.plugins.runs.rates import BatchRates, RecentRates
from penstock.plugins.runs.statistics import RunStatistics
from penstock.plugins.runs.status_writer import StatusWriter
from penstock.plugins.runs.stop_request import StopRequest
from penstock.plugins.runtime.report import TaskReport
from penstock.record import TopicPartition
from penstock.settings.application import Application

from .query import ApplicationQuery
from .running import RunningApplication
from .session.jvm import ending_before_the_jvm, how_the_jvm_ended, says_that_the_jvm_is_gone
from .session.sessions import check_java, check_session
from .session.spark_conf import check_conf
from .session.spark_failure import SparkFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.05, 1.0
_LAG_SECONDS, _LONGEST_LAG_SECONDS = 0.5, 5.0
_MAINTENANCE_SECONDS = 60.0
_REASSIGN_SECONDS = 5.0
_COST_SHARE = 50
"""Periodic work pauses for so many times the time that it takes, so that it costs 2 % at most."""
_MOST_RESTARTS = 5
CONTINUOUS = "continuous"

_log = logging.getLogger("penstock.spark")


def run(
    application: Application,
    trigger: str = "available_now",
    *,
    session: SparkSession | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
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
    and stopped at the end, with `conf`, settings of Spark's. `on_progress` is called after each batch, and twice a
    second within one. `clock`: the wall clock that tasks see.

    Raises TopologyError for topics that are missing, IncompatibleStateError when the program no longer fits what it
    saved, LogError when another driver runs the application, RuntimeUnavailableError when Spark cannot start or keeps
    failing, and what a task failed with.
    """
    triggers, is_continuous = spark_trigger(trigger), trigger == CONTINUOUS
    if session is None:
        check_conf(conf or {})
        check_java()
    else:
        if conf:
            raise ConfigError("conf: a session that is given has its settings already; set them where it is made")
        check_session(session)
    with ExitStack() as stack:
        statistics = RunStatistics(application.id, trigger)
        stack.enter_context(metrics_endpoint(application.settings, statistics.status, lambda: statistics.lag))
        waiting = stack.enter_context(ExitStack())  # the JVM's end waits for what is left below it
        running = stack.enter_context(RunningApplication.open(application, session, master, conf))
        stack.enter_context(StatusWriter(running.log, statistics))
        stopped_by = stack.enter_context(StopRequest.listening(stop))
        waiting.enter_context(ending_before_the_jvm(running.session, stopped_by.ask))
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
        self._statistics = statistics
        self._rates: BatchRates | RecentRates = RecentRates(time.monotonic) if is_continuous else BatchRates()
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
                        self._statistics.stopped_by = self._stop.reason
                        break
                    self._after(failure)
                except Exception as error:
                    if not says_that_the_jvm_is_gone(error):
                        raise
                    if self._stop.reason is None:
                        how = how_the_jvm_ended(self._running.session)
                        raise RuntimeUnavailableError(
                            f"application {self._running.application.id!r}: {how}. "
                            "Nothing since the tasks' last commits counts, and nothing is lost: start it again"
                        ) from error
                    # The JVM got the signal as well, and does not wait for a batch.
                    self._statistics.stopped_by = self._stop.reason
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
            self._statistics.stopped_by = self._stop.reason
            return True
        if self._is_reassigning:
            if query.placement.is_outgrown:
                query.placement.give_up()
            self._close_query()
            self._running.prepare_again()
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
            self._statistics.batches += not is_heartbeat
            self._statistics.hosts = batch.hosts
            self._statistics.moves = self._all_moves()
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
        if self._on_progress is None and not METRICS_PORT.of(self._running.application.settings):
            return
        self._statistics.lag = lag = self._lag()
        now = time.monotonic()
        quiet = min(_LONGEST_LAG_SECONDS, self._quiet_seconds() / 10)
        self._next_lag = now + max(_LAG_SECONDS, quiet, _COST_SHARE * (now - began))
        if self._on_progress is None:
            return
        statistics, rate = self._statistics, self._rates.now()
        behind = sum(each.lag for each in lag)
        so_far = statistics.summary(now - self._began, behind, sum(host.open_tasks for host in statistics.hosts))
        self._on_progress(
            RunProgress(
                **{**vars(so_far), "hosts": hosts},
                positions={TopicPartition(each.topic, each.partition): each.next_offset for each in lag},
                ends={TopicPartition(each.topic, each.partition): each.end for each in lag},
                records_per_second=rate.records_in,
                records_out_per_second=rate.records_out,
                reports=reports,
                batch_seconds=seconds,
            )
        )

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
        self._statistics.workers_lost += 1
        self._statistics.note(f"Spark ended the query: {failure}")
        if self._failures_in_a_row > _MOST_RESTARTS:
            raise RuntimeUnavailableError(
                f"application {self._running.application.id!r}: Spark ended the query {self._failures_in_a_row} times "
                f"without a batch in between; the last time it said: {failure}"
            )
        if self._failures_in_a_row >= 2 and not query.checkpoint.is_new:
            self._log_restart("Spark ended the query (%s): starting it again with a new checkpoint", failure)
            # The old checkpoint would show that the log has lost commits: check that first.
            prepared = self._running.prepared
            prepared.committed.check(prepared.application, prepared.assignment)
            query.checkpoint.renew()
        else:
            self._log_restart("Spark ended the query (%s): starting it again", failure)

    def _log_restart(self, message: str, failure: SparkFailure) -> None:
        self._running.repeats.log(_log, logging.WARNING, message, message, failure)

    def _close_query(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            self._moves += query.placement.moves
            query.close()
            self._statistics.workers_lost += query.slots.take_lost()

    def _finish(self) -> RunSummary:
        self._statistics.moves = self._all_moves()
        tasks = len(self._running.prepared.assignment.tasks)
        lag = sum(each.lag for each in self._lag())
        return self._statistics.summary(time.monotonic() - self._began, lag, tasks)
