"""ScratchRun: runs the tasks of an application in this process, from given records, in a directory of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import Any

from penstock import Application, ManualClock, PunctuationType, TaskId, TopicPartition, World
from penstock.plugins.engine.program.preparation import make_changelog_topics, resolve
from penstock.plugins.engine.task.fronts import UNKNOWN, in_front
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.report import DetailedCounts, TaskReport
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.plugins.sinks.memory import ScratchTarget
from penstock.program.nodes import decorate
from penstock.settings.dead_letters import dead_letter_topics
from penstock.settings.settings import HANDLERS
from penstock.stores.memory import MemoryBackend
from penstock.task.progress import Front
from penstock.task.schedules import NEVER
from penstock.task.task import Task

from .inputs import Inputs


@dataclass
class Totals:
    """The work of all tasks of a run. Times are seconds; `cpu` is the CPU time of the thread, `decode` by source."""

    seconds: float = 0.0
    cpu: float = 0.0
    counts: DetailedCounts = field(default_factory=DetailedCounts)
    decode: dict[str, float] = field(default_factory=lambda: defaultdict(float))


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
        return max((time for time in due if abs(time) != NEVER), default=None)


class MeasuredWorker(TaskWorker):
    """Runs batches as every driver does, and adds each to `totals`, also a failed one."""

    task_class: type[Task] = MeasuredTask
    commit_every: int | None = None
    totals: Totals

    def measure(
        self, ends: Mapping[TopicPartition, int], wall_clock_ms: int, front: Front | None, totals: Totals
    ) -> TaskReport:
        """Run a batch; its time that no phase has is "other", and "process" if the batch fails."""
        self.totals = totals
        began, cpu, rest = perf_counter(), thread_time(), "process"
        try:
            report = self.run_batch(ends, wall_clock_ms, front=front)
            totals.counts += report
            rest = "other"
        finally:
            totals.seconds += perf_counter() - began
            totals.cpu += thread_time() - cpu
            unnamed = totals.seconds - sum(totals.counts.phases.values())
            totals.counts += DetailedCounts(phases={rest: unnamed})
        return report

    def _make_task(self, *arguments: Any, **options: Any) -> Task:
        task = super()._make_task(*arguments, **options)
        if isinstance(task, MeasuredTask):
            task.commit_every = self.commit_every
        return task

    def abandon(self, reason: str = "closed") -> None:
        """Close the task; the work of a failed batch up to its error counts."""
        if self.task is not None:
            for source, seconds in self.task.inputs.decode_seconds_by_source().items():
                self.totals.decode[source] += seconds
            if reason == "failed" and self._commits is not None:
                self.totals.counts += self._report()
        super().abandon(reason)


class ScratchRun:
    """One run of all tasks, each in batches, until all records are processed. It ends with a `with` block.

    Log, changelog and local state are in a temporary directory; the serdes, the store backends and all other settings
    are the application's. `topics`: numbers of partitions of further topics that the program may write to. The wall
    clock stands still at `now_ms` while there are records. Then it moves once, so far that each schedule by it is
    called, and what that causes is processed.
    """

    def __init__(
        self,
        application: Application,
        inputs: Inputs,
        topics: Mapping[str, int],
        now_ms: int,
        worker: type[MeasuredWorker],
        commit_every: int | None,
    ) -> None:
        self._directory = TemporaryDirectory("profile")
        directory, settings = self._directory.path, application.settings
        self._application = application.with_settings(
            log=f"local:{directory}/log",
            # One that is kept in the log is in that one.
            changelog=f"directory:{directory}/changelog" if settings.log_changelog is None else settings.changelog,
            data_dir=str(directory),
            state_dir=str(directory / "state"),
        )
        self.totals = Totals()
        self._clock = ManualClock(now_ms)
        self._resources = ProcessResources(World(clock=self._clock, sink=ScratchTarget()))
        self._log = open_log(self._application.settings)
        self._workers: dict[TaskId, MeasuredWorker] = {}
        self._ticks: dict[TaskId, int] = {}
        try:
            self._make_topics(inputs, topics)
            self._make_workers(worker, commit_every)
        except BaseException:
            self.close()
            raise

    def _make_topics(self, inputs: Inputs, topics: Mapping[str, int]) -> None:
        program = self._application.program
        internal = {decorate(self._application.id, topic, program.internal_topics) for topic in program.internal_topics}
        dead_letters = dead_letter_topics([getattr(self._application.settings, name) for name in HANDLERS])
        named = {*inputs, *program.topics(), *program.sink_topics(), *dead_letters, *topics}
        for topic in sorted(named - internal):
            self._log.create_topic(topic, inputs[topic].partitions if topic in inputs else topics.get(topic, 1))
        for source in inputs.values():
            for batch in source.batches:
                self._log.append(batch)

    def _make_workers(self, worker: type[MeasuredWorker], commit_every: int | None) -> None:
        application, log = self._application, self._log
        assignment = resolve(application, log)
        for topic, count in assignment.missing.items():
            log.create_topic(topic, count, internal=True)
        make_changelog_topics(application, assignment, log)
        for task, partitions in sorted(assignment.tasks.items()):
            self._workers[task] = worker(
                application, task, partitions, log, resources=self._resources, task_count=len(assignment.tasks)
            )
            self._workers[task].commit_every = commit_every
        numbers = {task.subtopology for task in self._workers}
        upstream = {number: above for number, above in application.program.upstream().items() if number in numbers}
        self._in_front = in_front(upstream)
        self._fronts: dict[int, Front] = {number: UNKNOWN for number, above in self._in_front.items() if above}

    # ------------------------------------------------------------------ running

    def open(self) -> None:
        """Fill the global stores, and open all tasks; the totals are without that."""
        for task in self._workers:
            self._run(task, {})
        self.totals = Totals()

    def process(self) -> None:
        """Process all records, and call due punctuators. Raises the program's errors."""
        self._drain()
        tasks = (worker.task for worker in self._workers.values())
        dues = [due for task in tasks if isinstance(task, MeasuredTask) and (due := task.last_due()) is not None]
        if dues:
            self._clock.advance(f"{max(1, max(dues) - self._clock.now_ms())}ms")
            for task in self._workers:
                self._run(task, {})
            self._drain()
        self._settle()

    def _drain(self) -> None:
        has_more = True
        while has_more:
            has_more = False
            for task, worker in self._workers.items():
                ends = self._log.end_offsets(worker.partitions)
                before = None if worker.commit is None else worker.commit.positions
                if before is None or any(before[partition] < end for partition, end in ends.items()):
                    # A task with `max_task_idle` may wait for an input that is empty, while the clock stands still.
                    has_more |= self._run(task, ends) != before

    def _run(self, task: TaskId, ends: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        front = self._fronts.get(task.subtopology)
        report = self._workers[task].measure(ends, self._clock.now_ms(), front, self.totals)
        self._ticks[task] = NEVER if report.next_tick is None else report.next_tick
        return report.positions

    def _settle(self) -> None:
        """Let downstream tasks make calls that waited for upstream ones: all their records are read now."""
        holding = self._application.program.holding()
        for number in sorted(self._fronts, key=lambda each: len(self._in_front[each])):
            above = holding.intersection(self._in_front[number])
            inputs = [
                partition
                for task, of in self._workers.items()
                if task.subtopology in above
                for partition in of.partitions
            ]
            read = self._log.committed(self._application.id, inputs).values()
            self._fronts[number] = Front(self._clock.now_ms(), sum(position or 0 for position in read))
            for task, tick in list(self._ticks.items()):
                if task.subtopology == number and tick <= self._clock.now_ms():
                    self._run(task, {})
            self._drain()

    # ------------------------------------------------------------------ afterwards

    def close(self) -> None:
        """Close tasks, stores and the log; the totals get the counts of the nodes that fill global stores."""
        for worker in self._workers.values():
            worker.close()
        nodes = {
            name: {"in": node.records_in, "out": node.records_out, "dropped": node.dropped, "user": node.user}
            for name, node in self._resources.globals_of(self._application).metrics().items()
        }
        self.totals.counts += DetailedCounts(nodes=nodes)
        self._resources.close()
        self._log.close()
        MemoryBackend.forget(self._directory.path)
        self._directory.close()
