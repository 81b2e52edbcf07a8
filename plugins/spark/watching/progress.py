"""Progress and summary of a run, as its caller sees them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.plugins.hosts.status import HostStatus
from penstock.plugins.runtime.report import TaskReport
from penstock.record import TopicPartition


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run. Counts are of the whole run.

    `lag`: offsets between committed positions and the ends of the topics, internal ones included. `records_per_second`
    and `records_out_per_second`: over the last batch that read something; in continuous mode over the last seconds.
    `reports`: the tasks' reports of the last batch, or of heartbeats since the last progress; empty for progress within
    a batch. `batch_seconds`: how long that batch took. `hosts`: what each task host takes of its machine, as of the
    last batch. `moves`: how many slots went to another executor, by reason. `tasks`: how many are open.
    """

    batches: int
    records_in: int
    records_out: int
    dropped: int
    records_per_second: float
    lag: int
    positions: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    reports: tuple[TaskReport, ...] = ()
    batch_seconds: float = 0.0
    hosts: tuple[HostStatus, ...] = ()
    moves: Mapping[str, int] = field(default_factory=dict)
    records_out_per_second: float = 0.0
    tasks: int = 0


@dataclass
class RunSummary:
    """What a run did.

    `openings`: how often a task was opened, by reason (see `TaskReport.opened`); all but "first" are tasks that were
    open before. `hosts`: what each task host took of its machine, as of the last batch. `nodes`: counts `in`, `out` and
    `dropped` (by reason) of every node. `phases`: seconds, added up over all tasks.
    `workers_lost`: how often a task host was replaced, or the query started again. `stopped_by`: a signal's name, or
    "stop" when the caller asked; None when everything was processed. `moves`: how many slots went to another executor,
    by reason.
    """

    application_id: str
    batches: int = 0
    records_in: int = 0
    records_out: int = 0
    dropped: int = 0
    commits: int = 0
    seconds: float = 0.0
    lag: int = 0
    tasks: int = 0
    workers_lost: int = 0
    stopped_by: str | None = None
    openings: dict[str, int] = field(default_factory=dict)
    moves: dict[str, int] = field(default_factory=dict)
    hosts: tuple[HostStatus, ...] = ()
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)

    def add(self, report: TaskReport) -> None:
        """Count what a task did in one batch."""
        self.records_in += report.records_in
        self.records_out += report.records_out
        self.dropped += report.dropped
        self.commits += report.commits
        if report.opened:
            self.openings[report.opened] = self.openings.get(report.opened, 0) + 1
        for phase, seconds in report.phases.items():
            self.phases[phase] = self.phases.get(phase, 0.0) + seconds
        for name, counts in report.nodes.items():
            node = self.nodes.setdefault(name, {"in": 0, "out": 0, "dropped": {}})
            node["in"] += counts["in"]
            node["out"] += counts["out"]
            node["dropped"] = dict(Counter(node["dropped"]) + Counter(counts["dropped"]))
