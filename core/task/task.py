"""A Task: one partition of one sub-topology, as a pure machine. Records and the time go in, outputs and state changes come out."""

from __future__ import annotations

import json
import logging
import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NoReturn

from ..clock import Duration, duration_ms
from ..errors import (
    ConfigError,
    PenstockError,
    ProcessingError,
    ProductionError,
    RecordRefusedError,
    SerdeError,
    TopologyError,
)
from ..extractors import TimestampExtractor, fail_on_invalid_timestamp, skip_on_invalid_timestamp
from ..handlers import Fail, Failure, RetryAfter, SendToDeadLetter, Skip, Stage
from ..hooks import registry
from ..log import ENGINE_STATE_BYTES
from ..metrics import NodeMetrics
from ..processor import Processor, ValueTransformer
from ..program.nodes import Node, ProcessorNode, SinkNode, SourceNode, Subtopology, TaskId
from ..program.serdes import resolve_serde, serde_name
from ..punctuation import PunctuationType, Punctuator
from ..record import Headers, OutputBatch, Record, RecordBatch, RecordMetadata, TopicPartition
from ..serde import Serde
from ..settings.settings import Settings
from ..store import StateStore
from .context import NodeContext, ReadOnlyView, TransformerContext
from .dead_letter import failure_headers
from .schedules import NEVER, Schedule, Schedules

_log = logging.getLogger("penstock.task.task")
_record = tuple.__new__
_LEAST_ROOM = 200
"""So many bytes schedules may take, however many partitions the task reads."""
_ERRORS = (Exception, SystemExit)
"""What fails a record. `sys.exit` in a library would end a worker without a word, and Spark would start another, for ever."""
_EXPECTED = "expected a Record, for instance record.with_value(...)"
_NO_TIMESTAMP = "no int of milliseconds from 0 to 2**63 - 1"

Run = Callable[[Record], Any]


class RetryRequested(PenstockError):
    """A handler asked to process again after `delay_ms`; the driver of the task goes back to the last commit."""

    def __init__(self, failure: Failure, delay_ms: int) -> None:
        super().__init__(f"retry asked for by the {failure.stage.value} handler of node {failure.node!r}")
        self.failure = failure
        self.delay_ms = delay_ms
        self.key = failure.stage, failure.node, failure.topic, failure.partition, failure.offset
        """What the task asks `attempt` with."""


class _Queue:
    """What one input partition has for its task: raw batches, and the records of the first one, decoded."""

    __slots__ = (
        "source", "topic_partition", "raw", "batch", "start", "records", "index",
        "key_serde", "value_serde", "extractor", "partition_time", "run", "child", "counts", "bad", "kept", "more",
    )  # fmt: skip

    def __init__(
        self,
        source: SourceNode,
        partition: TopicPartition,
        key: Serde[Any],
        value: Serde[Any],
        extractor: TimestampExtractor,
    ) -> None:
        self.source = source
        self.topic_partition = partition
        self.raw: deque[RecordBatch] = deque()
        self.batch: RecordBatch | None = None
        self.start = 0  # index in the batch's columns of records[0]; meaningless where `kept` is set
        self.kept: list[int] | None = None  # for each record its index in the columns, when some were skipped
        self.records: list[Record] = []
        self.index = 0  # of the next record to process
        self.key_serde, self.value_serde, self.extractor = key, value, extractor
        self.partition_time = -1
        self.run: Run = lambda record: None
        self.child = source.name
        self.counts: list[int] = [0]
        self.more = False  # the log has more than is queued here
        self.bad: tuple[int, Exception] | None = None  # (index in the columns, error) of the record after records[-1]

    def column_index(self, index: int) -> int:
        return self.start + index if self.kept is None else self.kept[index]


class Task:
    """One partition of one sub-topology: processors, stores, record queues, stream time, punctuators.

    No threads, no sockets, no clock of its own; called from one thread. `partitions` are the input
    partitions by their names in the log, in the order of the sources, with the source that reads each. `topic_names` maps a sink's topic to its name in the log;
    `partition_counts` answers how many partitions a topic has (only asked where a partitioner is used).
    `saved` is the `engine_state()` of the last commit. `attempt` answers how often a failure was met before. `refusals` are what
    the log refused in earlier attempts, by topic: such records are asked about at their sinks. `stopwatch` answers in seconds, and serves `decode_seconds` only.
    """

    def __init__(
        self,
        task_id: TaskId,
        subtopology: Subtopology,
        application_id: str,
        settings: Settings,
        partitions: Sequence[tuple[TopicPartition, SourceNode]],
        stores: Mapping[str, StateStore],
        global_stores: Mapping[str, StateStore],
        *,
        topic_names: Callable[[str], str] = str,
        partition_counts: Callable[[str], int] | None = None,
        saved: bytes = b"",
        wall_clock_ms: int = 0,
        attempt: Callable[[tuple[Any, ...]], int] = lambda failed: 1,
        refusals: Mapping[str, RecordRefusedError] | None = None,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.id = task_id
        self.application_id = application_id
        self.settings = settings
        self.stores = stores
        self.global_stores = {name: ReadOnlyView(store) for name, store in global_stores.items()}
        self.stream_time = -1
        self.wall_clock = wall_clock_ms
        self.commit_requested = False
        self.needs_attention = False
        self.records_in = 0
        self.changed_engine_state = False
        self._attempt = attempt
        self._refusals = refusals or {}
        self._stopwatch = stopwatch
        self.decode_seconds = 0.0
        self._topic_names = topic_names
        self._partition_counts = partition_counts
        self._nodes = {node.name: node for node in subtopology.nodes}
        self._contexts: dict[str, TransformerContext] = {}
        self._processors: list[tuple[str, Processor | ValueTransformer]] = []
        self._outputs: dict[str, OutputBatch] = {}
        self._edges: dict[str, tuple[list[int], tuple[str, ...]]] = {}
        self._current: _Queue | None = None
        self._remaining: Any = iter(())
        self._last = -1
        self._stream_due = NEVER
        self._firing: Schedule | None = None
        self._closed = False
        self._saved: dict[str, Any] = json.loads(saved) if saved else {}
        self._schedules = Schedules(self._saved, self._note_change)
        self._idle_since: int | None = None
        self._has_idled = False
        self._max_idle = None if settings.max_task_idle is None else duration_ms(settings.max_task_idle)
        self.node_metrics: dict[str, NodeMetrics] = {name: NodeMetrics() for name in self._nodes}

        self._queues = [self._make_queue(source, partition) for partition, source in partitions]
        self._by_partition = {queue.topic_partition: queue for queue in self._queues}
        self._restore_times()
        self._compile(subtopology)

    # ------------------------------------------------------------------ building

    def _make_queue(self, source: SourceNode, partition: TopicPartition) -> _Queue:
        settings = self.settings
        return _Queue(
            source,
            partition,
            resolve_serde(source.key_serde, settings.key_serde, f"source {source.name!r}").bind(
                partition.topic, is_key=True
            ),
            resolve_serde(source.value_serde, settings.value_serde, f"source {source.name!r}").bind(
                partition.topic, is_key=False
            ),
            source.timestamp_extractor or settings.timestamp_extractor,
        )

    def _compile(self, subtopology: Subtopology) -> None:
        """Make every node's run function, children first, so that a forward is one bound call."""
        runs: dict[str, Run] = {}
        try:
            for node in reversed(subtopology.nodes):
                children = [(child, runs[child]) for child in subtopology.children.get(node.name, ())]
                runs[node.name] = self._compile_node(node, children)
            for queue in self._queues:
                source = queue.source.name
                below = subtopology.children.get(source, ())
                # With one child the loop over records calls it directly and counts for the source afterwards.
                queue.child = below[0] if len(below) == 1 else source
                queue.run = runs[queue.child]
                queue.counts = self._edges[source][0] if len(below) == 1 else [0]
            for node in subtopology.nodes:
                if isinstance(node, ProcessorNode):
                    self._init_node(node.name)
            self._schedules.end_all()
        except BaseException:
            self.close()
            raise
        self._update_stream_due()

    def _compile_node(self, node: Node, children: list[tuple[str, Run]]) -> Run:
        if isinstance(node, SinkNode):
            return self._compile_sink(node)
        only = self._nodes[children[0][0]] if len(children) == 1 else None
        if isinstance(only, SinkNode) and isinstance(only.topic, str) and only.partitioner is None:
            counts = [0, 0]
            topic = self._topic_names(only.topic)
            forward = self._refusing(only, topic, self._compile_write(only, topic, counts))
        else:
            forward, counts = self._compile_forward(node.name, children)
        self._edges[node.name] = counts, tuple(name for name, _ in children)
        if isinstance(node, SourceNode):
            return forward
        processor = make_processor(node)
        self._processors.append((node.name, processor))
        if isinstance(processor, ValueTransformer):
            self._contexts[node.name] = TransformerContext(self, node, self.node_metrics[node.name])
            transform = processor.transform

            def run(record: Record) -> None:
                forward(_record(Record, (record[0], transform(record[0], record[1]), record[2], record[3])))

            return run
        self._contexts[node.name] = NodeContext(self, node, self.node_metrics[node.name], forward)
        return processor.process

    def _init_node(self, name: str) -> None:
        processor = next(made for node, made in self._processors if node == name)
        self._schedules.begin(name, processor)
        try:
            processor.init(self._contexts[name])  # type: ignore[arg-type]
        except PenstockError:
            raise
        except _ERRORS as error:
            raise ProcessingError(
                f"node {name!r} in task {self.id}: init raised {type(error).__name__}: {error}"
            ) from error
        self._schedules.end(name)

    def _compile_forward(self, name: str, children: list[tuple[str, Run]]) -> tuple[Callable[..., None], list[int]]:
        """Return forward(record, to=None) and its counts: [to all children, to the first only, to the second only, ...]."""
        counts = [0] * (len(children) + 1)
        failed = self._processing_failed
        index = {child: position + 1 for position, (child, _) in enumerate(children)}
        runs = dict(children)

        def forward_to(record: Record, to: str) -> None:
            run = runs.get(to)
            if run is None:
                raise TopologyError(
                    f"node {name!r} forwards to {to!r}, which is not a child of it; children: {', '.join(runs) or 'none'}"
                )
            counts[index[to]] += 1
            try:
                run(record)
            except _ERRORS as error:
                failed(to, record, error)

        if len(children) == 1:
            only, only_run = children[0]

            def forward(record: Record, to: str | None = None) -> None:
                if to is not None and to != only:
                    forward_to(record, to)
                counts[0] += 1
                # A try costs nothing until something is raised; so every edge has one, and a skipped record is skipped at its node only.
                try:
                    only_run(record)
                except _ERRORS as error:
                    failed(only, record, error)

            return forward, counts

        def forward_all(record: Record, to: str | None = None) -> None:
            if to is not None:
                forward_to(record, to)
                return
            counts[0] += 1
            for child, run in children:
                try:
                    run(record)
                except _ERRORS as error:
                    failed(child, record, error)

        return forward_all, counts

    def _compile_sink(self, node: SinkNode) -> Run:
        compile_write = self._compile_write if node.partitioner is None else self._compile_partitioned_write
        if isinstance(node.topic, str):
            topic = self._topic_names(node.topic)
            return self._refusing(node, topic, compile_write(node, topic))
        choose = node.topic
        writers: dict[str, Run] = {}

        def run(record: Record) -> None:
            topic = choose(record, self.record_metadata())
            write = writers.get(topic)
            if write is None:
                if not isinstance(topic, str) or not topic:
                    raise ProductionError(
                        f"sink {node.name!r}: its topic chooser returned {topic!r}, expected a topic's name"
                    )
                writers[topic] = write = self._refusing(node, topic, compile_write(node, topic))
            write(record)

        return run

    def _refusing(self, node: SinkNode, topic: str, write: Callable[..., None]) -> Callable[..., None]:
        """Return `write`, with a look at each record if the log has refused one of this topic: else it would cost for nothing."""
        refusal = self._refusals.get(topic)
        if refusal is None:
            return write
        output = self._outputs[topic]

        def look_and_write(record: Record, to: str | None = None) -> None:
            before = len(output.keys)
            if to is None:
                write(record)
            else:
                write(record, to)
            if len(output.keys) > before and refusal.refuses(output.keys[-1], output.values[-1]):
                size = len(output.keys[-1] or b"") + len(output.values[-1] or b"")
                for column in (output.keys, output.values, output.timestamps, output.headers, output.partitions):
                    if column is not None:
                        column.pop()
                self._production_failed(node, topic, record, ProductionError(f"{refusal} (this one has {size} bytes)"))

        return look_and_write

    def _compile_write(self, node: SinkNode, topic: str, counts: list[int] | None = None) -> Callable[..., None]:
        """Return the function that serializes a record and adds it to the topic's columns.

        It is also what a processor forwards with, without a call in between, when the sink is its only child; then `counts` are the
        edge's, as in `_compile_forward`.
        """
        edge = [0] if counts is None else counts
        what = f"sink {node.name!r}"
        key_serde = resolve_serde(node.key_serde, self.settings.key_serde, what).bind(topic, is_key=True)
        value_serde = resolve_serde(node.value_serde, self.settings.value_serde, what).bind(topic, is_key=False)
        fast_key, fast_value = key_serde.serializer(), value_serde.serializer()
        output = self._outputs.setdefault(topic, OutputBatch(topic, [], [], []))
        append_key, append_value, append_timestamp = output.keys.append, output.values.append, output.timestamps.append
        failed, name = self._production_failed, node.name

        def write(record: Record, to: str | None = None) -> None:
            if to is not None and to != name:
                raise TopologyError(f"forwarding to {to!r}, which is not a child of this node; children: {name}")
            edge[0] += 1
            try:
                key, value, timestamp, headers = record
            except (TypeError, ValueError):
                raise ProcessingError(f"forwarded {_shown(record)} to sink {name!r}, {_EXPECTED}") from None
            try:
                raw_key = None if key is None else fast_key(key)
                raw_value = None if value is None else fast_value(value)
            except Exception:
                try:
                    raw_key = None if key is None else key_serde.serialize(key)
                    raw_value = None if value is None else value_serde.serialize(value)
                except Exception as error:
                    failed(node, topic, record, error)
                    return
            if type(timestamp) is not int or timestamp >> 63:  # below 0 or beyond 64 bits
                failed(node, topic, record, ProductionError(f"the timestamp {timestamp!r} is {_NO_TIMESTAMP}"))
                return
            if headers and (wrong := _wrong_headers(headers)):
                failed(node, topic, record, ProductionError(wrong))
                return
            append_key(raw_key)
            append_value(raw_value)
            append_timestamp(timestamp)
            if headers or output.headers is not None:
                _set_last_headers(output, headers)
            if output.partitions is not None:
                output.partitions.append(None)

        return write

    def _compile_partitioned_write(self, node: SinkNode, topic: str) -> Run:
        """Return `_compile_write` for a sink with a partitioner of its own."""
        write = self._compile_write(node, topic)
        partitioner = node.partitioner
        assert partitioner is not None
        output = self._outputs[topic]
        metrics = self.node_metrics[node.name]
        count = 0

        def write_partitioned(record: Record) -> None:
            nonlocal count
            try:
                count = count or self.partition_count(topic)
                chosen = _partitions(partitioner(topic, record, count), count, node.name)
            except Exception as error:
                self._production_failed(node, topic, record, error)
                return
            if chosen == ():
                metrics.drop("no_partition")
                return
            before = len(output.keys)
            if output.partitions is None:
                output.partitions = [None] * before
            write(record)
            if len(output.keys) > before:
                output.partitions[-1] = chosen

        return write_partitioned

    # ------------------------------------------------------------------ what contexts ask for

    def record_metadata(self) -> RecordMetadata | None:
        """Return where the current record was read; None in a punctuator."""
        queue = self._current
        if queue is None or queue.batch is None:
            return None
        offset = queue.batch.offsets[queue.column_index(self._current_index())]
        return RecordMetadata(queue.batch.topic, queue.batch.partition, offset)

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic of the log has."""
        if self._partition_counts is None:
            raise ConfigError(f"task {self.id}: the number of partitions of topic {topic!r} is not known here")
        return self._partition_counts(topic)

    def schedule(
        self,
        node: str,
        interval: Duration,
        punctuator: Punctuator,
        clock: PunctuationType,
        start: int | None,
        name: str | None,
    ) -> Schedule:
        """Register a punctuator; in a re-opened task `init` gets what was saved of it."""
        now = self.stream_time if clock is PunctuationType.STREAM_TIME else self.wall_clock
        room = self._room_for_schedules
        schedule = self._schedules.add(
            node, interval, punctuator, clock, start, name, now=now, room=room, firing=self._firing
        )
        self.needs_attention = True
        return schedule

    def _room_for_schedules(self) -> int:
        """Return how many bytes of the engine's state schedules may take."""
        others = len(json.dumps(self._times_and_values(), separators=(",", ":")))
        # Times that are not known yet will have 13 digits.
        return max(_LEAST_ROOM, ENGINE_STATE_BYTES - others - 13 * (len(self._queues) + 4))

    # ------------------------------------------------------------------ records in

    def add_records(self, batch: RecordBatch, *, more: bool = False) -> None:
        """Queue records of one input partition; batches of a partition come in offset order.

        `more` says that the log has further records of this partition: then the task does not pass over it once it is empty.
        """
        queue = self._by_partition.get(TopicPartition(batch.topic, batch.partition))
        if queue is None:
            raise ConfigError(
                f"task {self.id} does not read {batch.topic}-{batch.partition}; it reads "
                + ", ".join(map(str, self._by_partition))
            )
        queue.raw.append(batch)
        queue.more = more

    def expect(self, partition: TopicPartition, more: bool) -> None:
        """Say whether the log has records of a partition beyond those that are queued, as `add_records` does."""
        self._by_partition[partition].more = more

    def queued_to(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last record of a partition that was queued, processed or not; None if none was."""
        queue = self._by_partition[partition]
        last = queue.raw[-1] if queue.raw else queue.batch
        return None if last is None else last.next_offset

    def is_empty(self, partition: TopicPartition) -> bool:
        """Return whether nothing of a partition is queued."""
        queue = self._by_partition[partition]
        return queue.index >= len(queue.records) and not queue.raw and queue.bad is None and self._batch_done(queue)

    def has_work(self) -> bool:
        """Return whether any record is queued."""
        return any(not self.is_empty(partition) for partition in self._by_partition)

    def process(self, limit: int, *, may_wait: bool = True) -> int:
        """Process up to `limit` queued records; return how many.

        Fewer than `limit` means that nothing is left, that a commit was asked for, that an input partition is empty and has `more`, or that the
        task waits for an input partition that is empty (`max_task_idle`; never when not `may_wait`).
        """
        taken = 0
        while taken < limit and not self.commit_requested:
            if len(self._queues) == 1:
                queue = self._queues[0]
                if not self._fill(queue):
                    break
                bound = NEVER
            else:
                chosen = self._choose(may_wait)
                if chosen is None:
                    break
                queue, bound = chosen
            taken += self._run(queue, limit - taken, bound)
        return taken

    def _choose(self, may_wait: bool) -> tuple[_Queue, int] | None:
        """Return the queue whose head is oldest (the first of them), and the highest timestamp up to which it stays so."""
        heads: list[tuple[int, int]] = []
        empty = False
        for order, queue in enumerate(self._queues):
            if self._fill(queue):
                heads.append((queue.records[queue.index][2], order))
            elif queue.more and self._max_idle is not None:
                return None
            else:
                empty = True
        if not heads:
            # Else the records that it waits with are only not read yet, after a re-opening.
            if self._has_idled:
                self._idle_since, self._has_idled = None, False
            return None
        if not empty:
            self._idle_since, self._has_idled = None, False
        elif self._max_idle and may_wait:
            if self._idle_since is None:
                self._idle_since = self.wall_clock
                self.changed_engine_state = True
            if self.wall_clock - self._idle_since < self._max_idle:
                return None
            self._has_idled = True
        heads.sort()
        chosen = heads[0][1]
        bound = min((time if order > chosen else time - 1 for time, order in heads[1:]), default=NEVER)
        return self._queues[chosen], bound

    def _run(self, queue: _Queue, limit: int, bound: int) -> int:
        """Process records of one queue while they are not above `bound`, at most `limit`; return how many."""
        first = queue.index
        records = queue.records if first == 0 and limit >= len(queue.records) else queue.records[first : first + limit]
        if bound < NEVER:
            stop = next((index for index in range(1, len(records)) if records[index][2] > bound), len(records))
            records = records[:stop]
        run, child, failed = queue.run, queue.child, self._processing_failed
        stream_time, stream_due = self.stream_time, self._stream_due
        highest = queue.partition_time
        # How far the loop is, its iterator knows; so nothing is counted for each record.
        self._current, self._remaining, self._last = queue, iter(records), first + len(records) - 1
        try:
            for record in self._remaining:
                timestamp = record[2]
                if timestamp > highest:
                    highest = timestamp
                    if timestamp > stream_time:
                        self.stream_time = stream_time = timestamp
                # A try costs nothing until something is raised; so every edge has one, and a record that is skipped is
                # skipped at its node only.
                try:
                    run(record)
                except _ERRORS as error:
                    failed(child, record, error)
                if stream_time >= stream_due or self.needs_attention:
                    self._attend(queue, stream_time)
                    stream_due = self._stream_due
                    if self.commit_requested:
                        break
        except BaseException:
            queue.index = self._current_index()
            raise
        else:
            queue.index = self._current_index() + 1
        finally:
            self._current = None
            queue.partition_time = highest
        done = queue.index - first
        queue.counts[0] += done
        self.records_in += done
        return done

    def _current_index(self) -> int:
        """Return the index of the current record among those of its queue."""
        index: int = self._last - self._remaining.__length_hint__()
        return index

    def _attend(self, queue: _Queue, stream_time: int) -> None:
        """Between two records: fire stream-time punctuators that are due, note new schedules."""
        self.needs_attention = False
        queue.index, self._current = self._current_index() + 1, None
        self._punctuate(PunctuationType.STREAM_TIME, stream_time)
        self._current = queue

    def _batch_done(self, queue: _Queue) -> bool:
        return queue.batch is None or self._next_column(queue) >= len(queue.batch)

    def _next_column(self, queue: _Queue) -> int:
        """Return the index in the batch's columns after the last decoded record."""
        if queue.kept is not None:
            return queue.start
        return queue.start + len(queue.records)

    def _fill(self, queue: _Queue) -> bool:
        """Make sure that the queue has a decoded record at its head; return whether it has one."""
        while queue.index >= len(queue.records):
            if queue.bad is not None:
                self._skip_bad(queue)
            elif queue.batch is not None and self._next_column(queue) < len(queue.batch):
                self._decode_timed(queue, self._next_column(queue))
            elif queue.raw:
                queue.batch = queue.raw.popleft()
                queue.records, queue.index, queue.start, queue.kept = [], 0, 0, None
                self._decode_timed(queue, 0)
            else:
                return False
        return True

    def _decode_timed(self, queue: _Queue, start: int) -> None:
        began = self._stopwatch()
        self._decode(queue, start)
        self.decode_seconds += self._stopwatch() - began

    def _decode(self, queue: _Queue, start: int) -> None:
        """Decode the batch from column index `start`, in bulk; stop before a record that cannot be decoded."""
        batch = queue.batch
        assert batch is not None
        keys, values, timestamps, headers = batch.keys, batch.values, batch.timestamps, batch.headers
        if start:
            keys, values, timestamps = keys[start:], values[start:], timestamps[start:]
            headers = headers[start:] if headers is not None else None
        try:
            decoded_keys = queue.key_serde.deserialize_column(keys)
            decoded_values = queue.value_serde.deserialize_column(values)
        except Exception:
            self._decode_one_by_one(queue, start)
            return
        self._check_column(queue, "key", decoded_keys, len(keys))
        self._check_column(queue, "value", decoded_values, len(keys))
        every_header: Iterable[Headers] = repeat(()) if headers is None else headers
        records: list[Record] = list(
            map(_record, repeat(Record), zip(decoded_keys, decoded_values, timestamps, every_header))
        )
        extractor = queue.extractor
        if extractor in (fail_on_invalid_timestamp, skip_on_invalid_timestamp) and (
            not records or min(timestamps) >= 0
        ):
            queue.records, queue.index, queue.start, queue.kept = records, 0, start, None
            return
        self._decode_one_by_one(queue, start)

    def _check_column(self, queue: _Queue, what: str, decoded: object, expected: int) -> None:
        """Raise SerdeError unless a serde returned a list of as many as it got: else records would be lost, or never end."""
        if isinstance(decoded, (list, tuple)) and len(decoded) == expected:
            return
        serde = queue.source.key_serde if what == "key" else queue.source.value_serde
        default = self.settings.key_serde if what == "key" else self.settings.value_serde
        given = serde_name(default if serde is None else serde)
        found = f"a list of {len(decoded)}" if isinstance(decoded, (list, tuple)) else _shown(decoded)
        raise SerdeError(
            f"application {self.application_id!r}, task {self.id}, node {queue.source.name!r}, {queue.topic_partition}: the {what} serde "
            f"{given} is wrong: its deserialize_column, given a column of {expected}, returned {found}; expected a list with what "
            "deserialize returns for each. Nothing was changed: mend the serde and start again"
        )

    def _decode_one_by_one(self, queue: _Queue, start: int) -> None:
        """Decode as `_decode` does, record by record: with an extractor of the user's, or to find the bad one."""
        batch = queue.batch
        assert batch is not None
        records: list[Record] = []
        kept: list[int] = []
        partition_time = queue.partition_time
        column = start
        queue.bad = None
        while column < len(batch):
            raw_key, raw_value = batch.keys[column], batch.values[column]
            headers = batch.headers[column] if batch.headers is not None else ()
            try:
                record = Record(
                    None if raw_key is None else queue.key_serde.deserialize(raw_key),
                    None if raw_value is None else queue.value_serde.deserialize(raw_value),
                    batch.timestamps[column],
                    headers,
                )
                timestamp = queue.extractor(record, partition_time, self.wall_clock)
                if type(timestamp) is not int or timestamp >> 63 > 0:
                    raise ProcessingError(
                        f"the timestamp extractor returned {timestamp!r}, which is {_NO_TIMESTAMP} (below 0 drops the record)"
                    )
            except Exception as error:
                queue.bad = column, error
                break
            if timestamp < 0:
                self.node_metrics[queue.source.name].drop("invalid_timestamp")
                self.changed_engine_state = True
            else:
                records.append(record if timestamp == record.timestamp else record.with_timestamp(timestamp))
                kept.append(column)
                partition_time = max(partition_time, timestamp)
            column += 1
        queue.records, queue.index, queue.start, queue.kept = records, 0, column, kept

    def _skip_bad(self, queue: _Queue) -> None:
        """Ask the deserialization handler about the record at the head, which cannot be decoded."""
        assert queue.bad is not None and queue.batch is not None
        column, error = queue.bad
        batch = queue.batch
        self._decide(
            self._failure_at(batch, column, Stage.DESERIALIZATION, queue.source.name, error),
            self.settings.deserialization_handler,
            "deserialization",
        )
        queue.bad = None
        queue.start = column + 1
        queue.records, queue.index, queue.kept = [], 0, []

    # ------------------------------------------------------------------ time

    def advance_wall_clock(self, now_ms: int) -> None:
        """Set the wall clock, which never goes back; call `punctuate_wall_clock` to fire what is due."""
        if now_ms > self.wall_clock:
            self.wall_clock = now_ms

    def punctuate_wall_clock(self) -> bool:
        """Fire the wall-clock punctuators that are due; return whether any was."""
        return self._punctuate(PunctuationType.WALL_CLOCK_TIME, self.wall_clock)

    def next_wall_clock_punctuation(self) -> int | None:
        """Return when the next wall-clock punctuator is due (ms), or None."""
        due = self._schedules.next_due(PunctuationType.WALL_CLOCK_TIME)
        return None if due == NEVER else due

    def _note_change(self) -> None:
        self.changed_engine_state = True

    def wall_clock_nodes(self) -> list[str]:
        """Return the nodes that schedule by the wall clock."""
        return self._schedules.nodes(PunctuationType.WALL_CLOCK_TIME)

    def _punctuate(self, kind: PunctuationType, now: int) -> bool:
        fired = False
        while (schedule := self._schedules.take_due(kind, now)) is not None:
            fired = self.changed_engine_state = True
            self._firing = schedule
            try:
                schedule.punctuator(now)
            except _ERRORS as error:
                self._processing_failed(schedule.node, _NO_RECORD, error)
            finally:
                self._firing = None
        self._update_stream_due()
        return fired

    def _update_stream_due(self) -> None:
        self._stream_due = self._schedules.next_due(PunctuationType.STREAM_TIME)

    # ------------------------------------------------------------------ commit

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the first record of a partition that is not processed; None if none was queued."""
        queue = self._by_partition[partition]
        if queue.index < len(queue.records):
            assert queue.batch is not None
            return queue.batch.offsets[queue.column_index(queue.index)]
        if queue.bad is not None:
            assert queue.batch is not None
            return queue.batch.offsets[queue.bad[0]]
        if queue.batch is not None and not self._batch_done(queue):
            return queue.batch.offsets[self._next_column(queue)]
        if queue.raw:
            return queue.raw[0].offsets[0] if len(queue.raw[0]) else queue.raw[0].next_offset
        return None if queue.batch is None else queue.batch.next_offset

    def take_outputs(self) -> list[OutputBatch]:
        """Return what was produced since the last call, a batch a topic, and forget it."""
        taken = []
        for topic, output in self._outputs.items():
            if output.keys:
                taken.append(
                    OutputBatch(
                        topic, output.keys[:], output.values[:], output.timestamps[:], output.headers, output.partitions
                    )
                )
                # The compiled sinks hold these lists' append methods, so they are emptied, not replaced.
                output.keys.clear()
                output.values.clear()
                output.timestamps.clear()
                output.headers = output.partitions = None
        return taken

    def output_bytes(self) -> int:
        """Return about how many bytes wait in the outputs."""
        total = 0
        for output in self._outputs.values():
            count = len(output.values)
            if count:
                sample = output.values[:: max(1, count // 64)]
                size = sum(len(value) for value in sample if value is not None)
                total += count * (size // len(sample) + 32)
        return total

    def engine_state(self) -> bytes:
        """Return what the next opening of this task must know, as compact JSON."""
        state = self._times_and_values()
        schedules = self._schedules.to_data()
        if schedules:
            state["timers"] = schedules
        return json.dumps(state, separators=(",", ":")).encode()

    def _times_and_values(self) -> dict[str, Any]:
        state: dict[str, Any] = {"stream": self.stream_time, "wall": self.wall_clock}
        times = {f"{tp.topic}:{tp.partition}": queue.partition_time for tp, queue in self._by_partition.items()}
        if any(time >= 0 for time in times.values()):
            state["partitions"] = times
        if self._idle_since is not None:
            state["idle"] = self._idle_since
        values = {name: context.engine_values for name, context in self._contexts.items() if context.engine_values}
        if values:
            state["nodes"] = values
        return state

    def _restore_times(self) -> None:
        saved = self._saved
        self.stream_time = saved.get("stream", -1)
        self.wall_clock = max(self.wall_clock, saved.get("wall", 0))
        self._idle_since = saved.get("idle")
        times = saved.get("partitions", {})
        for tp, queue in self._by_partition.items():
            queue.partition_time = times.get(f"{tp.topic}:{tp.partition}", -1)

    def saved_node_values(self, node: str) -> dict[str, int]:
        """Return the engine values that a node had at the last commit."""
        return dict(self._saved.get("nodes", {}).get(node, {}))

    def committed(self) -> None:
        """Note that everything so far is committed."""
        self.commit_requested = False
        self.changed_engine_state = False

    def metrics(self) -> dict[str, NodeMetrics]:
        """Return the counters of every node since the task was opened."""
        received = dict.fromkeys(self._nodes, 0)
        for name, (counts, children) in self._edges.items():
            self.node_metrics[name].records_out = sum(counts)
            for position, child in enumerate(children, 1):
                received[child] += counts[0] + counts[position]
        for name, node in self._nodes.items():
            metrics = self.node_metrics[name]
            if isinstance(node, SourceNode):
                metrics.records_in = metrics.records_out
            else:
                metrics.records_in = received[name]
            if isinstance(node, SinkNode):
                metrics.records_out = received[name] - sum(metrics.dropped.values())
        return self.node_metrics

    def close(self) -> None:
        """Close every processor, parents first; idempotent. What one raises is logged: the others are closed all the same."""
        if self._closed:
            return
        self._closed = True
        for name, processor in reversed(self._processors):
            context = self._contexts.get(name)
            if isinstance(context, NodeContext):
                context.forward = _forward_in_close
            try:
                processor.close()
            except _ERRORS as error:
                _log.warning("task %s, node %r: close raised %s: %s", self.id, name, type(error).__name__, error)

    # ------------------------------------------------------------------ errors

    def _failure(self, stage: Stage, node: str, error: Exception) -> Failure:
        queue = self._current
        if queue is None or queue.batch is None:
            return Failure(stage, error, node, str(self.id), None, None, None)
        return self._failure_at(queue.batch, queue.column_index(self._current_index()), stage, node, error)

    def _failure_at(self, batch: RecordBatch, column: int, stage: Stage, node: str, error: Exception) -> Failure:
        """Return what failed, with the source record at index `column` of a batch."""
        return Failure(
            stage,
            error,
            node,
            str(self.id),
            batch.topic,
            batch.partition,
            batch.offsets[column],
            batch.keys[column],
            batch.values[column],
            batch.headers[column] if batch.headers is not None else (),
            batch.timestamps[column],
        )

    def _processing_failed(self, node: str, record: object, error: Exception | SystemExit) -> None:
        """Ask the processing handler about an exception that `node` raised; return when the record is to be dropped there."""
        if isinstance(error, (RetryRequested, _Decided)):
            raise error
        failed = _not_a_record(record) or _as_exception(error)
        self._decide(self._failure(Stage.PROCESSING, node, failed), self.settings.processing_handler, "skipped")

    def _production_failed(self, node: SinkNode, topic: str, record: Record, error: Exception) -> None:
        if isinstance(error, (RetryRequested, _Decided)):
            raise error
        if not isinstance(error, PenstockError):
            error = SerdeError(f"{type(error).__name__}: {error}")
        failure = self._failure(Stage.PRODUCTION, node.name, _not_a_record(record) or error)
        self._decide(failure, self.settings.production_handler, "production", f" while producing to topic {topic!r}")

    def _decide(self, failure: Failure, handler: Callable[[Failure], Any], reason: str, doing: str = "") -> None:
        key = (failure.stage, failure.node, failure.topic, failure.partition, failure.offset)
        failure = Failure(**{**_fields(failure), "attempt": self._attempt(key)})
        try:
            decision = handler(failure)
        except Exception as error:
            raise _Decided(
                f"{describe_failure(failure, self.application_id, doing)}. The {failure.stage.value} handler, asked what to do "
                f"about that, raised {type(error).__name__}: {error}"
            ) from error
        if isinstance(decision, Skip):
            _log.warning("%s: skipped", describe_failure(failure, self.application_id, doing))
        elif isinstance(decision, SendToDeadLetter):
            self._dead_letter(failure, decision.topic, doing)
        elif isinstance(decision, RetryAfter):
            raise RetryRequested(failure, duration_ms(decision.delay, "RetryAfter.delay"))
        elif isinstance(decision, Fail):
            self._fail(failure, doing)
        else:
            raise _Decided(
                f"{describe_failure(failure, self.application_id, doing)}. The {failure.stage.value} handler, asked what to do "
                f"about that, returned {decision!r}, expected Fail(), Skip(), RetryAfter(...) or SendToDeadLetter(...)"
            ) from failure.error
        self.node_metrics[failure.node].drop(reason)
        self.changed_engine_state = True

    def _fail(self, failure: Failure, doing: str) -> NoReturn:
        kind = {
            Stage.DESERIALIZATION: DeserializationFailed,
            Stage.PROCESSING: ProcessingFailed,
            Stage.PRODUCTION: ProductionFailed,
        }[failure.stage]
        raise kind(
            f"{describe_failure(failure, self.application_id, doing)}. Mend it and start again: nothing since the last commit counts, "
            f"and nothing is lost. Or set {failure.stage.value}_handler (skip, DeadLetter(TOPIC), Retry())"
        ) from failure.error

    def _dead_letter(self, failure: Failure, topic: str, doing: str) -> None:
        _log.warning("%s: sent to %s", describe_failure(failure, self.application_id, doing), topic)
        output = self._outputs.setdefault(topic, OutputBatch(topic, [], [], []))
        output.keys.append(failure.raw_key)
        output.values.append(failure.raw_value)
        output.timestamps.append(failure.timestamp if failure.timestamp >= 0 else max(self.stream_time, 0))
        _set_last_headers(output, failure.headers + failure_headers(failure))
        if output.partitions is not None:
            output.partitions.append(None)


class _Decided(PenstockError):
    """An error that a handler has already decided about: it goes up through every node untouched."""


class DeserializationFailed(_Decided, SerdeError):
    """A record could not be read, and the handler said to fail."""


class ProcessingFailed(_Decided, ProcessingError):
    """A node could not process a record, and the handler said to fail."""


class ProductionFailed(_Decided, ProductionError):
    """A record could not be produced, and the handler said to fail."""


def _forward_in_close(record: Record, to: str | None = None) -> None:
    raise TopologyError(
        "it forwards a record, which nothing would commit any more; forward in process or in a punctuator"
    )


def describe_failure(failure: Failure, application_id: str, doing: str = "") -> str:
    """Return one line that says what failed and where."""
    where = (
        "in a punctuator"
        if failure.topic is None
        else f"at topic {failure.topic!r} partition {failure.partition} offset {failure.offset}"
    )
    error = failure.error
    text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    return f"application {application_id!r}, task {failure.task_id}, node {failure.node!r}{doing}, {where}: {text}"


def partitions_read(engine_state: bytes) -> set[TopicPartition]:
    """Return the partitions of which a task with this `engine_state()` has processed records."""
    times: dict[str, int] = json.loads(engine_state).get("partitions", {}) if engine_state else {}
    read = (name.rpartition(":") for name, time in times.items() if time >= 0)
    return {TopicPartition(topic, int(partition)) for topic, _, partition in read}


def make_processor(node: ProcessorNode) -> Processor | ValueTransformer:
    """Return a new instance of a node's processor. Raises PluginError or TopologyError naming the node."""
    supplier = registry().load("processor", node.supplier) if isinstance(node.supplier, str) else node.supplier
    try:
        made = supplier(**node.options)
    except PenstockError:
        raise
    except _ERRORS as error:
        raise TopologyError(
            f"node {node.name!r}: making its processor with options {dict(node.options)!r} raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, (Processor, ValueTransformer)):
        raise TopologyError(
            f"node {node.name!r}: its supplier made a {type(made).__name__}, expected a Processor or ValueTransformer"
        )
    return made


def _fields(failure: Failure) -> dict[str, Any]:
    return {name: getattr(failure, name) for name in failure.__dataclass_fields__}


_NO_RECORD = Record(None, None, -1)
"""What a punctuator is handed."""


def _as_exception(error: Exception | SystemExit) -> Exception:
    if isinstance(error, Exception):
        return error
    return ProcessingError(f"it called sys.exit({error.code!r}), which ends no application: raise an error instead")


def _not_a_record(forwarded: object) -> ProcessingError | None:
    """Return the error for what was forwarded and is no record: only a failure makes the engine look."""
    if isinstance(forwarded, Record):
        return None
    return ProcessingError(f"its parent forwarded {_shown(forwarded)}, {_EXPECTED}")


def _shown(forwarded: object) -> str:
    return f"{type(forwarded).__name__} {reprlib.repr(forwarded)}"


def _wrong_headers(headers: Any) -> str | None:
    """Return what is wrong with a record's headers, None if nothing."""
    if type(headers) is tuple:
        for header in headers:
            if not isinstance(header, tuple) or len(header) != 2:
                break
            name, value = header
            if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
                break
        else:
            return None
    return f"the headers {reprlib.repr(headers)} are no tuple of pairs (name as str, value as bytes or None)"


def _set_last_headers(output: OutputBatch, headers: Headers) -> None:
    if output.headers is None:
        output.headers = [()] * (len(output.keys) - 1)
    output.headers.append(headers)


def _partitions(chosen: Any, count: int, sink: str) -> tuple[int, ...] | None:
    """Return a partitioner's answer as a tuple of valid partitions, or None for the default."""
    if chosen is None:
        return None
    partitions = (chosen,) if isinstance(chosen, int) else tuple(chosen)
    for partition in partitions:
        if not isinstance(partition, int) or not 0 <= partition < count:
            raise ProductionError(f"sink {sink!r}: its partitioner chose {partition!r}, expected 0 to {count - 1}")
    return partitions
