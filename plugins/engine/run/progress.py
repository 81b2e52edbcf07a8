"""Summary and progress of a run, as its caller sees them, and its batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock import TopicPartition
from penstock.plugins.engine.host.reports import HostStatus
from penstock.plugins.engine.task.local_state.restoring import RestoreProgress
from penstock.plugins.engine.task.report import DetailedCounts, TaskReport


@dataclass(frozen=True)
class RunSummary(DetailedCounts):
    """A run after its end. Times by phase are added up over all tasks.

    `lag`: offsets between committed positions and the ends of the topics, internal ones included. `tasks`: their
    number. `hosts`: each task host's use of its machine, as of the last batch. `workers_lost`: how often a task host
    was replaced, or the query started again. `stopped_by`: a signal's name, or "stop" when the caller asked; None when
    everything was processed. `moves`: number of slots moved to another executor, by reason. All `openings` but "first"
    are of tasks that were open before.
    """

    application_id: str
    batches: int = 0
    seconds: float = 0.0
    lag: int = 0
    tasks: int = 0
    workers_lost: int = 0
    stopped_by: str | None = None
    moves: Mapping[str, int] = field(default_factory=dict)
    hosts: tuple[HostStatus, ...] = ()


@dataclass(frozen=True)
class RunProgress(RunSummary):
    """A run so far. `tasks`: number of open tasks.

    `records_per_second` and `records_out_per_second`: over the last batch that read something; in continuous mode over
    the last seconds. `reports`: the tasks' reports of the last batch, or of heartbeats since the last progress; empty
    for progress within a batch. `batch_seconds`: duration of that batch. `restoring`: progress of running restores, by
    task.
    """

    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    records_per_second: float = 0.0
    records_out_per_second: float = 0.0
    reports: tuple[TaskReport, ...] = ()
    batch_seconds: float = 0.0
    restoring: Mapping[str, RestoreProgress] = field(default_factory=dict)


@dataclass(frozen=True)
class EndedBatch:
    """A batch after its end: its number, how long it took, the reports of the tasks that it ran, and its hosts.

    `losses`: lost hosts, with reasons. In continuous mode what the hosts did since their last heartbeats is one without
    a number, too.
    """

    number: int | None
    seconds: float
    reports: Sequence[TaskReport]
    hosts: tuple[HostStatus, ...]
    losses: Sequence[str] = ()


_WINDOW_SECONDS = 5.0


class Rate(NamedTuple):
    """Records per second."""

    records_in: float = 0.0
    records_out: float = 0.0


class BatchRates:
    """The rate of the last batch that read something."""

    def __init__(self) -> None:
        self._rate = Rate()

    def add(self, reports: Sequence[TaskReport], seconds: float) -> None:
        """Take the reports of a batch."""
        read, written = _records(reports)
        if read and seconds:
            self._rate = Rate(read / seconds, written / seconds)

    def now(self) -> Rate:
        """Return the rate."""
        return self._rate


class RecentRates:
    """The rate of the last seconds: heartbeats come when they come. `seconds` is a clock that never goes back."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._added: deque[tuple[float, int, int]] = deque()
        self._since: float | None = None

    def add(self, reports: Sequence[TaskReport], seconds: float) -> None:
        """Take the reports of heartbeats."""
        now = self._seconds()
        if self._since is None:
            self._since = now - seconds
        self._added.append((now, *_records(reports)))

    def now(self) -> Rate:
        """Return the rate."""
        now = self._seconds()
        while self._added and self._added[0][0] <= now - _WINDOW_SECONDS:
            self._added.popleft()
        if self._since is None:
            return Rate()
        window = max(1.0, min(_WINDOW_SECONDS, now - self._since))
        return Rate(sum(each[1] for each in self._added) / window, sum(each[2] for each in self._added) / window)


def _records(reports: Sequence[TaskReport]) -> tuple[int, int]:
    return sum(report.records_in for report in reports), sum(report.records_out for report in reports)
