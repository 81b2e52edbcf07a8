"""Rates: how many records a second a run reads and writes, from its tasks' reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.plugins.runtime.report import TaskReport

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
    return sum(each.records_in for each in reports), sum(each.records_out for each in reports)
