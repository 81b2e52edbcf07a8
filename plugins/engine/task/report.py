"""Counts of tasks and runs, and TaskReport: a task's work in one batch, with the time of each phase."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from penstock import HISTOGRAM_BOUNDS as BOUNDS
from penstock import NodeMetrics, TopicPartition
from penstock.task.task import Task

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class FailedTask:
    """A task that ended with an error. It stays closed until `TaskLoop.run` names it again."""

    task_id: str
    error: BaseException


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts of a task, or of all tasks of a run; `+` adds others.

    `restored`: records restored from the changelog. `openings`: how often a task was opened, by reason: "first",
    "moved" from another executor, "host lost", "taken over" by another process, "fenced", "failed", "retry",
    "record refused".
    """

    records_in: int = 0
    records_out: int = 0
    dropped: int = 0
    commits: int = 0
    restored: int = 0
    openings: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Self:
        """Return a copy with the counts of `other` added."""
        return replace(
            self,
            records_in=self.records_in + other.records_in,
            records_out=self.records_out + other.records_out,
            dropped=self.dropped + other.dropped,
            commits=self.commits + other.commits,
            restored=self.restored + other.restored,
            openings=_added(self.openings, other.openings),
        )


@dataclass(frozen=True, kw_only=True)
class DetailedCounts(Counts):
    """Counts, also of each node, with the seconds of each phase.

    `nodes`: `in` and `out`, `dropped` by reason, and `user`, the counters of a processor's own, by name.
    """

    phases: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Self:
        added = super().__add__(other)
        if not isinstance(other, DetailedCounts):
            return added
        nodes = {
            name: {
                "in": counts["in"] + (before := self.nodes.get(name, _NO_COUNTS))["in"],
                "out": counts["out"] + before["out"],
                "dropped": _added(before["dropped"], counts["dropped"]),
                "user": _added(before["user"], counts["user"]),
            }
            for name, counts in other.nodes.items()
        }
        return replace(added, phases=_added(self.phases, other.phases), nodes={**self.nodes, **nodes})


_NO_COUNTS: Mapping[str, Any] = {"in": 0, "out": 0, "dropped": {}, "user": {}}


def _added(one: Mapping[str, _Number], other: Mapping[str, _Number]) -> dict[str, _Number]:
    return {**one, **{name: one.get(name, 0) + number for name, number in other.items()}}


@dataclass(frozen=True)
class TaskReport(DetailedCounts):
    """A batch of one task. Counts are of this batch; times are seconds, by phase.

    `positions` and `version` are the last commit. `purgeable`: positions in internal topics below which the task needs
    no record again, not even if the log loses its commits and `reset --from-state` goes back to a commit that the
    changelog keeps. `next_tick` is the wall-clock time (ms) at which a punctuator is due. `times`: data of histograms
    by name: `latency` from a record's timestamp to the end of its processing, `lateness` against the stream time (both
    by the last record of each stretch of records), and `commit`. `store_changes`: rows that commits wrote, by store.
    `store_calls`: the results of `StoreCalls.take`, by store. `state_bytes`: the size of the local state on disk, where
    that was measured. `calls`: by node, how many calls of its records in flight had a result, raised an error or took
    too long, and their seconds; `in_flight`: the task's records in flight. `visits`: the result of `Visits.counts`.
    """

    task_id: str
    version: str
    positions: Mapping[TopicPartition, int]
    stream_time: int
    next_tick: int | None = None
    purgeable: Mapping[TopicPartition, int] = field(default_factory=dict)
    times: Mapping[str, Sequence[float]] = field(default_factory=dict)
    store_changes: Mapping[str, int] = field(default_factory=dict)
    punctuations: int = 0
    state_bytes: int | None = None
    store_calls: Mapping[str, Sequence[float]] = field(default_factory=dict)
    visits: Mapping[str, Sequence[int]] = field(default_factory=dict)
    calls: Mapping[str, Sequence[float]] = field(default_factory=dict)
    in_flight: int = 0

    @property
    def opened(self) -> str:
        """Why the task was opened in this batch; "" if it was open. The reasons are those of `openings`."""
        return next(iter(self.openings), "")

    def opened_for(self, reason: str) -> TaskReport:
        """Return the report with another reason why the task was opened."""
        return replace(self, openings={reason: 1})


class Phases(dict[str, float]):
    """Seconds spent, by phase. `now` returns seconds of a stopwatch."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self.now = now

    def add(self, phase: str, since: float) -> float:
        """Add the time from `since` until now to a phase; return the time now."""
        now = self.now()
        self[phase] = self.get(phase, 0.0) + now - since
        return now

    def count(self, others: Mapping[str, float]) -> None:
        """Add the times of other phases."""
        self.update(_added(self, others))

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count some of one phase's time for another phase."""
        self.count({source: -seconds, target: seconds})


class TaskCounts:
    """The counts of an open task and its nodes, as differences from report to report."""

    def __init__(self) -> None:
        self._records = 0
        self._before: dict[str, NodeMetrics] = {}

    def since_last(self, task: Task) -> DetailedCounts:
        """Return `records_in`, `dropped` and `nodes` since the last call, of the same task."""
        nodes = {name: self._of_node(name, now) for name, now in task.metrics().items()}
        before, self._records = self._records, task.records_in
        return DetailedCounts(
            records_in=self._records - before,
            dropped=sum(sum(counts["dropped"].values()) for counts in nodes.values()),
            nodes=nodes,
        )

    def _of_node(self, name: str, now: NodeMetrics) -> dict[str, Any]:
        before = self._before.get(name, _NO_METRICS)
        self._before[name] = replace(now, dropped=now.dropped.copy(), user=now.user.copy())
        return {
            "in": now.records_in - before.records_in,
            "out": now.records_out - before.records_out,
            "dropped": dict(now.dropped - before.dropped),
            "user": {each: rise for each, at in now.user.items() if (rise := at - before.user[each])},
        }


_NO_METRICS = NodeMetrics()


class Histogram:
    """Counts seconds by bucket. `data`: the sum of all seconds, and then the count of each bucket."""

    def __init__(self) -> None:
        self.data: list[float] = _empty()

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a time, several times; one below 0 counts as 0: clocks differ."""
        data = self.data
        data[1 + bisect_left(BOUNDS, seconds)] += times
        if seconds > 0:
            data[0] += seconds * times

    def take(self) -> list[float]:
        """Return `data` since the last call; empty if nothing was counted."""
        if not any(self.data[1:]):
            return []
        taken, self.data = self.data, _empty()
        return taken


def added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the data of two histograms together; either may be empty.

    >>> added([], [0.5, *[0] * 9, 1, *[0] * 8])[0]
    0.5
    """
    if not one or not other:
        return list(one or other)
    return [a + b for a, b in zip(one, other, strict=True)]


def _empty() -> list[float]:
    return [0.0] + [0] * (len(BOUNDS) + 1)
