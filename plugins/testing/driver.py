"""TopologyTestDriver: runs a whole topology in this process, one record at a time, without Spark and files."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from penstock import (
    Application,
    ConfigError,
    Duration,
    Headers,
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
from penstock.plugins.applications.serdes import prepare_serdes
from penstock.plugins.changelogs.memory import MemoryChangelog
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.runtime.process_resources import ProcessResources
from penstock.plugins.runtime.report import TaskReport
from penstock.plugins.runtime.shipping import pack
from penstock.plugins.runtime.task_worker import TaskWorker
from penstock.plugins.runtime.temporary import TemporaryDirectory

from .piping import check_partitions, check_time, serialized
from .planning import Waiting, oldest_first
from .topic_reader import ReadsTopics, TopicReader, named_topics
from .topics import InputTopic

_MANY_BYTES = 1 << 20


class TopologyTestDriver(ReadsTopics):
    """Runs `program` (a Topology, a StreamsBuilder or an Application) in this process, to test it.

    The same Task, commits, changelog and restore as on Spark, with a log and stores in memory; stores that name a
    backend use it. Each piped record is processed and committed, then every record that it caused in repartition
    topics, the oldest first. With `commit_every`, a task processes up to so many records that wait, and then commits:
    records that `pipe_many` sends at once, and those in repartition topics. Every topic has `partitions` partitions, or
    what a mapping says (others: 1). The wall clock starts at `initial_wall_clock_ms` and moves only by
    `advance_wall_clock`. With `reopen_tasks`, every task is closed and opened again from what is committed after each
    step, as Spark may do: a processor that keeps state in attributes shows it. `settings` override the application's
    (for a bare Topology, the defaults).

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
        **settings: Any,
    ) -> None:
        self._directory = TemporaryDirectory("test")
        self._changelog = f"{self._directory.path}/{uuid.uuid4().hex}"
        given: dict[str, Any] = {
            "store_backend": "memory",
            **settings,
            "log": "memory:",
            "changelog": f"memory:{self._changelog}",
            "data_dir": str(self._directory.path),
        }
        if not isinstance(commit_every, int) or isinstance(commit_every, bool) or commit_every < 1:
            raise ConfigError(f"commit_every: expected a number of records from 1 on, found {commit_every!r}")
        if isinstance(program, Application):
            application = program.with_settings(**given)
        else:
            application = Application("test", program, **given)
        pack(application)  # as for Spark's workers, so that a test finds what could not be sent there
        prepare_serdes(application)  # as at a start: a test finds schemas that do not fit
        check_time("initial_wall_clock_ms", initial_wall_clock_ms)
        check_partitions(partitions, named_topics(application))
        self.application = application
        self._counts = partitions
        self._reopen = reopen_tasks
        self._commit_every = commit_every
        self._may_wait = duration_ms(application.settings.max_task_idle or "0ms") > 0
        self._clock = ManualClock(initial_wall_clock_ms)
        self.log = _AutoCreatingLog(self._count, self._clock)
        self._resources = ProcessResources(World(clock=self._clock, sleep=lambda seconds: None))
        self._outputs = TopicReader(application, self.log)
        self._metrics: dict[str, NodeMetrics] = {}
        self._workers: dict[TaskId, TaskWorker] = {}
        self._closed = False
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _count(self, topic: str) -> int:
        return self._counts if isinstance(self._counts, int) else self._counts.get(topic, 1)

    def _start(self) -> None:
        for topic in self.application.program.topics():
            self.log.ensure(topic)
        self._assign()
        self._drain()

    def _assign(self) -> None:
        """Make internal topics that are missing, and tasks for partitions that have none; run the new tasks."""
        partitions = {name: info.partitions for name, info in self.log.topics().items()}
        assignment = self.application.program.resolve(partitions, self.application.id)
        for topic, count in assignment.missing.items():
            self.log.create_topic(topic, count, internal=True)
        task_count = len(assignment.tasks)
        made = []
        for task_id, inputs in sorted(assignment.tasks.items()):
            worker = self._workers.get(task_id)
            if worker is not None:
                if worker.partitions == tuple(inputs):
                    continue
                worker.close()
            worker = self._workers[task_id] = TaskWorker(
                self.application, task_id, inputs, self.log, resources=self._resources, task_count=task_count
            )
            made.append(worker)
        for worker in made:
            self._run(worker, {})

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

    def pipe_raw(self, records: OutputBatch) -> None:
        """Send records as bytes to a source topic and run everything they cause."""
        self._source(records.topic)
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

    def advance_wall_clock(self, duration: Duration) -> None:
        """Move the wall clock on, fire what is due, and run everything it causes."""
        if duration_ms(duration, "advance_wall_clock") < 0:
            raise ConfigError("the wall clock does not go back")
        self._clock.advance(duration)
        for worker in self._workers.values():
            # What a task waits with is processed before what is due at this time, as in a batch that finds both.
            self._run(worker, self.log.end_offsets(worker.partitions) if self._may_wait else {})
        self._drain()

    def input_topic(self, topic: str) -> InputTopic:
        """Return a handle that pipes to one topic."""
        self._source(topic)
        return InputTopic(topic, self.pipe)

    def _serialized(
        self, topic: str, records: Iterable[Record | tuple[Any, ...]], partition: int | None
    ) -> OutputBatch:
        """Return records as bytes, as the source that reads `topic` will read them."""
        source, count = self._source(topic), self.log.topics()[topic].partitions
        return serialized(topic, source, self.application.settings, records, partition, count, self.wall_clock_ms)

    # ------------------------------------------------------------------ records out

    def sent(self, topic: str) -> list[list[Record]]:
        """Return every record of a source topic, by partition, as its source reads them."""
        source = self._source(topic)
        reader = TopicReader(self.application, self.log)
        return list(map(list, reader.by_partition(topic, source.key_serde, source.value_serde)))

    def output_topics(self) -> list[str]:
        """Return the names of topics outside that have been written to, sorted."""
        sources = set(self.application.program.topics())
        return sorted(name for name, info in self.log.topics().items() if not info.internal and name not in sources)

    # ------------------------------------------------------------------ looking in

    def store(self, name: str, partition: int = 0) -> Any:
        """Return a state store, as the task of `partition` sees it, or a global store."""
        globals_ = self._resources.globals_of(self.application).stores
        if name in globals_:
            return globals_[name]
        for task_id, worker in self._workers.items():
            if task_id.partition == partition and name in (stores := self._stores(worker)):
                return stores[name]
        known = sorted({store for worker in self._workers.values() for store in self._stores(worker)} | set(globals_))
        raise ConfigError(f"there is no store {name!r} in partition {partition}; stores: {', '.join(known) or 'none'}")

    def _stores(self, worker: TaskWorker) -> Mapping[str, StateStore]:
        if worker.task is None:
            self._run(worker, {}, reopen=False)
        assert worker.task is not None
        return worker.task.stores

    def metrics(self) -> dict[str, NodeMetrics]:
        """Return the counters of every node, added up over all tasks, since the driver was made."""
        return self._metrics

    def dropped_records(self) -> int:
        """Return how many records were dropped for any reason, over all nodes."""
        return sum(sum(each.dropped.values()) for each in self._metrics.values())

    def reopen(self) -> None:
        """Close every task; the next step opens it again from what is committed, as after a move to another worker."""
        for worker in self._workers.values():
            worker.close()

    # ------------------------------------------------------------------ running

    def _drain(self) -> None:
        """Process all records, one at a time, the oldest first, except those that tasks hold back (`max_task_idle`)."""
        self._resources.update_globals(self.application, self.log, {}, self.wall_clock_ms)
        self._metrics |= self._resources.globals_of(self.application).metrics()
        waiting: set[TaskId] = set()
        while True:
            heads = [
                (min(some[0][0] for some in found.values()), order, worker, found)
                for order, worker in enumerate(self._workers.values())
                if worker.id not in waiting and (found := self._waiting(worker))
            ]
            if not heads:
                return
            _, _, worker, found = min(heads, key=lambda head: head[:2])
            planned = oldest_first(found, self._commit_every)
            if self._may_wait:
                # A task with `max_task_idle` has to see its other inputs, or it would wait for them.
                planned = {each: of[0][1] for each, of in found.items()} | planned
            report = self._run(worker, planned)
            if any(report.positions[each] >= up_to for each, up_to in planned.items()):
                waiting.clear()
            else:
                waiting.add(worker.id)

    def _waiting(self, worker: TaskWorker) -> Waiting:
        """Return the first records of each of a task's partitions that wait: timestamps, and the offsets after them."""
        ends = self.log.end_offsets(worker.partitions)
        found: Waiting = {}
        for partition, position in self.log.committed(self.application.id, worker.partitions).items():
            if position is not None and position < ends[partition]:
                batches = self.log.fetch(
                    partition, position, ends[partition], 1 if self._commit_every == 1 else _MANY_BYTES
                )
                offsets = [
                    (timestamp, offset + 1)
                    for batch in batches
                    for timestamp, offset in zip(batch.timestamps, batch.offsets, strict=True)
                ]
                found[partition] = offsets[: self._commit_every]
        return found

    def _run(self, worker: TaskWorker, ends: Mapping[TopicPartition, int], *, reopen: bool = True) -> TaskReport:
        report = worker.run_batch(ends, self._clock.now_ms())
        for name, counts in report.nodes.items():
            metrics = self._metrics.setdefault(name, NodeMetrics())
            metrics.records_in += counts["in"]
            metrics.records_out += counts["out"]
            metrics.dropped.update(counts["dropped"])
        if self._reopen and reopen:
            worker.close()
        return report

    def _source(self, topic: str) -> SourceNode:
        program = self.application.program
        nodes = [node for node in program.nodes.values() if isinstance(node, SourceNode)]
        for node in nodes:
            if topic in node.topics and topic not in program.internal_topics:
                return node
        for node in nodes:
            if node.pattern is not None and node.pattern.fullmatch(topic):
                if topic not in self.log.topics():
                    self.log.ensure(topic)
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
        for worker in self._workers.values():
            worker.destroy()
        self._resources.close()
        MemoryChangelog.forget(self._changelog)
        self._directory.close()

    def __enter__(self) -> TopologyTestDriver:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _AutoCreatingLog(MemoryLog):
    """A memory log that creates an unknown topic when it is first used."""

    def __init__(self, count: Any, clock: ManualClock) -> None:
        super().__init__(world=World(clock=clock))
        self._count = count

    def ensure(self, topic: str) -> None:
        if topic not in self.topics():
            self.create_topic(topic, self._count(topic))

    def _topic(self, name: str) -> Any:
        self.ensure(name)
        return super()._topic(name)
