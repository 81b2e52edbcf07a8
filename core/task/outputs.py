"""Outputs: a task's outputs since the last commit, by topic, and the functions of sinks that write them.

Comes in: records that processors forward to sinks. Goes out: an `OutputBatch` for each topic, with serialized columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ..compiled import records as compiled
from ..errors import ConfigError, ProcessingError, ProductionError, RecordRefusedError
from ..processor import Failure, NodeMetrics
from ..program.nodes import SinkNode
from ..program.partitioning import hashed_part
from ..program.serdes import serdes_of_topic
from ..record import Headers, OutputBatch, Record, RecordMetadata
from ..settings.settings import Settings
from .dead_letter import letter_headers
from .failures import EXPECTED_RECORD, no_child, of_part, shown
from .validation import NO_TIMESTAMP, valid_partitions, wrong_headers

Write = Callable[..., None]
"""write(record, to=None)"""

Failed = Callable[[str, str, object, Exception], None]
"""failed(sink, topic, record, error): returns when the record is to be dropped."""


class Outputs:
    """The columns of every topic that a task writes to. Nobody else changes them.

    `topic_name` maps a sink's topic to its name in the log. `partition_count` returns how many partitions a topic has,
    and is None where that is not known. `refusals` are the log's refusals in earlier attempts, by topic.
    """

    def __init__(
        self,
        task_id: str,
        settings: Settings,
        metrics: Mapping[str, NodeMetrics],
        topic_name: Callable[[str], str],
        partition_count: Callable[[str], int] | None,
        refusals: Mapping[str, Sequence[RecordRefusedError]],
    ) -> None:
        self._task_id = task_id
        self._settings = settings
        self._metrics = metrics
        self.topic_name = topic_name
        self._partition_count = partition_count
        self._refusals = refusals
        self._topics: dict[str, OutputBatch] = {}
        self._received = Counter[str]()
        """By topic: number of records that sinks received, minus the length of the columns."""
        self._letters: set[tuple[str, str | None, int | None, int | None]] = set()
        """The dead letters since the last commit: their topic, and where their source records were read."""

    # ------------------------------------------------------------------ what has been produced

    def take_last(self) -> list[OutputBatch]:
        """Return the outputs since the last call, to end a commit with."""
        self._letters.clear()
        return self.take()

    def take(self) -> list[OutputBatch]:
        """Return the outputs since the last call, a batch for each topic, and forget them."""
        taken = []
        for topic, output in self._topics.items():
            if output.keys:
                self._received[topic] += len(output.keys)
                taken.append(
                    OutputBatch(
                        topic,
                        output.keys[:],
                        output.values[:],
                        output.timestamps[:],
                        output.headers,
                        output.partitions,
                        output.hashed,
                    )
                )
                # The compiled sinks hold these lists' append methods, so the lists are emptied, not replaced.
                output.keys.clear()
                output.values.clear()
                output.timestamps.clear()
                output.headers = output.partitions = output.hashed = None
        return taken

    def size_bytes(self) -> int:
        """Return about the number of bytes produced, from a sample of the values."""
        total = 0
        for output in self._topics.values():
            count = len(output.values)
            if count:
                sample = output.values[:: max(1, count // 64)]
                size = sum(len(value) for value in sample if value is not None)
                total += count * (size // len(sample) + 32)
        return total

    def add_dead_letter(self, topic: str, failure: Failure, stream_time: int) -> None:
        """Add the source record of a failure, as it was read, with headers that say what failed.

        A source record of which several outputs fail is sent once, for its first failure: a replay sends the record,
        and each copy of it would be processed.
        """
        letter = topic, failure.topic, failure.partition, failure.offset
        if letter in self._letters:
            return
        if failure.topic is not None:
            self._letters.add(letter)
        output = self._output(topic)
        self._received[topic] -= 1
        output.keys.append(failure.raw_key)
        output.values.append(failure.raw_value)
        output.timestamps.append(failure.timestamp if failure.timestamp >= 0 else max(stream_time, 0))
        _set_last_headers(output, letter_headers(failure))
        if output.partitions is not None:
            output.partitions.append(None)
        if output.hashed is not None:
            output.hashed.append(failure.raw_key)

    def _output(self, topic: str) -> OutputBatch:
        return self._topics.setdefault(topic, OutputBatch(topic, [], [], []))

    # ------------------------------------------------------------------ what sinks write with

    def compile_sink(
        self, node: SinkNode, failed: Failed, record_metadata: Callable[[], RecordMetadata | None]
    ) -> Write:
        """Return the function that writes a record to the sink's topic, fixed or chosen for each record."""
        if isinstance(node.topic, str):
            return self._compile_topic(node, self.topic_name(node.topic), failed)
        choose = node.topic
        writers: dict[str, Write] = {}

        def run(record: Record) -> None:
            topic = choose(record, record_metadata())
            write = writers.get(topic)
            if write is None:
                if not isinstance(topic, str) or not topic:
                    raise ProductionError(
                        f"sink {node.name!r}: its topic chooser returned {topic!r}, expected a topic's name"
                    )
                writers[topic] = write = self._compile_topic(node, topic, failed)
            write(record)

        return run

    def compile_only_child(
        self, node: SinkNode, failed: Failed, *, is_alone: bool
    ) -> tuple[Write, Callable[[], Sequence[int]]]:
        """Return `forward` of a processor whose only child is this sink, with a fixed topic: no call lies between.

        The second function returns the number of records over that edge, alone in a sequence. `is_alone`: all records
        of the topic come over it, so the length of the columns says their number.
        """
        assert isinstance(node.topic, str)
        topic = self.topic_name(node.topic)
        write, count = self._compile_write(node, topic, failed, counts=not is_alone)
        output, received = self._output(topic), self._received
        counts = (lambda: (received[topic] + len(output.keys),)) if is_alone else lambda: (count(),)
        return self._watch(node, topic, write, failed), counts

    def _compile_topic(self, node: SinkNode, topic: str, failed: Failed) -> Write:
        write, _ = self._compile_write(node, topic, failed, counts=False)
        if node.partitioner is not None:
            write = self._compile_partitioned(node, topic, write, failed)
        return self._watch(node, topic, write, failed)

    def _compile_write(
        self, node: SinkNode, topic: str, failed: Failed, *, counts: bool
    ) -> tuple[Write, Callable[[], int]]:
        """Return the function that serializes a record and appends it to columns, and if it `counts`, its count."""
        what, name = f"sink {node.name!r}", node.name
        key_serde, value_serde = serdes_of_topic(node.key_serde, node.value_serde, self._settings, what, topic)
        part_of = hashed_part(node, key_serde)
        fast_key, fast_value = key_serde.serializer(), value_serde.serializer()
        output = self._output(topic)
        append_key, append_value, append_timestamp = output.keys.append, output.values.append, output.timestamps.append
        sent, received = 0, self._received

        def write(record: Record, to: str | None = None) -> None:
            nonlocal sent
            if to is not None and to != name:
                raise no_child(f"forwarding to {to!r}, which is not a child of this node; children: {name}", record)
            try:
                key, value, timestamp, headers = record
            except (TypeError, ValueError):
                raise ProcessingError(f"forwarded {shown(record)} to sink {name!r}, {EXPECTED_RECORD}") from None
            if counts:
                sent += 1
            try:
                raw_key = None if key is None else fast_key(key)
                raw_value = None if value is None else fast_value(value)
            except Exception:
                part = "key"
                try:
                    raw_key = None if key is None else key_serde.serialize(key)
                    part = "value"
                    raw_value = None if value is None else value_serde.serialize(value)
                except Exception as error:
                    received[topic] += 1
                    failed(name, topic, record, of_part(part, error))
                    return
            if type(timestamp) is not int or timestamp >> 63:  # below 0 or beyond 64 bits
                received[topic] += 1
                failed(name, topic, record, ProductionError(f"the timestamp {timestamp!r} is {NO_TIMESTAMP}"))
                return
            if headers and (wrong := wrong_headers(headers)):
                received[topic] += 1
                failed(name, topic, record, ProductionError(wrong))
                return
            hashed = raw_key
            if part_of is not None and raw_key is not None:
                try:
                    hashed = part_of(key, raw_key)
                except Exception as error:
                    received[topic] += 1
                    failed(name, topic, record, error)
                    return
            append_key(raw_key)
            append_value(raw_value)
            append_timestamp(timestamp)
            if headers or output.headers is not None:
                _set_last_headers(output, headers)
            if output.partitions is not None:
                output.partitions.append(None)
            if output.hashed is not None:
                output.hashed.append(hashed)
            elif part_of is not None:
                output.hashed = [*output.keys[:-1], hashed]

        write.__qualname__ = "forward"  # its name in Python's own errors
        if compiled is None or part_of is not None:
            return write, lambda: sent
        fast = compiled.write(write, output, fast_key, fast_value)
        return fast, lambda: sent + fast.count

    def _compile_partitioned(self, node: SinkNode, topic: str, write: Write, failed: Failed) -> Write:
        """Return `write` for a sink with a partitioner of its own."""
        partitioner, name = node.partitioner, node.name
        assert partitioner is not None
        output, metrics = self._output(topic), self._metrics[name]
        count = 0

        def write_partitioned(record: Record) -> None:
            nonlocal count
            try:
                count = count or self._count_partitions(topic)
                chosen = valid_partitions(partitioner(topic, record, count), count, name)
            except Exception as error:
                failed(name, topic, record, error)
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

    def _watch(self, node: SinkNode, topic: str, write: Write, failed: Failed) -> Write:
        """Return `write`; after a refusal for this topic, it first checks every record for the same reason."""
        refusals = self._refusals.get(topic)
        if not refusals:
            return write
        output = self._output(topic)

        def write_and_look(record: Record, to: str | None = None) -> None:
            before = len(output.keys)
            if to is None:
                write(record)
            else:
                write(record, to)
            if len(output.keys) == before:
                return
            last = output.keys[-1], output.values[-1], output.timestamps[-1]
            refusal = next((each for each in refusals if each.refuses(*last)), None)
            if refusal is not None:
                _drop_last(output)
                self._received[topic] += 1
                size, timestamp = len(last[0] or b"") + len(last[1] or b""), last[2]
                which = f"this one has {size} bytes and the timestamp {timestamp} ms"
                failed(node.name, topic, record, ProductionError(f"{refusal} ({which})"))

        write_and_look.__qualname__ = "forward"
        return write_and_look

    def _count_partitions(self, topic: str) -> int:
        if self._partition_count is None:
            raise ConfigError(f"task {self._task_id}: the number of partitions of topic {topic!r} is not known here")
        return self._partition_count(topic)


def _drop_last(output: OutputBatch) -> None:
    for column in (output.keys, output.values, output.timestamps, output.headers, output.partitions, output.hashed):
        if column is not None:
            column.pop()


def _set_last_headers(output: OutputBatch, headers: Headers) -> None:
    if output.headers is None:
        output.headers = [()] * (len(output.keys) - 1)
    output.headers.append(headers)
