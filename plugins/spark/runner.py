"""run: runs an application on Spark until it is done or stopped, and starts it again when workers are lost."""

from __future__ import annotations

import atexit
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from penstock import Application, Clock, ConfigError, Log, RuntimeUnavailableError, Settings
from penstock.plugins.engine.program.lease import LeaseKeeper
from penstock.plugins.engine.program.preparation import Prepared, check_open_files
from penstock.plugins.engine.run.companion import OpenApplication, prepared_application
from penstock.plugins.engine.run.order import RunOrder, Trigger
from penstock.plugins.engine.run.progress import EndedBatch, RunProgress, RunSummary
from penstock.plugins.engine.run.query import SteppingDriver, stepping
from penstock.plugins.engine.run.run_loop import RunLoop, StopRequest, begun
from penstock.plugins.engine.run.statistics import RunStatistics

from .interpreter import SparkFailure, log_interpreter
from .placement import LateExecutors, wait_for_executors
from .query import ApplicationQuery
from .sessions import check_conf, check_java, check_session, is_cluster, local_cores, make_session
from .settings import PARALLELISM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger("penstock.spark")


class RunningApplication(OpenApplication):
    """An application with its log, lease and session open, shared by `run` and the stepping driver."""

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
        """Open everything, and close it at the end. Raises the errors of `run`."""
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
        given: dict[str, Any] = {"server": self.server, "lease": self.lease, **options}
        return ApplicationQuery(self.session, self.prepared, self.log, self._late, self.repeats, **given)


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


_EXIT_SECONDS = 10.0
_STOP_SECONDS = 25.0
"""How long the JVM's end waits for the run's: Hadoop gives a hook 30 seconds."""
_SCRIPT_SECONDS = 3.0
"""How long it waits then for the end of the script, which may stop its session."""
_BEFORE_SPARK = 100
"""Hadoop's hooks run one after the other, the highest priority first; Spark's has 40."""


def says_that_the_jvm_is_gone(error: Exception) -> bool:
    """Return whether a call into the JVM failed because there is none any more."""
    return isinstance(error, (ConnectionError, EOFError)) or type(error).__module__.startswith("py4j.")


def how_the_jvm_ended(session: SparkSession) -> str:
    """Return with which exit status or signal Spark's JVM ended, and where to look for the reason."""
    process: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
    if process is None:
        return "Spark's JVM has ended (the output of spark-submit may say why)"
    try:
        code = process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"Spark's JVM (process {process.pid}) does not answer any more"
    if code >= 0:
        how = f"exit code {code}"
    else:
        how = f"signal {-code}, {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; the kernel kills it when memory is used up: see its log (dmesg)" if code == -signal.SIGKILL else ""
    return (
        f"Spark's JVM (process {process.pid}) has ended by {how}{hint}. What it said is above on standard error; a "
        f"crash of Java leaves hs_err_pid{process.pid}.log in the working directory"
    )


@contextmanager
def ending_before_the_jvm(session: SparkSession, ask_to_stop: Callable[[str], None]) -> Iterator[None]:
    """Let a signal to a JVM that is not this process's child stop the run first; `ask_to_stop` gets its name.

    spark-submit gets the signal, and its JVM would be gone in the middle of a batch.
    """
    if getattr(session.sparkContext._gateway, "proc", None) is not None:
        yield
        return
    hook = _Hook(ask_to_stop)
    try:
        hook.add(session)
    except Exception as error:
        _log.debug("the JVM will not wait for the run: %s", error)
        yield
        return
    try:
        yield
    finally:
        hook.end()


class _Hook:
    """A Runnable that the JVM calls when it is about to end."""

    def __init__(self, ask_to_stop: Callable[[str], None]) -> None:
        self._ask_to_stop = ask_to_stop
        self._is_called = False
        self._run_has_ended = threading.Event()
        self._script_has_ended = threading.Event()
        self._manager: Any = None

    def add(self, session: SparkSession) -> None:
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(session.sparkContext._gateway)  # type: ignore[no-untyped-call]
        jvm: Any = session._jvm
        self._manager = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        self._manager.addShutdownHook(self, _BEFORE_SPARK)

    def end(self) -> None:
        """Record the end of the run; the JVM need not ask any more."""
        self._run_has_ended.set()
        if not self._is_called:
            with suppress(Exception):
                self._manager.removeShutdownHook(self)
            return
        atexit.register(self._let_go)

    def _let_go(self) -> None:
        self._script_has_ended.set()
        # The answer to the JVM is sent by another thread, which ends with this process.
        time.sleep(0.2)

    # What the JVM calls.

    def run(self) -> None:
        self._is_called = True
        self._ask_to_stop(signal.SIGTERM.name)
        if self._run_has_ended.wait(_STOP_SECONDS):
            self._script_has_ended.wait(_SCRIPT_SECONDS)

    def hashCode(self) -> int:
        return id(self) % 2**31

    def equals(self, other: object) -> bool:
        return other is self

    def toString(self) -> str:
        return "penstock's run"

    class Java:
        implements: ClassVar = ["java.lang.Runnable"]
