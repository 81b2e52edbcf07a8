"""TopologyTestDriver: runs a whole topology in this process, one record at a time, without Spark and files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any

from penstock import (
    AnySink,
    Application,
    Clock,
    ConfigError,
    Duration,
    Headers,
    Log,
    ManualClock,
    NodeMetrics,
    OutputBatch,
    Record,
    SourceNode,
    StateStore,
    TaskId,
    TopicPartition,
    Topology,
    TopologyBuilder,
    UnknownTopicError,
    World,
    duration_ms,
)
from penstock.plugins.changelogs.memory import MemoryChangelog
from penstock.plugins.engine.program.pausing import pause, resume
from penstock.plugins.engine.program.preparation import make_changelog_topics, prepare_serdes, resolve
from penstock.plugins.engine.program.topic_records import check_time
from penstock.plugins.engine.program.visits import ask_for_visit, asked_visits
from penstock.plugins.engine.task.fronts import UNKNOWN, in_front
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.plugins.logs.memory import MemoryLog
from penstock.program.external_sink import external_sinks
from penstock.program.nodes import decorate
from penstock.task.progress import Front
from penstock.task.saved_schedules import are_called
from penstock.task.schedules import NEVER
from penstock.world.calls import InlineCalls

from .held_calls import HeldCall, HeldCalls
from .processes import TaskProcess, TaskProcesses
from .topics import InputTopic, ReadsTopics, TopicReader, check_partitions, named_topics, serialized


class TopologyTestDriver(ReadsTopics):
    """Runs `program` (a Topology, a StreamsBuilder or an Application) in this process, to test it.

    The same Task, commits, changelog and restore as on Spark, with a log and stores in memory; stores that name a
    backend use it. Each piped record is processed and committed, then every record that it caused in repartition
    topics, the oldest first. With `commit_every`, a task processes up to so many records that wait, and then commits:
    records that `pipe_many` sends at once, and those in repartition topics; a visit commits after so many entries.
    Every topic has `partitions` partitions, or what a mapping says (others: 1). The wall clock starts at
    `initial_wall_clock_ms` and moves only by `advance_wall_clock`. `settings` override the application's (for a bare
    Topology, the defaults).

    With `reopen_tasks`, every task is closed after each step and opened again from what is committed, in a new process
    as far as the program can see: it is pickled and unpickled as for task hosts, so a processor that keeps state in
    attributes, classes, closures or globals shows it. Without, the program's own objects run, so that a function may
    collect records in a list of the test. `reopen` and `move` do the same once.

    Functions of async verbs are called at once, one after the other. With `hold_calls` the test answers each of them,
    when and in which order it wants: see `calls`.

    `log`: a Log, or a location as in the setting, in place of the memory log. Topics that the program does not name
    have to be made (`driver.log.create_topic`), and what is committed has to be readable at once, so Kafka is none.
    `changelog`: a location as in the setting. A relative path is in a directory that ends with the driver. What an
    Application itself has for these two is replaced.

    `sinks`: targets outside of the log in place of the program's, by node, such as a MemorySink; or a function of a
    node and its sink. Others are written as when the program runs.

    Raises ConfigError for an application that could not be sent to task hosts, naming the part.

    Semantics: Kafka Streams' TopologyTestDriver; there the whole topology is one task, here it is one for each
    sub-topology and partition.

    >>> from penstock import Processor, Topology
    >>> class Upper(Processor):
    ...     def process(self, record):
    ...         self.context.forward(record.with_value(record.value.upper()))
    >>> topology = Topology().add_source("in", "words").add_processor("upper", Upper, "in")
    >>> topology = topology.add_sink("out", "loud", "upper")
    >>> with TopologyTestDriver(topology) as driver:
    ...     driver.pipe("words", "k", "hello", timestamp=7)
    ...     driver.read("loud")
    Record(key='k', value='HELLO', timestamp=7, headers=())
    """

    def __init__(
        self,
        program: Topology | TopologyBuilder | Application,
        *,
        partitions: int | Mapping[str, int] = 1,
        initial_wall_clock_ms: int = 0,
        reopen_tasks: bool = False,
        commit_every: int = 1,
        hold_calls: bool = False,
        log: str | Log | None = None,
        changelog: str | None = None,
        sinks: Mapping[str, AnySink] | Callable[[str, AnySink], AnySink] | None = None,
        **settings: Any,
    ) -> None:
        self._directory = TemporaryDirectory("test")
        self._changelog = f"{self._directory.path}/{uuid.uuid4().hex}"
        given: dict[str, Any] = {
            "store_backend": "memory",
            **settings,
            "log": log if isinstance(log, str) else "memory:",
            "changelog": changelog or f"memory:{self._changelog}",
            "data_dir": str(self._directory.path),
        }
        if type(commit_every) is not int or commit_every < 1:
            raise ConfigError(f"commit_every: expected a number of records from 1 on, found {commit_every!r}")
        if hold_calls and reopen_tasks:
            raise ConfigError("hold_calls: a closed task has no calls; leave out reopen_tasks, and use driver.reopen()")
        if isinstance(program, Application):
            application = program.with_settings(**given)
        else:
            application = Application("test", program, **given)
        targets = _targets(application, sinks)
        prepare_serdes(application)  # as at a start: a test finds schemas that do not fit
        check_time("initial_wall_clock_ms", initial_wall_clock_ms)
        check_partitions(partitions, named_topics(application))
        self.application = application
        self._reopen = reopen_tasks
        self._counts = partitions
        self._commit_every = commit_every
        self._held_calls = HeldCalls()
        self._calls = self._held_calls if hold_calls else InlineCalls()
        self._may_wait = duration_ms(application.settings.max_task_idle or "0ms") > 0
        self._clock = ManualClock(initial_wall_clock_ms)
        self._metrics: dict[str, NodeMetrics] = {}
        self._tasks: dict[TaskId, tuple[TopicPartition, ...]] = {}
        self._paused: frozenset[int] = frozenset()
        self._ticks: dict[TaskId, int] = {}
        self._in_front = {each: front for each, front in in_front(application.program.upstream()).items() if front}
        self._fronts = dict.fromkeys(self._in_front, UNKNOWN)
        self._closed = False
        packed = pack(application)  # also where nothing is shipped, so that a test finds what could not be
        self._given_log = log if isinstance(log, Log) else None
        if log is None:
            self.log: Log = AutoCreatingLog(self._count, self._clock)
        else:
            self.log = log if isinstance(log, Log) else open_log(application.settings)
            make_named_topics(application, self.log, self._count)
        self._processes = TaskProcesses(
            application, packed, self.log, self._clock, self._directory.path, reopen_tasks, self._calls, targets
        )
        self._held_calls.then = self._call_what_is_due
        self._outputs = TopicReader(application, self.log)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _count(self, topic: str) -> int:
        return self._counts if isinstance(self._counts, int) else self._counts.get(topic, 1)

    def _start(self) -> None:
        for topic in self.application.program.topics():
            self._ensure(topic)
        self._assign()
        self._drain()
        self._settle()

    def _ensure(self, topic: str) -> None:
        if topic not in self.log.topics():
            self.log.create_topic(topic, self._count(topic))

    def _assign(self) -> None:
        """Make internal topics that are missing, and tasks for partitions that have none; run the new tasks."""
        assignment = resolve(self.application, self.log)
        for topic, count in assignment.missing.items():
            self.log.create_topic(topic, count, internal=True)
        make_changelog_topics(self.application, assignment, self.log)
        tasks = {task: tuple(inputs) for task, inputs in sorted(assignment.tasks.items())}
        made = [task for task, inputs in tasks.items() if self._tasks.get(task) != inputs]
        self._tasks = tasks
        for task in made:
            self._run(task, {})

    # ------------------------------------------------------------------ time and records in

    @property
    def wall_clock_ms(self) -> int:
        """The wall clock that tasks see, in ms."""
        return self._clock.now_ms()

    def pipe(
        self,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int | None = None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> None:
        """Send one record to a source topic and run everything it causes.

        Key and value are serialized as the source that reads `topic` will read them. `timestamp` is in ms (None: the
        wall clock); `partition` None: by key. Raises UnknownTopicError when no source reads the topic, and whatever the
        program raises.
        """
        self.pipe_raw(self._serialized(topic, [Record(key, value, timestamp, headers)], partition))  # type: ignore[arg-type]

    def pipe_raw(self, *batches: OutputBatch) -> None:
        """Send records as bytes to source topics, and run everything they cause."""
        for records in batches:
            self._source(records.topic)
        for records in batches:
            self.log.append(records)
        self._drain()

    def pipe_all(self, topic: str, records: Iterable[Record | tuple[Any, ...]]) -> None:
        """Send several records, one after the other, and run everything that each causes before the next is sent.

        A record is a Record, (key, value), (key, value, timestamp) or (key, value, timestamp, headers).
        """
        for record in records:
            self.pipe_raw(self._serialized(topic, [record], None))

    def pipe_many(
        self,
        topic: str | Mapping[str, Iterable[Record | tuple[Any, ...]]],
        records: Iterable[Record | tuple[Any, ...]] = (),
        *,
        partition: int | None = None,
    ) -> None:
        """Send many records at once, and run everything they cause, up to `commit_every` records between two commits.

        `topic` may also be a mapping of topics to records: all are sent before any of them is processed. Records are as
        for `pipe_all`. Raises as `pipe`, and then sends none.
        """
        given = topic if isinstance(topic, Mapping) else {topic: records}
        for batch in [self._serialized(each, some, partition) for each, some in given.items()]:
            self.log.append(batch)
        self._drain()

    def input_topic(self, topic: str) -> InputTopic:
        """Return a handle that pipes to one topic."""
        self._source(topic)
        return InputTopic(topic, self.pipe)

    def _serialized(
        self, topic: str, records: Iterable[Record | tuple[Any, ...]], partition: int | None
    ) -> OutputBatch:
        source, count = self._source(topic), self.log.topics()[topic].partitions
        return serialized(topic, source, self.application.settings, records, partition, count, self.wall_clock_ms)

    # ------------------------------------------------------------------ time and orders

    def advance_wall_clock(self, duration: Duration) -> None:
        """Advance the wall clock, call due punctuators, and run everything that this causes."""
        if duration_ms(duration, "advance_wall_clock", may_be_negative=True) < 0:
            raise ConfigError("the wall clock does not go back")
        self._clock.advance(duration)
        self._call_what_is_due()

    def pause(self, *subtopologies: int) -> None:
        """Process no records of these sub-topologies, or of any, and call no punctuators of theirs, until `resume`."""
        self._paused = pause(self.application, self.log, subtopologies).of(self.application)

    def resume(self, *subtopologies: int) -> None:
        """Resume these sub-topologies, or all; process waiting records, and call due punctuators."""
        self._paused = resume(self.application, self.log, subtopologies).of(self.application)
        self._call_what_is_due(may_wait=True)

    def visit(self, visitor: str, argument: Any = None) -> None:
        """Have a visitor called with every key of its store, in all tasks, and run everything that it causes.

        `visitor` is NODE.METHOD, or METHOD where one node alone has it; `argument` is JSON data. Raises ConfigError
        for a visitor that the program does not have, for an argument that does not fit it, and whatever the program
        raises.
        """
        ask_for_visit(self.application, self.log, visitor, self._clock.now_ms(), argument)
        self._call_what_is_due()

    @property
    def calls(self) -> list[HeldCall]:
        """The calls of async verbs that have no result yet, the oldest first; see `hold_calls`."""
        return self._held_calls.open()

    # ------------------------------------------------------------------ records out

    def output_topics(self) -> list[str]:
        """Return the names of topics outside that have been written to, sorted."""
        sources = set(self.application.program.topics())
        return sorted(name for name, info in self.log.topics().items() if not info.internal and name not in sources)

    # ------------------------------------------------------------------ looking in

    def store(self, name: str, partition: int = 0) -> Any:
        """Return a state store, as the task of `partition` sees it, or a global store; good until the next step.

        Where tasks are re-opened, the driver takes the task over to look in, and the next step opens it once more.
        """
        process = self._processes.running(looking=True)
        process.update_globals()
        globals_ = process.resources.globals_of(process.application).stores
        if name in globals_:
            return globals_[name]
        found = {task: self._stores(process, task) for task in self._tasks if task.partition == partition}
        for stores in found.values():
            if name in stores:
                return stores[name]
        every = (self._stores(process, task) for task in self._tasks)
        known = sorted({store for stores in every for store in stores} | set(globals_))
        raise ConfigError(f"there is no store {name!r} in partition {partition}; stores: {', '.join(known) or 'none'}")

    def _stores(self, process: TaskProcess, task: TaskId) -> Mapping[str, StateStore]:
        worker = process.worker(task, self._tasks[task], len(self._tasks))
        if worker.task is None:
            self._count_nodes(worker.run_batch({}, self.wall_clock_ms))
        assert worker.task is not None, f"task {task} is not open after a batch"
        return worker.task.stores

    def metrics(self) -> dict[str, NodeMetrics]:
        """Return the counters of every node, added up over all tasks, since the driver was made."""
        return self._metrics | self._processes.global_metrics()

    def dropped_records(self) -> int:
        """Return the number of records dropped for any reason, over all nodes."""
        return sum(sum(metric.dropped.values()) for metric in self.metrics().values())

    # ------------------------------------------------------------------ other processes

    def reopen(self) -> None:
        """Close every task; the next step opens it from committed data, in a new process of the same host.

        From then on the program's copies run, as with `reopen_tasks`.
        """
        self._processes.reopen()

    def move(self) -> None:
        """Close every task; the next step opens it from committed data, in a new process of another host.

        Nothing is there: the state is restored from the changelog, and a store with `logged=False` is empty.
        """
        self._processes.move()

    @property
    def hints(self) -> list[str]:
        """What shows only elsewhere: changes outside stores, of values in place, of stored values that are not put."""
        return self._processes.hints

    # ------------------------------------------------------------------ running

    def _drain(self) -> None:
        """Process all records, one at a time, the oldest first, except those that tasks hold back (`max_task_idle`)."""
        self._processes.running().update_globals()
        waiting: set[TaskId] = set()
        while True:
            heads = {
                task: found
                for task in self._tasks
                if task not in waiting
                and task.subtopology not in self._paused
                and (found := waiting_records(self.log, self.application.id, self._tasks[task], self._commit_every))
            }
            if not heads:
                break
            task, planned = self._choose(heads)
            if self._may_wait:
                # A task with `max_task_idle` has to see its other inputs, or it would wait for them.
                planned = {each: of[0][1] for each, of in heads[task].items()} | planned
            report = self._run(task, planned)
            if any(report.positions[each] >= up_to for each, up_to in planned.items()):
                waiting.clear()
            else:
                waiting.add(task)
        if self._reopen:
            self._processes.end()  # it may have filled global stores

    def _call_what_is_due(self, *, may_wait: bool = False) -> None:
        """Call due punctuators; `may_wait`: records may wait."""
        for task, partitions in self._tasks.items():
            if task.subtopology not in self._paused:
                # What a task waits with is processed before what is due now, as in a batch that finds both.
                self._run(task, self.log.end_offsets(partitions) if self._may_wait or may_wait else {})
        self._drain()
        self._settle()

    def _settle(self) -> None:
        """Let downstream tasks make calls that waited for upstream ones: all their records are read now."""
        for number in sorted(self._in_front, key=lambda each: len(self._in_front[each])):
            above, now = self._in_front[number], self._clock.now_ms()
            if number in self._paused or above & self._calls_under_way():
                continue
            holding = self.application.program.holding().intersection(above)
            inputs = [each for task, of in self._tasks.items() if task.subtopology in holding for each in of]
            read = self.log.committed(self.application.id, inputs).values()
            self._fronts[number] = Front(now, sum(position or 0 for position in read))
            for task in [each for each, tick in self._ticks.items() if each.subtopology == number and tick <= now]:
                self._run(task, {})
            self._drain()

    def _calls_under_way(self) -> set[int]:
        """Return the sub-topologies that wait for results."""
        calling, found = self.application.program.calling(), set[int]()
        for task, inputs in self._tasks.items():
            if task.subtopology in calling:
                commit = self.log.visible_commit(self.application.id, str(task), inputs)
                if commit is not None and not are_called(commit.engine_state, self._clock.now_ms()):
                    found.add(task.subtopology)
        return found

    def _choose(self, heads: Mapping[TaskId, Waiting]) -> tuple[TaskId, dict[TopicPartition, int]]:
        """Return the task with the oldest of `heads`, tasks' next records, and the offsets up to which it processes."""
        task = min(heads, key=lambda each: min(some[0][0] for some in heads[each].values()))
        return task, oldest_first(heads[task], self._commit_every)

    def _run(self, task: TaskId, ends: Mapping[TopicPartition, int]) -> TaskReport:
        """Run a batch, and one more for each further portion of a visit; return the report of the first."""
        report, is_visiting = self._run_batch(task, ends)
        while is_visiting:
            _, is_visiting = self._run_batch(task, {})
        return report

    def _run_batch(self, task: TaskId, ends: Mapping[TopicPartition, int]) -> tuple[TaskReport, bool]:
        process = self._processes.running()
        worker = process.worker(task, self._tasks[task], len(self._tasks))
        worker.ask(asked_visits(self.application.id, self.log), self._commit_every)
        front = self._fronts.get(task.subtopology)
        with process.in_place():
            report = worker.run_batch(ends, self._clock.now_ms(), visit_seconds=0.0, front=front)
        self._processes.check_threads()
        self._ticks[task] = NEVER if report.next_tick is None else report.next_tick
        self._count_nodes(report)
        is_visiting = worker.task is not None and worker.task.visits.are_due
        if self._reopen:
            self._processes.end()
        return report, is_visiting

    def _count_nodes(self, report: TaskReport) -> None:
        for name, counts in report.nodes.items():
            metrics = self._metrics.setdefault(name, NodeMetrics())
            metrics.records_in += counts["in"]
            metrics.records_out += counts["out"]
            metrics.dropped.update(counts["dropped"])
            metrics.user.update(counts["user"])

    def _source(self, topic: str) -> SourceNode:
        program = self.application.program
        nodes = [node for node in program.nodes.values() if isinstance(node, SourceNode)]
        for node in nodes:
            if topic in node.topics and topic not in program.internal_topics:
                return node
        for node in nodes:
            if node.pattern is not None and node.pattern.fullmatch(topic):
                if topic not in self.log.topics():
                    self._ensure(topic)
                    self._assign()
                return node
        raise UnknownTopicError(
            f"no source reads topic {topic!r}; the sources read: {', '.join(program.topics()) or 'patterns only'}"
        )

    def close(self) -> None:
        """Close every task and forget everything; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._processes.close()
        MemoryChangelog.forget(self._changelog)
        if self._given_log is None:
            self.log.close()
        self._directory.close()


def _targets(
    application: Application, given: Mapping[str, AnySink] | Callable[[str, AnySink], AnySink] | None
) -> Callable[[str, AnySink], AnySink]:
    """Return the function that finds a node's target. Raises ConfigError for a node that is no external sink."""
    if given is not None and not isinstance(given, Mapping):
        return given
    replaced = dict(given or {})
    known = [node for each in application.program.subtopologies for node in external_sinks(each)]
    if unknown := [node for node in replaced if node not in known]:
        raise ConfigError(
            f"sinks: {', '.join(map(repr, unknown))}: no external sink of the program; there is: "
            f"{', '.join(map(repr, known)) or 'none'}"
        )
    return lambda node, sink: replaced.get(node, sink)


def make_named_topics(application: Application, log: Log, count: Callable[[str], int]) -> None:
    """Create the topics that a program names, and that `log` does not have; internal ones are made with the tasks."""
    program = application.program
    internal = {decorate(application.id, each, program.internal_topics) for each in program.internal_topics}
    for topic in {*(named_topics(application) or program.topics())} - internal - log.topics().keys():
        log.create_topic(topic, count(topic))


class AutoCreatingLog(MemoryLog):
    """A memory log that creates an unknown topic when it is first used."""

    def __init__(self, count: Callable[[str], int], clock: Clock) -> None:
        super().__init__(world=World(clock=clock))
        self._count = count

    def _topic(self, name: str) -> Any:
        if name not in self.topics():
            self.create_topic(name, self._count(name))
        return super()._topic(name)


_MANY_BYTES = 1 << 20

Waiting = dict[TopicPartition, Sequence[tuple[int, int]]]
"""Records of each partition in the order of their offsets: the timestamp (ms), and the offset after the record."""


def oldest_first(waiting: Mapping[TopicPartition, Sequence[tuple[int, int]]], most: int) -> dict[TopicPartition, int]:
    """Return the offsets up to which the first `most` records are: the lowest timestamps first, as in a task."""
    partitions = ([(timestamp, each, end) for timestamp, end in waiting[each]] for each in waiting)
    return {each: end for _, each, end in islice(merge(*partitions, key=itemgetter(0)), most)}


def waiting_records(log: Log, application_id: str, partitions: Sequence[TopicPartition], most: int) -> Waiting:
    """Return up to `most` of the first records of each partition that were not processed yet."""
    ends = log.end_offsets(partitions)
    found: Waiting = {}
    for partition, position in log.committed(application_id, partitions).items():
        if position is not None and position < ends[partition]:
            batches = log.fetch(partition, position, ends[partition], 1 if most == 1 else _MANY_BYTES)
            offsets = [
                (timestamp, offset + 1)
                for batch in batches
                for timestamp, offset in zip(batch.timestamps, batch.offsets, strict=True)
            ]
            if offsets:
                found[partition] = offsets[:most]
    return found
