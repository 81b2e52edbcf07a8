"""Watch: what an application does, as its log shows it, with rates and a history of an hour."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from penstock import HISTOGRAM_BOUNDS, Application, Clock, Log, PenstockError, SystemClock
from penstock.plugins.engine.program.lag import PartitionLag, present_lag
from penstock.plugins.engine.program.run_status import RUNNING, RunStatus, StatusTopic, TaskStatus
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.report import added
from penstock.support.repeats import Repeats

from .wording import visiting

INTERVAL_SECONDS = 5.0
"""Seconds between two looks: drivers write their status as often."""
MOST_SAMPLES = 720
"""How many samples are kept: an hour of them at this interval."""
_IDLE_SECONDS = 3_600.0
LOG_TIMEOUT = "10s"
"""How long a page waits for the log. Tasks wait longer (`task_timeout`), but pages share a few threads."""
NEVER_RAN, UNKNOWN = "never started", "unknown"

_log = logging.getLogger("penstock.console")


@dataclass(frozen=True)
class Rate:
    """Records a second, in and out."""

    records_in: float
    records_out: float


@dataclass(frozen=True)
class Interval:
    """A run between two of its statuses; without fields if there are none.

    `nodes`: the rate of each. `latency`: of 99 % of the records, from their timestamp to the end of their processing,
    in seconds at most; None if there were none.
    """

    rate: Rate | None = None
    nodes: Mapping[str, Rate] = field(default_factory=dict)
    latency: float | None = None


@dataclass(frozen=True)
class Sample:
    """The application at one time. `rate` and `latency`: since the status before, as in Interval.

    `memory_bytes`: of the task hosts; None if the run does not go on. `state_bytes`: the local state of all tasks on
    disk.
    """

    at_ms: int
    rate: Rate | None
    latency: float | None
    lag: int
    memory_bytes: int | None
    state_bytes: int


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
    `interval`: the run between its last two statuses, while it goes on. `samples`: the oldest first. `error`: why the
    log could not be read, or the lag alone; what could not be read is then as of the look before.
    """

    application_id: str
    now_ms: int
    run: RunStatus | None = None
    lag: Sequence[PartitionLag] = ()
    interval: Interval = Interval()
    samples: Sequence[Sample] = ()
    error: PenstockError | None = None

    @property
    def state(self) -> str:
        """The state of the run, "never started", or "unknown": the log could not be read."""
        if self.run is None:
            return NEVER_RAN if self.error is None else UNKNOWN
        return self.run.state(self.now_ms)

    @property
    def phase(self) -> str:
        """The state in more words: of a run that goes on, whether it rebalances or stops, what is paused, visits."""
        run = self.run
        if run is None or self.state != RUNNING:
            return self.state
        paused = f", sub-topology {', '.join(map(str, run.paused))} paused" if run.paused else ""
        visits = f", {visiting(run)}" if visiting(run) else ""
        return f"{run.phase or self.state}{paused}{visits}"

    @property
    def trouble(self) -> str:
        """Why a run that goes on is not ready, or how it failed; "" if all is well."""
        if self.run is None:
            return ""
        return self.run.health(self.now_ms).reason if self.state == RUNNING else self.run.error or ""

    @property
    def is_lag_known(self) -> bool:
        """Whether the lag could be read, now or at a look before."""
        return self.error is None or bool(self.lag)

    @property
    def total_lag(self) -> int:
        """The sum of all partitions' lag."""
        return sum(each.lag for each in self.lag)

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
        self._named = self._application = application
        self.log = log
        self._status = StatusTopic(log, application.id)
        self._clock = clock or SystemClock()
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._view = View(application.id, self._clock.now_ms())

    def look(self) -> View:
        """Return the application now; without the log, the view of the look before with the error.

        Without a topic of the program, so is the lag alone: a run of another program needs no such topic.
        """
        before, now_ms = self._view, self._clock.now_ms()
        try:
            self._follow_layout()
            run = self._status.read()
        except PenstockError as error:
            self._view = replace(before, now_ms=now_ms, error=error)
            return self._view
        lag: Sequence[PartitionLag] = before.lag if before.application_id == self._application.id else ()
        failure: PenstockError | None = None
        try:
            lag = present_lag(self._application, self.log)
        except PenstockError as error:
            failure = error
        is_same = run is not None and before.run is not None and run.written_ms == before.run.written_ms
        is_running = run is not None and run.state(now_ms) == RUNNING
        # A run that is over, or lost, writes no more: its last rates would be shown for ever.
        interval = Interval() if not is_running else before.interval if is_same else _interval(before.run, run)
        memory = None if run is None or not is_running else sum(each.rss_bytes for each in run.hosts)
        state = 0 if run is None else sum(each.state_bytes or 0 for each in run.tasks)
        total = sum(each.lag for each in lag)
        if failure is None:
            self._samples.append(Sample(now_ms, interval.rate, interval.latency, total, memory, state))
        self._view = View(self._application.id, now_ms, run, lag, interval, tuple(self._samples), failure)
        return self._view

    def _follow_layout(self) -> None:
        """Look at the application where it is in the log since it was resharded."""
        stored = stored_application(self._named, self.log)
        if stored.id != self._application.id:
            self._application, self._status = stored, StatusTopic(self.log, stored.id)


def _interval(before: RunStatus | None, run: RunStatus | None) -> Interval:
    """Return a run between two of its statuses; without fields for those of two runs."""
    if before is None or run is None or before.started_ms != run.started_ms or before.driver != run.driver:
        return Interval()
    seconds = (run.written_ms - before.written_ms) / 1000
    if seconds <= 0:
        return Interval()
    nodes = {
        name: Rate((counts["in"] - old["in"]) / seconds, (counts["out"] - old["out"]) / seconds)
        for name, counts in run.nodes.items()
        for old in [before.nodes.get(name, {"in": 0, "out": 0})]
    }
    rate = Rate((run.records_in - before.records_in) / seconds, (run.records_out - before.records_out) / seconds)
    now, then = _latencies(run), _latencies(before)
    latencies = [count - old for count, old in zip(now, then, strict=True)] if now and then else now
    return Interval(rate, nodes, quantile(latencies, 0.99))


def _latencies(run: RunStatus) -> list[float]:
    """Return the histogram of all records' latencies, as data; empty if nothing was counted."""
    found: list[float] = []
    for data in run.times.get("latency", {}).values():
        found = added(found, data)
    return found


def quantile(data: Sequence[float], share: float) -> float | None:
    """Return the seconds that a share of what a histogram has counted took at most; None if it is empty.

    Within a bucket it is interpolated; in the last one, which has no bound, it is the bound of the one before.

    >>> quantile([0.0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0.5)
    0.0075
    """
    wanted = share * sum(data[1:])
    if not wanted:
        return None
    before, least = 0.0, 0.0
    for count, bound in zip(data[1:], HISTOGRAM_BOUNDS, strict=False):
        if before + count >= wanted:
            return least + (bound - least) * (wanted - before) / count
        before, least = before + count, bound
    return float(HISTOGRAM_BOUNDS[-1])


class Watching:
    """A watch in a thread of its own, which looks every few seconds; any thread asks for the view.

    It looks for an hour after the last question: a page that nobody reads costs the log nothing.
    """

    def __init__(self, application: Application, interval: float = INTERVAL_SECONDS) -> None:
        self._application = application.with_settings(task_timeout=LOG_TIMEOUT)
        self._interval = interval
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._asked_at = 0.0
        self._view = View(application.id, 0)
        self._repeats = Repeats(SystemClock().now_ms)

    def view(self) -> View:
        """Return the application as of the last look; the first question waits for one."""
        with self._lock:
            self._asked_at = time.monotonic()
            if self._thread is None and not self._ending.is_set():
                try:
                    watch = Watch(self._application, open_log(self._application.settings))
                except PenstockError as error:
                    return self._logged(replace(self._view, now_ms=SystemClock().now_ms(), error=error))
                self._view = self._look(watch)
                self._thread = threading.Thread(target=self._run, args=[watch], name="penstock-console", daemon=True)
                self._thread.start()
            return self._view

    def _run(self, watch: Watch) -> None:
        with closing(watch.log):
            while not self._ending.wait(self._interval):
                view = self._look(watch)
                with self._lock:
                    self._view = view
                    if time.monotonic() > self._asked_at + _IDLE_SECONDS:
                        self._thread = None
                        return

    def _look(self, watch: Watch) -> View:
        try:
            return self._logged(watch.look())
        except Exception as error:  # pages that show an old view for ever would seem right
            failed = PenstockError(f"{type(error).__name__}: {error}")
            return self._logged(replace(self._view, now_ms=SystemClock().now_ms(), error=failed))

    def _logged(self, view: View) -> View:
        """Return a view, after a line in the log if it has an error: pages say that there is one."""
        if view.error is not None:
            self._repeats.log(
                _log, logging.WARNING, type(view.error).__name__, "application %r cannot be watched: %s",
                view.application_id, view.error,
            )  # fmt: skip
        return view

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._lock:
            self._ending.set()
            thread = self._thread
        if thread is not None:
            thread.join()
