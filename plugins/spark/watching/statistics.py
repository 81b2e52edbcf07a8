"""RunStatistics: what a run has done so far, gathered from the reports of its tasks."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.clock import Clock, SystemClock
from penstock.plugins.applications.lag import PartitionLag
from penstock.plugins.applications.lease import driver_name
from penstock.plugins.applications.run_status import (
    Event,
    RunStatus,
    SlotHost,
    TaskStatus,
)
from penstock.plugins.hosts.executor_identity import host_name
from penstock.plugins.runtime.logged_task import FIRST
from penstock.plugins.runtime.report import TaskReport

from .batch import Batch
from .progress import RunSummary
from .slots import Slots

_WINDOW_SECONDS, _BUCKET_SECONDS = 60.0, 5.0
_MOST_EVENTS = 20
_MOST_NAMED = 5


@dataclass
class _TaskCounts:
    records_in: int = 0
    records_out: int = 0
    dropped: int = 0
    commits: int = 0
    restored: int = 0
    restore_seconds: float = 0.0
    last_commit_ms: int | None = None
    openings: Counter[str] = field(default_factory=Counter)


class RunStatistics:
    """Counts of one run. The runner adds to them; other threads ask for the status at any time.

    `seconds` is a clock that never goes back.
    """

    def __init__(
        self,
        application_id: str,
        trigger: str,
        clock: Clock | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.summary = RunSummary(application_id)
        """What the run returns in the end."""
        self.lag: Sequence[PartitionLag] = ()
        """The lag as of the last look."""
        self._trigger = trigger
        self._clock = clock or SystemClock()
        self._seconds = seconds
        self._started_ms = self._clock.now_ms()
        self._ended_ms: int | None = None
        self._error: str | None = None
        self._lock = threading.Lock()
        self._tasks: dict[str, _TaskCounts] = {}
        self._slots: Slots | None = None
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self._buckets: deque[tuple[float, Counter[str]]] = deque()
        """Records in by task, since a time."""
        self._first_seconds: float | None = None

    # ------------------------------------------------------------------ told by the runner

    def take(self, batch: Batch, slots: Slots) -> None:
        """Count what tasks did in a batch, or between two heartbeats."""
        now_ms = self._clock.now_ms()
        with self._lock:
            self._slots = slots
            if self._first_seconds is None:
                self._first_seconds = self._seconds() - batch.seconds
            for report in batch.reports:
                self.summary.add(report)
                self._count(report, now_ms)
            self._events += [Event(now_ms, loss) for loss in batch.losses]
            self._events += [Event(now_ms, text) for text in _reopened(batch.reports)]

    def note(self, text: str) -> None:
        """Remember something that went wrong and was mended."""
        with self._lock:
            self._events.append(Event(self._clock.now_ms(), text))

    def end(self, error: BaseException | None) -> None:
        """Note that the run has ended, and by which error."""
        with self._lock:
            self._ended_ms = self._clock.now_ms()
            self._error = None if error is None else str(error) or type(error).__name__

    def _count(self, report: TaskReport, now_ms: int) -> None:
        task = self._tasks.setdefault(report.task_id, _TaskCounts())
        task.records_in += report.records_in
        task.records_out += report.records_out
        task.dropped += report.dropped
        task.commits += report.commits
        task.restored += report.restored
        task.restore_seconds += report.phases.get("restore", 0.0)
        if report.commits:
            task.last_commit_ms = now_ms
        if report.opened:
            task.openings[report.opened] += 1
        if report.records_in:
            now = self._seconds()
            if not self._buckets or now >= self._buckets[-1][0] + _BUCKET_SECONDS:
                self._buckets.append((now, Counter()))
            self._buckets[-1][1][report.task_id] += report.records_in

    # ------------------------------------------------------------------ asked by others

    def status(self) -> RunStatus:
        """Return the status now."""
        with self._lock:
            summary, slots = self.summary, self._slots
            rates = self._rates()
            ended = self._ended_ms is not None
            return RunStatus(
                summary.application_id,
                driver_name(),
                self._trigger,
                self._started_ms,
                self._clock.now_ms(),
                ended_ms=self._ended_ms,
                ended_by=(summary.stopped_by or "done") if ended and self._error is None else None,
                error=self._error,
                batches=summary.batches,
                records_in=summary.records_in,
                records_out=summary.records_out,
                dropped=summary.dropped,
                commits=summary.commits,
                restored=sum(each.restored for each in self._tasks.values()),
                records_per_second=sum(rates.values()),
                workers_lost=summary.workers_lost + (0 if slots is None else slots.lost),
                openings=dict(summary.openings),
                moves=dict(summary.moves),
                tasks=() if slots is None else self._task_statuses(slots, rates, ended),
                hosts=() if slots is None or ended else _hosts(slots),
                nodes=dict(summary.nodes),
                phases={name: round(seconds, 3) for name, seconds in summary.phases.items()},
                events=tuple(self._events),
            )

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
            counts, host = self._tasks.get(task, _TaskCounts()), slots.hosts.get(slot)
            found.append(
                TaskStatus(
                    task, slot, host_name(slots.executors.get(slot, "")), None if host is None else host.process,
                    is_open and not ended, counts.records_in, counts.records_out, counts.dropped, counts.commits,
                    counts.restored, round(counts.restore_seconds, 3), round(rates.get(task, 0.0), 3),
                    counts.last_commit_ms, dict(counts.openings),
                )
            )  # fmt: skip
        return tuple(found)


def _hosts(slots: Slots) -> tuple[SlotHost, ...]:
    return tuple(
        SlotHost(
            slot, host_name(slots.executors.get(slot, "")), host.process, host.open_tasks, host.rss_bytes,
            round(host.cpu_seconds, 3), host.descriptors, host.threads,
        )
        for slot, host in sorted(slots.hosts.items())
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
