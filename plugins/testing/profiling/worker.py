"""MeasuredWorker: a worker of the engine's own that adds up what its batches took, also one that fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from time import perf_counter, thread_time
from typing import Any

from penstock import NodeMetrics, PunctuationType, TopicPartition
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.task.progress import Front
from penstock.task.schedules import NEVER
from penstock.task.task import Task


class Seconds(defaultdict[Any, float]):
    """Seconds by what they are of."""

    def __init__(self, seconds: Mapping[Any, float] | None = None) -> None:
        super().__init__(float, seconds or {})

    def add(self, others: Mapping[Any, float]) -> None:
        """Add those of `others`."""
        for name, seconds in others.items():
            self[name] += seconds


class Totals:
    """What all workers of one run have done. Times are seconds; `cpu` is the CPU time of the thread."""

    def __init__(self) -> None:
        self.seconds = self.cpu = 0.0
        self.phases = Seconds()
        self.decode = Seconds()
        """Seconds of decoding, by source."""
        self.nodes: dict[str, NodeMetrics] = {}
        self.commits = self.records_in = 0
        self.fired = 0

    def add_nodes(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the counts of nodes, as in a report."""
        for name, counts in nodes.items():
            metrics = self.nodes.setdefault(name, NodeMetrics())
            metrics.records_in += counts["in"]
            metrics.records_out += counts["out"]
            metrics.dropped.update(counts["dropped"])
            metrics.user.update(counts["user"])


class MeasuredTask(Task):
    """A task that asks for a commit after so many records."""

    commit_every: int | None = None
    _since_commit = 0

    def process(self, limit: int) -> int:
        if self.commit_every is None:
            return super().process(limit)
        done = super().process(min(limit, self.commit_every - self._since_commit))
        self._since_commit += done
        if self._since_commit >= self.commit_every:
            self._since_commit = 0
            self.progress.request_commit()
        return done

    def last_due(self) -> int | None:
        """Return when the last schedule by the wall clock, or the first such timer, is due (ms); None without any."""
        kind = PunctuationType.WALL_CLOCK_TIME
        due = (-self._schedules.next_due(kind, lambda each: -each.due), self._punctuators.timers.next_due(kind))
        return max((each for each in due if abs(each) != NEVER), default=None)


class MeasuredWorker(TaskWorker):
    """Runs batches as every driver does, and adds to `totals`."""

    task_class: type[Task] = MeasuredTask
    commit_every: int | None = None
    totals: Totals
    _decoded: Mapping[str, float] = {}

    def measure(
        self, ends: Mapping[TopicPartition, int], wall_clock_ms: int, front: Front | None, totals: Totals
    ) -> TaskReport:
        """Run a batch; `totals` get what it did, also if it raises."""
        self.totals = totals
        began, cpu, counted = perf_counter(), thread_time(), sum(totals.phases.values())
        rest = "process"
        try:
            report = self.run_batch(ends, wall_clock_ms, front=front)
            totals.phases.add(report.phases)
            totals.commits += report.commits
            totals.records_in += report.records_in
            totals.fired += report.punctuations
            totals.add_nodes(report.nodes)
            self._note_decoding()
            rest = "other"
        finally:
            took = perf_counter() - began
            totals.seconds += took
            totals.cpu += thread_time() - cpu
            totals.phases[rest] += took - (sum(totals.phases.values()) - counted)
        return report

    def _make_task(self, *arguments: Any, **options: Any) -> Task:
        task = super()._make_task(*arguments, **options)
        if isinstance(task, MeasuredTask):
            task.commit_every = self.commit_every
        self._decoded = {}
        return task

    def abandon(self, reason: str = "closed") -> None:
        """Close the task; of a batch that failed, what was done until then counts."""
        task = self.task
        if task is not None and reason == "failed":
            self._note_decoding()
            counted = self._counts.since_last(task)
            self.totals.add_nodes(counted.nodes)
            self.totals.records_in += counted.records_in
            self.totals.fired += task.punctuations - self._called_before
            if self._commits is not None:
                self.totals.commits += self._commits.made
            self.totals.phases.add(self._phases)
            decoded = task.decode_seconds() - self._decoded_before
            self.totals.phases.add({"decode": decoded, "process": -decoded})
            self._phases.clear()
        super().abandon(reason)

    def _note_decoding(self) -> None:
        if self.task is not None:
            now = self.task.inputs.decode_seconds_by_source()
            self.totals.decode.add({each: took - self._decoded.get(each, 0.0) for each, took in now.items()})
            self._decoded = now
