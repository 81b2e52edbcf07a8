"""Watch: what an application does, as its log shows it, with rates and a history of an hour."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from penstock import Application, Clock, Log, PenstockError, SystemClock
from penstock.plugins.applications.lag import PartitionLag, present_lag
from penstock.plugins.applications.run_status import RunStatus, TaskStatus
from penstock.plugins.applications.status_topic import StatusTopic
from penstock.plugins.runtime.locations import open_log

INTERVAL_SECONDS = 5.0
"""Seconds between two looks: drivers write their status as often."""
MOST_SAMPLES = 720
"""How many samples are kept: an hour of them at this interval."""
_IDLE_SECONDS = 3_600.0
_LOG_TIMEOUT = "10s"
NEVER_RAN = "never started"


@dataclass(frozen=True)
class Rate:
    """Records a second, in and out."""

    records_in: float
    records_out: float


@dataclass(frozen=True)
class Sample:
    """The application at one time. `rate`: since the status before; None if there was none of this run."""

    at_ms: int
    rate: Rate | None
    lag: int
    memory_bytes: int


@dataclass(frozen=True)
class TaskView:
    """A task with its lag (offsets; None: the program does not have it). `status`: None if no driver has named it."""

    name: str
    lag: int | None
    status: TaskStatus | None


@dataclass(frozen=True)
class View:
    """An application at one time.

    `run`: the latest status that a driver wrote; None if there is none. `lag`: of each partition that a task reads.
    `rates`: of nodes, between the last two statuses of the run. `samples`: the oldest first. `error`: why the log could
    not be read; the rest is then as of the look before.
    """

    application_id: str
    now_ms: int
    run: RunStatus | None = None
    lag: Sequence[PartitionLag] = ()
    rates: Mapping[str, Rate] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    error: PenstockError | None = None

    @property
    def state(self) -> str:
        """The state of the run, or "never started"."""
        return NEVER_RAN if self.run is None else self.run.state(self.now_ms)

    @property
    def total_lag(self) -> int:
        """The sum of all partitions' lag."""
        return sum(each.lag for each in self.lag)

    @property
    def rate(self) -> Rate | None:
        """The rate of the latest sample."""
        return self.samples[-1].rate if self.samples else None

    def tasks(self) -> list[TaskView]:
        """Return the tasks: first those of the program, in its order, then others that the driver has named."""
        lags: dict[str, int] = {}
        for each in self.lag:
            lags[each.task] = lags.get(each.task, 0) + each.lag
        known = {} if self.run is None else {each.task: each for each in self.run.tasks}
        return [TaskView(name, lags.get(name), known.get(name)) for name in {**lags, **known}]


class Watch:
    """Looks at an application through its log; one thread at a time may call `look`."""

    def __init__(self, application: Application, log: Log, clock: Clock | None = None) -> None:
        self._application = application
        self.log = log
        self._status = StatusTopic(log, application.id)
        self._clock = clock or SystemClock()
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._view = View(application.id, self._clock.now_ms())

    def look(self) -> View:
        """Return the application now; without the log, the view of the look before with the error."""
        before, now_ms = self._view, self._clock.now_ms()
        try:
            run = self._status.read()
            lag = present_lag(self._application, self.log)
        except PenstockError as error:
            self._view = replace(before, now_ms=now_ms, error=error)
            return self._view
        if run is None or before.run is None or run.written_ms != before.run.written_ms:
            rate, rates = _rates(before.run, run)
        else:
            rate, rates = before.rate, before.rates
        memory = 0 if run is None else sum(each.rss_bytes for each in run.hosts)
        self._samples.append(Sample(now_ms, rate, sum(each.lag for each in lag), memory))
        self._view = View(self._application.id, now_ms, run, lag, rates, tuple(self._samples))
        return self._view


def _rates(before: RunStatus | None, run: RunStatus | None) -> tuple[Rate | None, Mapping[str, Rate]]:
    """Return the rate of a run and of its nodes between two statuses; none between those of two runs."""
    if before is None or run is None or before.started_ms != run.started_ms or before.driver != run.driver:
        return None, {}
    seconds = (run.written_ms - before.written_ms) / 1000
    if seconds <= 0:
        return None, {}
    nodes = {
        name: Rate((counts["in"] - old["in"]) / seconds, (counts["out"] - old["out"]) / seconds)
        for name, counts in run.nodes.items()
        for old in [before.nodes.get(name, {"in": 0, "out": 0})]
    }
    return Rate((run.records_in - before.records_in) / seconds, (run.records_out - before.records_out) / seconds), nodes


class Watching:
    """A watch in a thread of its own, which looks every few seconds; any thread asks for the view.

    It looks for an hour after the last question: a page that nobody reads costs the log nothing.
    """

    def __init__(self, application: Application, interval: float = INTERVAL_SECONDS) -> None:
        # A page does not wait for minutes, as tasks do.
        self._application = application.with_settings(task_timeout=_LOG_TIMEOUT)
        self._interval = interval
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._asked_at = 0.0
        self._view = View(application.id, 0)

    def view(self) -> View:
        """Return the application as of the last look; the first question waits for one."""
        with self._lock:
            self._asked_at = time.monotonic()
            if self._thread is None and not self._ending.is_set():
                try:
                    watch = Watch(self._application, open_log(self._application.settings))
                except PenstockError as error:
                    return replace(self._view, now_ms=SystemClock().now_ms(), error=error)
                self._view = watch.look()
                self._thread = threading.Thread(target=self._run, args=[watch], name="penstock-console", daemon=True)
                self._thread.start()
            return self._view

    def _run(self, watch: Watch) -> None:
        with closing(watch.log):
            while not self._ending.wait(self._interval):
                view = watch.look()
                with self._lock:
                    self._view = view
                    if time.monotonic() > self._asked_at + _IDLE_SECONDS:
                        self._thread = None
                        return

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._lock:
            self._ending.set()
            thread = self._thread
        if thread is not None:
            thread.join()
