"""TaskReport: what a task did in one batch, with the time each phase took and the counts of each node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from penstock.context import NodeMetrics
from penstock.record import TopicPartition


@dataclass
class TaskReport:
    """What a task did in one batch. Counts are of this batch; times are seconds, by phase.

    `positions` and `version` are the last commit. `purgeable`: positions in internal topics below which the task needs
    no record again, not even if the log loses its commits and `reset --from-state` goes back to a commit that the
    changelog keeps. `next_tick` is the wall-clock time (ms) at which a punctuator is due. `opened` says why the
    task was opened in this batch: "first", "moved" from another executor, "host lost", "taken over" by another process,
    "fenced", "failed", "retry", "record refused"; "" if it was open.
    """

    task_id: str
    version: str
    positions: Mapping[TopicPartition, int]
    stream_time: int
    records_in: int = 0
    records_out: int = 0
    dropped: int = 0
    commits: int = 0
    restored: int = 0
    next_tick: int | None = None
    phases: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    purgeable: Mapping[TopicPartition, int] = field(default_factory=dict)
    opened: str = ""


class Phases(dict[str, float]):
    """Seconds spent, by phase."""

    def add(self, phase: str, since: float) -> float:
        """Add the time from `since` until now to a phase; return the time now."""
        now = perf_counter()
        self[phase] = self.get(phase, 0.0) + now - since
        return now

    def count(self, others: Mapping[str, float]) -> None:
        """Add the times of other phases."""
        for phase, seconds in others.items():
            self[phase] = self.get(phase, 0.0) + seconds

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count some of one phase's time for another phase."""
        self[source] = self.get(source, 0.0) - seconds
        self[target] = self.get(target, 0.0) + seconds


class NodeCounts:
    """The counts of a task's nodes, as differences from batch to batch."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int, dict[str, int]]] = {}

    def since_last(self, metrics: Mapping[str, NodeMetrics]) -> dict[str, dict[str, Any]]:
        """Return what every node has counted since the last call: "in", "out", and "dropped" by reason."""
        nodes = {}
        for name, now in metrics.items():
            records_in, records_out, dropped = self._before.get(name, (0, 0, {}))
            nodes[name] = {
                "in": now.records_in - records_in,
                "out": now.records_out - records_out,
                "dropped": {
                    reason: count - dropped.get(reason, 0)
                    for reason, count in now.dropped.items()
                    if count > dropped.get(reason, 0)
                },
            }
            self._before[name] = now.records_in, now.records_out, dict(now.dropped)
        return nodes
