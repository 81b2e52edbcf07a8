"""InputQueue: one input partition of a task.

Comes in: batches of the log, in offset order. Goes out: decoded records with their timestamps, and the position to
commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from ..compiled import records as compiled
from ..errors import ProcessingError, SerdeError
from ..processor import NodeMetrics
from ..program.extractors import fail_on_invalid_timestamp, skip_on_invalid_timestamp
from ..program.nodes import SourceNode
from ..program.serdes import SerdeLike, serde_name, serdes_of_topic
from ..record import Headers, Record, RecordBatch, TopicPartition
from ..settings.settings import Settings
from .failures import RECORD_ERRORS, Failures, of_part, shown
from .progress import TaskProgress
from .validation import NO_TIMESTAMP, is_timestamp

_record = tuple.__new__


def rows(
    keys: Sequence[Any],
    values: Sequence[Any],
    timestamps: Sequence[int],
    headers: Sequence[Headers] | None,
    kind: type[Record] | None,
) -> list[Any]:
    """Return columns as Records, or as plain tuples where `kind` is None."""
    found = zip(keys, values, timestamps, repeat(()) if headers is None else headers)
    return list(found if kind is None else map(_record, repeat(kind), found))


_rows = rows if compiled is None else compiled.rows


class TaskInput(NamedTuple):
    """An input partition by its name in the log, the source that reads it, and the offset to continue from."""

    partition: TopicPartition
    source: SourceNode
    position: int = 0


class InputQueue:
    """Batches as the log returned them, and the decoded records of the first.

    `run` is called with each record; `child` and `counts`: the counter of the records over that edge. With
    `makes_tuples`, records may be plain tuples of their four parts.
    """

    __slots__ = (
        "source", "partition", "end", "fetched", "batch", "records", "index", "partition_time", "run", "child",
        "counts", "makes_tuples", "decode_seconds", "_position", "_raw", "_start", "_kept", "_bad", "_key_serde",
        "_value_serde", "_extractor", "_serdes", "_application_id", "_task_id", "_progress", "_failures", "_metrics",
        "_stopwatch",
    )  # fmt: skip

    def __init__(
        self,
        task_input: TaskInput,
        settings: Settings,
        application_id: str,
        task_id: str,
        progress: TaskProgress,
        failures: Failures,
        metrics: NodeMetrics,
        stopwatch: Callable[[], float],
    ) -> None:
        self.partition, self.source, self._position = task_input
        source, topic, what = self.source, self.partition.topic, f"source {self.source.name!r}"
        self._serdes: dict[str, SerdeLike] = {
            "key": settings.key_serde if source.key_serde is None else source.key_serde,
            "value": settings.value_serde if source.value_serde is None else source.value_serde,
        }
        self._key_serde, self._value_serde = serdes_of_topic(
            source.key_serde, source.value_serde, settings, what, topic
        )
        self._extractor = source.timestamp_extractor or settings.timestamp_extractor
        self._application_id, self._task_id = application_id, task_id
        self._progress, self._failures, self._metrics, self._stopwatch = progress, failures, metrics, stopwatch
        self.end: int | None = self._position  # the offset up to which the log has records; None: unknown
        self.partition_time = -1
        self.begin_at(self._position)
        self.run: Callable[[Record], Any] = lambda record: None
        self.child, self.counts = source.name, [0]
        self.makes_tuples = False
        self.decode_seconds = 0.0

    def begin_at(self, position: int) -> None:
        """Forget fed records: `position` is the offset of the next record to feed."""
        self.fetched = self._position = position  # `fetched`: the offset after the last record that was fed
        self.batch: RecordBatch | None = None
        self.records: list[Record] = []
        self.index = 0  # in `records`, of the next one to process
        self._raw: deque[RecordBatch] = deque()
        # Index in the batch's columns of records[0]; with `_kept`, of the first record that is not decoded.
        self._start = 0
        self._kept: list[int] | None = None  # for each record its index in the columns, when some were skipped
        self._bad: tuple[int, Exception | SystemExit] | None = (
            None  # (index in the columns, error) of the record after records[-1]
        )

    # ------------------------------------------------------------------ how far

    @property
    def position(self) -> int:
        """The offset of the first record that is not processed."""
        batch = self.batch
        if batch is not None:
            if self.index < len(self.records):
                return batch.offsets[self.column_index(self.index)]
            if self._bad is not None:
                return batch.offsets[self._bad[0]]
            if self._next_column() < len(batch):
                return batch.offsets[self._next_column()]
        if self._raw:
            return self._raw[0].offsets[0] if len(self._raw[0]) else self._raw[0].next_offset
        return self._position if batch is None else batch.next_offset

    @property
    def has_more(self) -> bool:
        """Whether the log has, or may have, records after the fed ones."""
        return self.end is None or self.fetched < self.end

    @property
    def is_at_end(self) -> bool:
        """Whether all that the log is known to have is processed.

        An end that was known earlier may be higher: it included records of transactions that were open then.
        """
        return not self.has_more and self.is_empty()

    def is_empty(self) -> bool:
        """Return whether every record that was fed is processed."""
        return (
            self.index >= len(self.records)
            and not self._raw
            and self._bad is None
            and (self.batch is None or self._next_column() >= len(self.batch))
        )

    def queued(self) -> int:
        """Return the number of fed records that are not processed; skipped records count until then."""
        started = 0 if self.batch is None else len(self.batch) - self._next_column() + len(self.records) - self.index
        return started + sum(map(len, self._raw))

    def column_index(self, index: int) -> int:
        """Return the index of decoded record `index` in the batch's columns."""
        return self._start + index if self._kept is None else self._kept[index]

    def _next_column(self) -> int:
        """Return the index in the batch's columns after the last decoded record."""
        return self._start if self._kept is not None else self._start + len(self.records)

    # ------------------------------------------------------------------ records in

    def feed(self, batch: RecordBatch) -> None:
        """Queue a batch. One without records moves the position."""
        self._raw.append(batch)
        self.fetched = batch.next_offset

    def fill(self) -> bool:
        """Decode until there is a record to process; return whether there is one."""
        while self.index >= len(self.records):
            if self._bad is not None:
                self._skip_bad()
            elif self.batch is not None and self._next_column() < len(self.batch):
                self._decode_timed(self._next_column())
            elif self._raw:
                self.batch = self._raw.popleft()
                self.records, self.index, self._start, self._kept = [], 0, 0, None
                self._decode_timed(0)
            else:
                return False
        return True

    def _skip_bad(self) -> None:
        """Ask the deserialization handler about the next record, which cannot be decoded."""
        assert self._bad is not None and self.batch is not None
        column, error = self._bad
        self._failures.deserialization(self.batch, column, self.source.name, error)
        self._bad = None
        self.records, self.index, self._start, self._kept = [], 0, column + 1, []

    # ------------------------------------------------------------------ decoding

    def _decode_timed(self, start: int) -> None:
        began = self._stopwatch()
        self._decode(start)
        self.decode_seconds += self._stopwatch() - began

    def _decode(self, start: int) -> None:
        """Decode the batch from column index `start`, in bulk; stop before a record that cannot be decoded."""
        batch = self.batch
        assert batch is not None
        keys, values, timestamps, headers = batch.keys, batch.values, batch.timestamps, batch.headers
        if start:
            keys, values, timestamps = keys[start:], values[start:], timestamps[start:]
            headers = headers[start:] if headers is not None else None
        try:
            decoded_keys = self._key_serde.deserialize_column(keys)
            decoded_values = self._value_serde.deserialize_column(values)
        except RECORD_ERRORS:
            self._decode_one_by_one(start)
            return
        self._check_column("key", decoded_keys, len(keys))
        self._check_column("value", decoded_values, len(keys))
        records: list[Any] = _rows(
            decoded_keys, decoded_values, timestamps, headers, None if self.makes_tuples else Record
        )
        if self._extractor in (fail_on_invalid_timestamp, skip_on_invalid_timestamp) and (
            not records or min(timestamps) >= 0
        ):
            self.records, self.index, self._start, self._kept = records, 0, start, None
            return
        self._decode_one_by_one(start)

    def _check_column(self, what: str, decoded: object, expected: int) -> None:
        """Check the length of a serde's column. Raises SerdeError: else records would be lost, or never end."""
        if isinstance(decoded, (list, tuple)) and len(decoded) == expected:
            return
        found = f"a list of {len(decoded)}" if isinstance(decoded, (list, tuple)) else shown(decoded)
        raise SerdeError(
            f"application {self._application_id!r}, task {self._task_id}, node {self.source.name!r}, {self.partition}: "
            f"the {what} serde {serde_name(self._serdes[what])} is wrong: its deserialize_column, given a column of "
            f"{expected}, returned {found}; expected a list with what deserialize returns for each. Nothing was "
            "changed: mend the serde and start again"
        )

    def _decode_one_by_one(self, start: int) -> None:
        """Decode record by record: with an extractor of the user's, or to find the bad record."""
        batch = self.batch
        assert batch is not None
        records: list[Record] = []
        kept: list[int] = []
        partition_time = self.partition_time
        column = start
        self._bad = None
        while column < len(batch):
            try:
                record = self._decode_record(batch, column)
                timestamp = self._extractor(record, partition_time, self._progress.wall_clock)
                if not is_timestamp(timestamp):
                    raise ProcessingError(
                        f"the timestamp extractor returned {timestamp!r}, which is {NO_TIMESTAMP} (below 0 drops the "
                        "record)"
                    )
            except RECORD_ERRORS as error:
                self._bad = column, error
                break
            if timestamp < 0:
                self._metrics.drop("invalid_timestamp")
                self._progress.has_changed = True
            else:
                records.append(record if timestamp == record.timestamp else record.with_timestamp(timestamp))
                kept.append(column)
                partition_time = max(partition_time, timestamp)
            column += 1
        self.records, self.index, self._start, self._kept = records, 0, column, kept

    def _decode_record(self, batch: RecordBatch, column: int) -> Record:
        raw_key, raw_value, part = batch.keys[column], batch.values[column], "key"
        try:
            key = None if raw_key is None else self._key_serde.deserialize(raw_key)
            part = "value"
            value = None if raw_value is None else self._value_serde.deserialize(raw_value)
        except Exception as error:
            raise of_part(part, error) from error
        return Record(key, value, batch.timestamps[column], batch.headers[column] if batch.headers is not None else ())
