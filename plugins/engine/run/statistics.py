"""RunStatistics: the counts of a run so far. StatusWriter writes them to the log, for `penstock status`."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType

from penstock import Clock, Log, PenstockError, SystemClock
from penstock.plugins.engine.host.executor_identity import host_name
from penstock.plugins.engine.host.reports import HostStatus
from penstock.plugins.engine.program.lag import PartitionLag
from penstock.plugins.engine.program.lease import driver_name
from penstock.plugins.engine.program.run_status import (
    LOST_AFTER_SECONDS,
    Event,
    RunStatus,
    SlotHost,
    StatusTopic,
    TaskStatus,
    VisitOfRun,
)
from penstock.plugins.engine.task.logged_task import FIRST
from penstock.plugins.engine.task.report import DetailedCounts, TaskReport, added
from penstock.support.repeats import Repeats
from penstock.task.visits import Visit

from .companion import Companion, OpenApplication
from .order import Lifecycle
from .progress import EndedBatch, RunSummary
from .slots import Slots

_WINDOW_SECONDS, _BUCKET_SECONDS = 60.0, 5.0
_MOST_EVENTS = 20
_MOST_NAMED = 5


class RunStatistics:
    """Counts of a run: its runner adds, any thread asks. `seconds` is a clock that never goes back."""

    def __init__(
        self,
        application_id: str,
        trigger: str,
        clock: Clock | None = None,
        seconds: Callable[[], float] = time.monotonic,
        lifecycle: Lifecycle | None = None,
    ) -> None:
        self.application_id = application_id
        self.counts = DetailedCounts()
        self.batches = self.workers_lost = 0
        self.hosts: tuple[HostStatus, ...] = ()
        self.moves: Mapping[str, int] = {}
        self.stopped_by: str | None = None
        self.lag: Sequence[PartitionLag] = ()
        """The lag as of the last look."""
        self.visits: Sequence[Visit] = ()
        """Visits by age, the oldest first, as of the last poll."""
        self._trigger = trigger
        self._clock = clock or SystemClock()
        self._seconds = seconds
        self._lifecycle = lifecycle or Lifecycle()
        self._turned_ms: int | None = None
        self._heard: dict[int, tuple[HostStatus, int]] = {}
        """By slot, the last answer of its host, and when it arrived."""
        self._started_ms = self._clock.now_ms()
        self._ended_ms: int | None = None
        self._error: str | None = None
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskStatus] = {}
        self._slots: Slots | None = None
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._buckets: deque[tuple[float, Counter[str]]] = deque()
        """Records in by task, since a time."""
        self._first_seconds: float | None = None
        self._times: dict[str, dict[str, list[float]]] = {}
        self._store_changes: Counter[str] = Counter()
        self._store_calls: dict[str, Sequence[float]] = {}
        self._calls: dict[str, Sequence[float]] = {}

    # ------------------------------------------------------------------ told by the runner

    def take(self, batch: EndedBatch, slots: Slots) -> None:
        """Count the tasks' work in a batch, or between two heartbeats."""
        now_ms = self._clock.now_ms()
        with self._lock:
            self._slots = slots
            for slot, host in slots.hosts.items():
                if self._heard.get(slot, (None, 0))[0] is not host:
                    self._heard[slot] = host, now_ms
            if self._first_seconds is None:
                self._first_seconds = self._seconds() - batch.seconds
            for report in batch.reports:
                self.counts += report
                self._count(report, now_ms)
            self._events += [Event(now_ms, loss) for loss in batch.losses]
            self._events += [Event(now_ms, text) for text in _reopened(batch.reports)]

    def begin(self) -> None:
        """Set the start of the run to now: until then it waited for another driver's end, or was prepared."""
        self._started_ms = self._clock.now_ms()

    def turn(self) -> None:
        """Record a turn of the run's loop."""
        self._turned_ms = self._clock.now_ms()

    def note(self, text: str) -> None:
        """Record a fault that was repaired."""
        with self._lock:
            self._events.append(Event(self._clock.now_ms(), text))

    def end(self, error: BaseException | None) -> None:
        """Record the end of the run, and its error."""
        with self._lock:
            self._ended_ms = self._clock.now_ms()
            self._error = None if error is None else str(error) or type(error).__name__

    def _count(self, report: TaskReport, now_ms: int) -> None:
        task = self._tasks.get(report.task_id) or TaskStatus(report.task_id, -1)
        self._tasks[report.task_id] = replace(
            task + report,
            restore_seconds=task.restore_seconds + report.phases.get("restore", 0.0),
            last_commit_ms=now_ms if report.commits else task.last_commit_ms,
            punctuations=task.punctuations + report.punctuations,
            state_bytes=task.state_bytes if report.state_bytes is None else report.state_bytes,
            visits=report.visits,
            in_flight=report.in_flight,
        )
        self._store_changes.update(report.store_changes)
        for so_far, more in ((self._store_calls, report.store_calls), (self._calls, report.calls)):
            for name, counts in more.items():
                before = so_far.get(name, (0,) * len(counts))
                so_far[name] = [one + other for one, other in zip(before, counts, strict=True)]
        subtopology = report.task_id.partition("_")[0]
        for name, data in report.times.items():
            of = self._times.setdefault(name, {})
            of[subtopology] = added(of.get(subtopology, ()), data)
        if report.records_in:
            now = self._seconds()
            if not self._buckets or now >= self._buckets[-1][0] + _BUCKET_SECONDS:
                self._buckets.append((now, Counter()))
            self._buckets[-1][1][report.task_id] += report.records_in

    # ------------------------------------------------------------------ asked by others

    def status(self) -> RunStatus:
        """Return the status now."""
        with self._lock:
            slots, rates, now_ms = self._slots, self._rates(), self._clock.now_ms()
            ended = self._ended_ms is not None
            latest = {each.visitor: each for each in self.visits}
            phases = {name: round(seconds, 3) for name, seconds in self.counts.phases.items()}
            return RunStatus(
                self.application_id,
                driver_name(),
                self._trigger,
                self._started_ms,
                now_ms,
                ended_ms=self._ended_ms,
                ended_by=(self.stopped_by or "done") if ended and self._error is None else None,
                error=self._error,
                phase=self._lifecycle.state,
                phase_since_ms=now_ms - int(1000 * self._lifecycle.seconds),
                paused=tuple(sorted(self._lifecycle.paused)),
                turned_ms=self._turned_ms,
                times={name: dict(of) for name, of in self._times.items()},
                store_changes=dict(self._store_changes),
                store_calls=dict(self._store_calls),
                calls=dict(self._calls),
                visits=[VisitOfRun.of(each, self._tasks.values()) for each in latest.values()],
                batches=self.batches,
                records_per_second=sum(rates.values()),
                workers_lost=self.workers_lost + (0 if slots is None else slots.lost),
                moves=dict(self.moves),
                tasks=() if slots is None else self._task_statuses(slots, rates, ended),
                hosts=() if slots is None or ended else self._hosts(slots),
                events=tuple(self._events),
                **{**vars(self.counts), "phases": phases},
            )

    def summary(self, seconds: float, lag: int, tasks: int) -> RunSummary:
        """Return the summary of the run."""
        return RunSummary(
            self.application_id, self.batches, seconds, lag, tasks, self.workers_lost, self.stopped_by,
            dict(self.moves), self.hosts, **vars(self.counts),
        )  # fmt: skip

    def _rates(self) -> dict[str, float]:
        """Return records a second of each task that had some in the last minute."""
        now = self._seconds()
        while self._buckets and self._buckets[0][0] <= now - _WINDOW_SECONDS:
            self._buckets.popleft()
        if self._first_seconds is None:
            return {}
        window = max(1.0, min(_WINDOW_SECONDS, now - self._first_seconds))
        records = sum((records for _, records in self._buckets), Counter[str]())
        return {task: count / window for task, count in records.items()}

    def _task_statuses(self, slots: Slots, rates: dict[str, float], ended: bool) -> tuple[TaskStatus, ...]:
        found = []
        for task, slot, is_open in slots.tasks():
            counts, host = self._tasks.get(task) or TaskStatus(task, slot), slots.hosts.get(slot)
            found.append(
                replace(
                    counts,
                    slot=slot,
                    host=host_name(slots.executors.get(slot, "")),
                    process=None if host is None else host.process,
                    is_open=is_open and not ended,
                    restore_seconds=round(counts.restore_seconds, 3),
                    records_per_second=round(rates.get(task, 0.0), 3),
                    restoring=None if is_open or ended else slots.restoring.get(task),
                )
            )
        return tuple(found)

    def _hosts(self, slots: Slots) -> tuple[SlotHost, ...]:
        return tuple(
            SlotHost(
                slot, host_name(slots.executors.get(slot, "")), host.process, host.open_tasks, host.rss_bytes,
                round(host.cpu_seconds, 3), host.descriptors, host.threads, self._heard[slot][1],
            )
            for slot, host in sorted(slots.hosts.items())
            if slot in self._heard
        )  # fmt: skip


def _reopened(reports: Sequence[TaskReport]) -> list[str]:
    """Return a line for each reason for which tasks were opened again."""
    tasks: dict[str, list[str]] = {}
    for report in reports:
        if report.opened not in ("", FIRST):
            tasks.setdefault(report.opened, []).append(report.task_id)
    return [
        f"{len(names)} task{'s' * (len(names) > 1)} opened again ({reason}): {', '.join(names[:_MOST_NAMED])}"
        + (", ..." if len(names) > _MOST_NAMED else "")
        for reason, names in tasks.items()
    ]


INTERVAL_SECONDS = 5.0
_LAST_SECONDS = 10.0

_log = logging.getLogger("penstock.runs")


class WrittenStatus(Companion):
    """The status of the run in the log."""

    def beside(self, running: OpenApplication) -> StatusWriter:
        return StatusWriter(running.log, running.application.id, self.run.status)


class StatusWriter:
    """A context manager: writes from a thread of its own every few seconds, and once more at the end.

    So a log that is away does not hold up the run. A driver that was frozen writes nothing over its successor's.
    """

    def __init__(
        self, log: Log, application_id: str, status: Callable[[], RunStatus], interval: float = INTERVAL_SECONDS
    ) -> None:
        self._topic = StatusTopic(log, application_id)
        self._status = status
        self._interval = interval
        self._number = 0
        self._written_at = 0.0
        self._repeats = Repeats(SystemClock().now_ms)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-status", daemon=True)

    def __enter__(self) -> StatusWriter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while True:
            is_last = self._ended.is_set()
            try:
                if not self._write(is_last):
                    return
            except PenstockError as error:
                _log.debug("the run's status was not written: %s", error)
            except Exception as error:  # a run whose status ends would seem to be lost
                self._repeats.log(_log, logging.ERROR, None, "the run's status was not written: %r", error)
            if is_last:
                return
            self._ended.wait(self._interval)

    def _write(self, is_last: bool) -> bool:
        """Write the status; return False if a later run has written one."""
        is_late = time.monotonic() > self._written_at + LOST_AFTER_SECONDS / 2
        if self._number == 0 or is_late or is_last:
            before = self._topic.read()
            if self._number == 0:
                self._number = 1 if before is None else before.number + 1
            elif before is not None and before.number > self._number:
                return False
        self._topic.write(replace(self._status(), number=self._number))
        self._written_at = time.monotonic()
        return True
