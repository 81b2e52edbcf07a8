"""RunLoop: one run of an application: starts queries, watches them, reports progress, and ends."""

from __future__ import annotations

import logging
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any, TypeVar

from penstock import Application, LeaseTakenError, SystemClock, TaskId, TopicPartition, TopologyError
from penstock.compiled import status
from penstock.plugins.engine.host.reports import HostStatus
from penstock.plugins.engine.program.lag import HeldBack, PartitionLag, find_lag
from penstock.plugins.engine.program.pausing import read_paused
from penstock.plugins.engine.program.preparation import resolve
from penstock.plugins.engine.program.visits import asked_visits
from penstock.plugins.engine.task.report import TaskReport

from .companion import Companion, OpenApplication, RunView, companions
from .order import FAILED, REBALANCING, RUNNING, STOPPED, STOPPING, RunOrder
from .planning.control import rest_seconds
from .progress import BatchRates, EndedBatch, RecentRates, RunProgress, RunSummary
from .query import Query
from .settings import METRICS_PORT, METRICS_REPORTERS, STATE_LISTENER
from .statistics import RunStatistics

_TURN_SECONDS = 0.05


class StopRequest:
    """The reason why the run should end: a signal, or the caller's event."""

    def __init__(self, event: threading.Event | None) -> None:
        self._event = event
        self._signalled = threading.Event()
        self._signal: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    @classmethod
    @contextmanager
    def listening(cls, event: threading.Event | None) -> Iterator[StopRequest]:
        """Handle SIGTERM and SIGINT while the block runs; a second one of either has its usual effect."""
        request = cls(event)
        if threading.current_thread() is not threading.main_thread():
            yield request
            return
        before = {number: signal.signal(number, request._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        request._before = before
        try:
            yield request
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            handler = self._before[signal.Signals(number)]
            signal.signal(number, handler)
            if callable(handler):
                handler(number, frame)
            return
        self._signal = signal.Signals(number).name
        self._signalled.set()

    def ask(self, name: str) -> None:
        """Take note of a signal that another process got; any thread may call it."""
        if self._signal is None:
            self._signal = name
            self._signalled.set()

    @property
    def reason(self) -> str | None:
        """The signal's name, "stop" for the caller's event, or None."""
        if self._signal is not None:
            return self._signal
        return "stop" if self._event is not None and self._event.is_set() else None

    def wait(self, seconds: float) -> None:
        """Wait, at most until there is a reason; when there is one already, for a moment."""
        if self.reason is not None:
            seconds = 0.001
        if self._event is None:
            self._signalled.wait(seconds)
            return
        # A signal does not end a wait for the caller's event, and this must not set that: look at both in turns.
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not (
            self._event.wait(min(left, _TURN_SECONDS)) or self._signalled.is_set()
        ):
            pass


_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.05, 1.0
_LAG_SECONDS, _LONGEST_LAG_SECONDS = 0.5, 5.0
_MAINTENANCE_SECONDS = 60.0
_REASSIGN_SECONDS = 5.0
_PAUSES_SECONDS = 2.0
_NONE: frozenset[int] = frozenset()
_COST_SHARE = 50
"""Periodic work pauses for so many times the time that it takes, so that it costs 2 % at most."""

_log = logging.getLogger("penstock.runs")
R = TypeVar("R", bound=OpenApplication)


@contextmanager
def begun(
    application: Application,
    order: RunOrder,
    opened: Callable[[Callable[[], bool]], AbstractContextManager[R]],
    *,
    has_tasks_here: bool,
) -> Iterator[tuple[R, StopRequest, RunStatistics]]:
    """Begin a run: open the application, with the run's companions around and beside it, and listen for a stop.

    `opened` opens the application; its argument is a function that returns whether to wait (further) for another
    driver's end. `has_tasks_here`: the tasks run on this machine.
    """
    lifecycle = order.lifecycle
    lifecycle.listen(application.id, STATE_LISTENER.of(application.settings))
    statistics = RunStatistics(application.id, order.trigger.text, lifecycle=lifecycle)
    view = RunView(application, order.waits, has_tasks_here, statistics.status, lambda: statistics.lag)
    try:
        with _surroundings([companion(view) for companion in companions()], order, opened, statistics) as (
            running,
            stop,
        ):
            lifecycle.enter(REBALANCING)
            yield running, stop, statistics
    except BaseException as error:
        # A caller that waited for another driver's end, and does not any more, has stopped a run without tasks.
        lifecycle.enter(STOPPED if isinstance(error, LeaseTakenError) and _is_stopped(order) else FAILED)
        raise
    lifecycle.enter(STOPPED)


def _is_stopped(order: RunOrder) -> bool:
    return order.waits and order.stop is not None and order.stop.is_set()


@contextmanager
def _surroundings(
    beside: Sequence[Companion],
    order: RunOrder,
    opened: Callable[[Callable[[], bool]], AbstractContextManager[R]],
    statistics: RunStatistics,
) -> Iterator[tuple[R, StopRequest]]:
    def is_wanted() -> bool:
        if not order.is_waiting_wanted():
            return False
        for each in beside:
            each.wait()
        return True

    with ExitStack() as stack:
        for each in beside:
            stack.enter_context(each.around())
        running = stack.enter_context(opened(is_wanted))
        statistics.begin()  # from now on the time of the run counts
        with ExitStack() as within:
            within.push(_end(statistics))
            for each in beside:
                within.enter_context(each.beside(running))
                within.push(_end(statistics))  # the status that is left next says how those behind it have ended
            yield running, within.enter_context(StopRequest.listening(order.stop))


def _end(statistics: RunStatistics) -> Callable[[type | None, BaseException | None, object], None]:
    return lambda kind, error, trace: statistics.end(error)


class RunLoop(ABC):
    """One run. An engine says how a query is made, and which of its failures a new query helps against."""

    def __init__(
        self,
        running: OpenApplication,
        order: RunOrder,
        stop: StopRequest,
        statistics: RunStatistics,
    ) -> None:
        self._running = running
        self._trigger = trigger = order.trigger
        self._on_progress = order.on_progress
        self._clock = order.clock
        self._lifecycle = order.lifecycle
        self._stop = stop
        self._query: Query | None = None
        self._began = time.monotonic()
        self._statistics = statistics
        self._rates: BatchRates | RecentRates = RecentRates(time.monotonic) if trigger.is_continuous else BatchRates()
        self._reports: list[TaskReport] = []
        """Reports since the last progress."""
        self._next_lag = self._next_assignment = self._next_pauses = 0.0
        self._found: Mapping[TaskId, tuple[TopicPartition, ...]] | str | None = None
        """The tasks that the last look at the topics found, or its error."""
        self._worked_at = self._began
        self._next_maintenance = self._began + _MAINTENANCE_SECONDS
        self._held_back = HeldBack(running.application.id)
        self._is_reassigning = False
        self._moves: Counter[str] = Counter()
        """Slots that moved in earlier queries, by reason."""

    @abstractmethod
    def new_query(self, clock_ms: int | None) -> Query:
        """Return a new query, not started. `clock_ms`: the time that its batches get; None for the machine's."""

    def until_done(self) -> RunSummary:
        """Run queries until one ends as it should."""
        _log.debug("compiled parts: %s", ", ".join(f"{part}: {state}" for part, state in status().items()))
        try:
            while not self.try_query():
                pass
            self._lifecycle.enter(STOPPING)
        finally:
            self._close_query()
        self._maintain()
        return self._finish()

    def try_query(self) -> bool:
        """Start a query and watch it to its end. Return False when it must be started again."""
        if self._query is None:
            self._query = self.new_query(None if self._clock is None else self._clock.now_ms())
        query = self._query
        self._is_reassigning = False
        self._lifecycle.paused = _NONE
        self._look_at_pauses(query)
        # If this process was frozen while the query was made, it must not take the tasks from its successor.
        if self._running.lease.lost is not None:
            raise self._running.lease.lost
        query.start(self._trigger)
        self._lifecycle.enter(REBALANCING)
        while True:
            self._statistics.turn()
            ended = not query.is_active
            self._take(query.poll())
            if ended:
                break
            if self._wants_to_stop():
                if self._stop.reason is not None:
                    self._lifecycle.enter(STOPPING)
                query.drain()
                if query.is_at_rest():
                    query.stop()
                    continue
            if self._running.lease.lost is not None:
                query.stop()
                raise self._running.lease.lost
            self._do_periodic_work(query)
            # Each look costs the engine some time as well: look rarely while nothing happens.
            self._stop.wait(rest_seconds(self._quiet_seconds(), shortest=_POLL_SECONDS, longest=_LONGEST_POLL_SECONDS))
        if self._stop.reason is not None:
            self._statistics.stopped_by = self._stop.reason
            return True
        if self._is_reassigning:
            self._close_query()
            self._running.prepare_again()
            return False
        return True

    def _wants_to_stop(self) -> bool:
        return self._stop.reason is not None or self._is_reassigning

    def _take(self, batches: Sequence[EndedBatch]) -> None:
        for batch in batches:
            is_heartbeat = batch.number is None
            if batch.reports or not is_heartbeat:
                self._worked_at = time.monotonic()
            self._statistics.batches += not is_heartbeat
            self._statistics.hosts = batch.hosts
            self._statistics.moves = self._all_moves()
            if self._query is not None:
                self._statistics.take(batch, self._query.slots)
                self._lifecycle.enter(REBALANCING if self._query.slots.unopened() else RUNNING)
                self._lifecycle.paused = self._query.slots.paused_everywhere() if self._query.slots.paused else _NONE
            self._rates.add(batch.reports, batch.seconds)
            self._running.take(batch.reports)
            self._reports += batch.reports
            if not is_heartbeat or time.monotonic() >= self._next_lag:
                self._report_progress(batch.seconds, batch.hosts)

    def _report_progress(self, seconds: float = 0.0, hosts: tuple[HostStatus, ...] = ()) -> None:
        reports, self._reports = tuple(self._reports), []
        began = time.monotonic()
        self._next_lag = began + _LAG_SECONDS
        settings = self._running.application.settings
        if self._on_progress is None and not (METRICS_PORT.of(settings) or METRICS_REPORTERS.of(settings)):
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
                restoring={} if self._query is None else dict(self._query.slots.restoring),
            )
        )

    def _quiet_seconds(self) -> float:
        """Return the seconds since the last batch with work; 0 for a run that should end."""
        return 0.0 if self._wants_to_stop() else time.monotonic() - self._worked_at

    def _all_moves(self) -> dict[str, int]:
        return dict(self._moves if self._query is None else self._moves + self._query.moves)

    def _lag(self) -> list[PartitionLag]:
        prepared = self._running.prepared
        now_ms = (self._clock or SystemClock()).now_ms()
        return find_lag(prepared.application, prepared.assignment, self._running.log, now_ms)

    def _do_periodic_work(self, query: Query) -> None:
        now, running = time.monotonic(), self._running
        if self._clock is not None:
            query.set_control(clock_ms=self._clock.now_ms())
        if now >= self._next_lag:
            self._report_progress()
        if now >= self._next_pauses or self._lifecycle.looks_at_pauses.is_set():
            self._look_at_pauses(query)
        if now >= self._next_maintenance:
            self._next_maintenance = now + _MAINTENANCE_SECONDS
            self._maintain()
            assignment = running.prepared.assignment
            sources = [
                partition for partition in running.prepared.partitions if partition.topic not in assignment.internal
            ]
            self._held_back.look(running.log, sources)
        if self._trigger.drains:
            return
        if query.is_outgrown:
            if not self._is_reassigning:
                _log.info("there is room for more processes: starting again with more slots")
            self._is_reassigning = True
        if now >= self._next_assignment:
            self._look_at_topics(now)

    def _look_at_topics(self, now: float) -> None:
        """Start again with other tasks when topics or partitions have changed. Raises TopologyError for missing ones.

        Only what two looks find alike counts: a list of topics may lack some for a moment.
        """
        running = self._running
        found: Mapping[TaskId, tuple[TopicPartition, ...]] | str
        try:
            found = resolve(running.application, running.log).tasks
        except TopologyError as error:
            found = str(error)
            if found == self._found:
                raise
        ended = time.monotonic()
        changed = found != running.prepared.assignment.tasks
        if changed and found == self._found:
            _log.info("topics or their partitions have changed: starting again with other tasks")
            self._is_reassigning = True
        self._found = found
        rest = _REASSIGN_SECONDS / 5 if changed else _REASSIGN_SECONDS  # the second look soon
        self._next_assignment = ended + max(rest, _COST_SHARE * (ended - now))

    def _look_at_pauses(self, query: Query) -> None:
        """Read which sub-topologies are paused, and which visits were asked for; pass changes to the query."""
        began, running, lifecycle = time.monotonic(), self._running, self._lifecycle
        lifecycle.looks_at_pauses.clear()
        paused = read_paused(running.application.id, running.log).of(running.application)
        visits = self._statistics.visits = asked_visits(running.application.id, running.log)
        if visits != list(query.visits):
            query.visit(visits)
        now = time.monotonic()
        self._next_pauses = now + max(_PAUSES_SECONDS, _COST_SHARE * (now - began))
        if paused == query.slots.paused:
            return
        query.pause(paused)
        lifecycle.paused &= paused
        names = ", ".join(map(str, sorted(paused))) or "none"
        _log.info("application %r: paused sub-topologies: %s", running.application.id, names)

    def _maintain(self) -> None:
        self._running.log.maintain(SystemClock().now_ms())

    def _close_query(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            self._moves += query.moves
            query.close()
            self._statistics.workers_lost += query.slots.take_lost()

    def _finish(self) -> RunSummary:
        self._statistics.moves = self._all_moves()
        tasks = len(self._running.prepared.assignment.tasks)
        lag = sum(each.lag for each in self._lag())
        return self._statistics.summary(time.monotonic() - self._began, lag, tasks)
