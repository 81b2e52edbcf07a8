"""ScratchRun: runs the tasks of an application in this process, from given records, in a directory of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from penstock import Application, ManualClock, NodeMetrics, TaskId, TopicPartition, World
from penstock.plugins.engine.program.preparation import make_changelog_topics
from penstock.plugins.engine.task.fronts import UNKNOWN, in_front
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.program.nodes import decorate
from penstock.settings.dead_letters import dead_letter_topics
from penstock.settings.settings import HANDLERS
from penstock.stores.memory import MemoryBackend
from penstock.task.progress import Front
from penstock.task.schedules import NEVER

from .inputs import Inputs
from .sampler import Sampler
from .worker import MeasuredTask, MeasuredWorker, Totals


class ScratchRun:
    """One run of all tasks, each in batches, until all records are processed.

    Log, changelog and local state are in `directory`; the serdes, the store backends and all other settings are the
    application's. `topics`: numbers of partitions of further topics that the program may write to. The wall clock
    stands still at `now_ms` while there are records. Then it moves once, so far that each schedule by it is called, and
    what that causes is processed.
    """

    def __init__(
        self,
        application: Application,
        inputs: Inputs,
        topics: Mapping[str, int],
        directory: Path,
        now_ms: int,
        *,
        worker: type[MeasuredWorker] = MeasuredWorker,
        commit_every: int | None = None,
    ) -> None:
        settings = application.settings
        self._directory = directory
        self.application = application.with_settings(
            log=f"local:{directory}/log",
            # One that is kept in the log is in that one.
            changelog=f"directory:{directory}/changelog" if settings.log_changelog is None else settings.changelog,
            data_dir=str(directory),
            state_dir=str(directory / "state"),
        )
        self.totals, self.opening = Totals(), Totals()
        self._clock = ManualClock(now_ms)
        self._resources = ProcessResources(World(clock=self._clock))
        self._log = open_log(self.application.settings)
        self._workers: dict[TaskId, MeasuredWorker] = {}
        self._ticks: dict[TaskId, int] = {}
        try:
            self._make_topics(inputs, topics)
            self._make_workers(worker, commit_every)
        except BaseException:
            self.close()
            raise

    def _make_topics(self, inputs: Inputs, topics: Mapping[str, int]) -> None:
        application, log = self.application, self._log
        internal = {
            decorate(application.id, each, application.program.internal_topics)
            for each in application.program.internal_topics
        }
        handlers = [getattr(application.settings, name) for name in HANDLERS]
        program = application.program
        named = [*program.topics(), *program.sink_topics(), *dead_letter_topics(handlers)]
        for topic in dict.fromkeys([*inputs, *named, *topics]):
            if topic not in internal:
                log.create_topic(topic, inputs[topic].partitions if topic in inputs else topics.get(topic, 1))
        for each in inputs.values():
            for batch in each.batches:
                log.append(batch)

    def _make_workers(self, worker: type[MeasuredWorker], commit_every: int | None) -> None:
        application, log = self.application, self._log
        counts = {name: info.partitions for name, info in log.topics().items()}
        assignment = application.program.resolve(counts, application.id)
        for topic, count in assignment.missing.items():
            log.create_topic(topic, count, internal=True)
        make_changelog_topics(application, assignment, log)
        for task, partitions in sorted(assignment.tasks.items()):
            made = worker(
                application, task, partitions, log, resources=self._resources, task_count=len(assignment.tasks)
            )
            made.commit_every = commit_every
            self._workers[task] = made
        numbers = {each.subtopology for each in self._workers}
        upstream = {one: above for one, above in application.program.upstream().items() if one in numbers}
        self._in_front = in_front(upstream)
        self._fronts: dict[int, Front] = {one: UNKNOWN for one, above in self._in_front.items() if above}

    # ------------------------------------------------------------------ running

    def open(self) -> None:
        """Fill the global stores, and open all tasks; `opening` gets what that took."""
        for task in self._workers:
            self._run(task, {}, self.opening)

    def process(self, sampler: Sampler | None = None) -> None:
        """Process all records, and call what is scheduled. Raises what the program raises."""
        with nullcontext() if sampler is None else sampler.running():
            self._drain()
            if (due := self._last_due()) is not None:
                self._clock.advance(f"{max(1, due - self._clock.now_ms())}ms")
                for task in self._workers:
                    self._run(task, {}, self.totals)
                self._drain()
            self._settle()

    def _drain(self) -> None:
        has_more = True
        while has_more:
            has_more = False
            for task, worker in self._workers.items():
                ends = self._log.end_offsets(worker.partitions)
                committed = worker.commit
                if committed is None or any(committed.positions[each] < end for each, end in ends.items()):
                    before = None if committed is None else committed.positions
                    report = self._run(task, ends, self.totals)
                    # A task with `max_task_idle` may wait for an input that is empty, while the clock stands still.
                    has_more |= report != before

    def _run(self, task: TaskId, ends: Mapping[TopicPartition, int], totals: Totals) -> Mapping[TopicPartition, int]:
        front = self._fronts.get(task.subtopology)
        report = self._workers[task].measure(ends, self._clock.now_ms(), front, totals)
        self._ticks[task] = NEVER if report.next_tick is None else report.next_tick
        return report.positions

    def _settle(self) -> None:
        """Let tasks behind others call what waits for these: everything in front of them is read now."""
        holding = self.application.program.holding()
        for number in sorted(self._fronts, key=lambda each: len(self._in_front[each])):
            above = holding.intersection(self._in_front[number])
            inputs = [each for task, of in self._workers.items() if task.subtopology in above for each in of.partitions]
            read = self._log.committed(self.application.id, inputs).values()
            self._fronts[number] = Front(self._clock.now_ms(), sum(position or 0 for position in read))
            for task, tick in list(self._ticks.items()):
                if task.subtopology == number and tick <= self._clock.now_ms():
                    self._run(task, {}, self.totals)
            self._drain()

    def _last_due(self) -> int | None:
        """Return when the last of all schedules by the wall clock is due for the first time; None without any."""
        tasks = [each.task for each in self._workers.values() if isinstance(each.task, MeasuredTask)]
        return max((due for each in tasks if (due := each.last_due()) is not None), default=None)

    # ------------------------------------------------------------------ afterwards

    def metrics(self) -> dict[str, NodeMetrics]:
        """Return the counts of all nodes, those that fill global stores included."""
        return self.totals.nodes | self._resources.globals_of(self.application).metrics()

    def close(self) -> None:
        """Close tasks, stores and the log."""
        for each in self._workers.values():
            each.close()
        self._resources.close()
        self._log.close()
        MemoryBackend.forget(self._directory)
