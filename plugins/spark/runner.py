"""run: runs an application on Spark until it is done or stopped, and starts it again when workers are lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import Application, Clock, ConfigError, Log, RuntimeUnavailableError, Settings
from penstock.plugins.engine.program.lease import LeaseKeeper
from penstock.plugins.engine.program.preparation import Prepared, check_open_files
from penstock.plugins.engine.run.open_application import OpenApplication, prepared_application
from penstock.plugins.engine.run.order import RunOrder, Trigger
from penstock.plugins.engine.run.progress import EndedBatch, RunProgress, RunSummary
from penstock.plugins.engine.run.query import SteppingDriver, stepping
from penstock.plugins.engine.run.run_loop import RunLoop, StopRequest, begun
from penstock.plugins.engine.run.statistics import RunStatistics

from .placement.executors import LateExecutors, wait_for_executors
from .query import ApplicationQuery
from .session.interpreter import SparkFailure, log_interpreter
from .session.jvm import ending_before_the_jvm, how_the_jvm_ended, says_that_the_jvm_is_gone
from .session.sessions import check_conf, check_java, check_session, is_cluster, local_cores, make_session
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
    server = session.sparkContext._accumulatorServer
    if server is not None:
        # Its end waits for up to a second, and nobody waits for it.
        session.sparkContext._accumulatorServer = None  # type: ignore[assignment]
        threading.Thread(target=server.shutdown, name="penstock-accumulators", daemon=True).start()
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


_MOST_RESTARTS = 5


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
    until: str | None = None,
) -> RunSummary:
    """Run `application` on Spark and return what it did.

    `trigger` "available_now": process what the topics hold now, and return. A duration such as "10s": a batch that
    often (as often as possible with "0s"), until SIGTERM, Ctrl-C or `stop`; each ends it after the running batch.
    "continuous": tasks read, process and commit on their own, every `commit_interval`, until the same; each ends it
    after one more commit.
    `session`: an existing SparkSession, which stays open; otherwise one is made on `master` (all cores of this host)
    and stopped at the end, with `conf`, settings of Spark's. `on_progress` is called after each batch, and twice a
    second within one. `clock`: the wall clock that tasks see. `until` "drained": "available_now" goes on until topics
    are read to their ends that the program itself writes.

    Raises TopologyError for topics that are missing, IncompatibleStateError when the program no longer fits what it
    saved, LogError when another driver runs the application, RuntimeUnavailableError when Spark cannot start or keeps
    failing, and what a task failed with.
    """
    order = RunOrder(Trigger.of(trigger, until), on_progress, clock, stop)
    return run_order(application, order, session=session, master=master, conf=conf)


def run_order(
    application: Application,
    order: RunOrder,
    *,
    session: SparkSession | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> RunSummary:
    """Run `application` as `run` does."""
    if session is None:
        check_conf(conf or {})
        check_java()
    else:
        if conf:
            raise ConfigError("conf: a session that is given has its settings already; set them where it is made")
        check_session(session)
    opening = partial(RunningApplication.open, application, session, master, conf)
    # The JVM's end waits for all of the run.
    with (
        ExitStack() as waiting,
        begun(application, order, opening, has_tasks_here=False) as (running, stop, statistics),
    ):
        waiting.enter_context(ending_before_the_jvm(running.session, stop.ask))
        order.note_start()
        return _SparkRun(running, order, stop, statistics).until_done()


class _SparkRun(RunLoop):
    """One call of `run`."""

    def __init__(
        self,
        running: RunningApplication,
        order: RunOrder,
        stop: StopRequest,
        statistics: RunStatistics,
    ) -> None:
        super().__init__(running, order, stop, statistics)
        self._spark = running
        self._failures_in_a_row = 0
        self._last_query: ApplicationQuery | None = None

    def new_query(self, clock_ms: int | None) -> ApplicationQuery:
        self._last_query = self._spark.query(clock_ms=clock_ms, is_continuous=self._trigger.is_continuous)
        return self._last_query

    def try_query(self) -> bool:
        """Also start it again after a failure that no task caused."""
        try:
            return super().try_query()
        except SparkFailure as failure:
            if self._stop.reason is not None:
                self._statistics.stopped_by = self._stop.reason
                return True
            self._after(failure)
            return False
        except Exception as error:
            if not says_that_the_jvm_is_gone(error):
                raise
            if self._stop.reason is None:
                how = how_the_jvm_ended(self._spark.session)
                raise RuntimeUnavailableError(
                    f"application {self._running.application.id!r}: {how}. "
                    "Nothing since the tasks' last commits counts, and nothing is lost: start it again"
                ) from error
            # The JVM got the signal as well, and does not wait for a batch.
            self._statistics.stopped_by = self._stop.reason
            return True

    def _take(self, batches: Sequence[EndedBatch]) -> None:
        if batches:
            self._failures_in_a_row = 0
        super()._take(batches)

    def _close_query(self) -> None:
        query = self._last_query
        if query is not None and self._is_reassigning and self._stop.reason is None and query.is_outgrown:
            query.placement.give_up()
        super()._close_query()

    def _after(self, failure: SparkFailure) -> None:
        """Decide whether to start the query again after a failure that no task caused. Raises if not."""
        query = self._last_query
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
