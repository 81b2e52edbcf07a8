"""Packing: many rows for one task in one cell, so that the JVM moves a few chunks instead of many rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from penstock import Headers, RecordBatch, TopicPartition
from penstock.plugins.logs.partitioner import partitions_for_keys

from ..worker_errors import message_first
from .typed.serdes import ValueColumn

if TYPE_CHECKING:
    import pyarrow

    from .typed.serdes import Column

CHUNK_SCHEMA = "group long, topic string, chunk binary"


class Packer:
    """The function for mapInArrow: rows of one topic in, one chunk out for each task that gets some of them.

    Rows have the columns of `records.normalized`. `groups` are the group keys of the tasks by partition. A row goes to
    the partition that Kafka's clients would choose for its key, one without a key by a check sum of its value: to the
    same one when Spark repeats the batch. The first packer of a batch also sends an empty row to each of
    `everyone`, so that every task runs. `key_bytes` makes bytes of typed keys. `value`: the column of typed values,
    whose rows without a key go by their JSON.
    """

    def __init__(
        self,
        topic: str,
        groups: tuple[int, ...],
        everyone: tuple[int, ...],
        key_bytes: Callable[[Any], list[bytes | None]] | None = None,
        value: Column | None = None,
    ) -> None:
        self.topic = topic
        self.groups = groups
        self.everyone = everyone
        self.key_bytes = key_bytes
        self.value = value

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Pack one partition of a DataFrame."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.partitionId() == 0:
            yield _chunks(self.everyone, self.topic, [None] * len(self.everyone))
        with message_first():
            for batch in batches:
                if batch.num_rows:
                    yield self._pack(batch)

    def _pack(self, rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        import numpy
        import pyarrow

        if self.key_bytes is not None:
            made = pyarrow.array(self.key_bytes(rows.column("key")), pyarrow.binary())
            rows = rows.set_column(rows.schema.get_field_index("key"), "key", made)
        if len(self.groups) == 1:
            return _chunks(self.groups, self.topic, [serialized(rows)])
        keys = rows.column("key").to_pylist()
        if rows.column("key").null_count:
            sums = self._check_sums(rows.filter(rows.column("key").is_null()).column("value"))
            keys = [next(sums) if key is None else key for key in keys]
        partitions = partitions_for_keys(keys, len(self.groups))
        rows = rows.take(pyarrow.array(numpy.argsort(partitions, kind="stable")))
        groups, chunks, start = [], [], 0
        for partition, count in enumerate(numpy.bincount(partitions, minlength=len(self.groups)).tolist()):
            if count:
                groups.append(self.groups[partition])
                chunks.append(serialized(rows.slice(start, count)))
                start += count
        return _chunks(groups, self.topic, chunks)

    def _check_sums(self, values: Any) -> Iterator[bytes]:
        """Return in place of a key a short one for each value: the partitioner takes long for long ones."""
        values = values.to_pylist() if self.value is None else self.value.texts(values)
        return (crc32(value or b"").to_bytes(4, "big") for value in values)


class Rows:
    """The rows of one topic for one task in a batch, in the order in which they are processed.

    The order is by timestamp, then by the user's columns, then by content. It is the same whenever Spark repeats the
    batch, although its shuffle brings chunks in any order. `first`: the offset of the first record. `value`: the column
    of typed values, whose content is their JSON.
    """

    def __init__(
        self, partition: TopicPartition, chunks: Sequence[bytes], first: int, value: Column | None = None
    ) -> None:
        self.partition = partition
        self.next_offset = first
        self._value = value
        self._rows = _sorted(chunks, value)
        self._taken = 0

    @property
    def left(self) -> int:
        """Number of records that were not taken yet."""
        return 0 if self._rows is None else int(self._rows.num_rows) - self._taken

    def take(self, count: int) -> RecordBatch:
        """Return up to `count` records."""
        import numpy

        assert self._rows is not None
        rows = self._rows.slice(self._taken, count)
        first, self.next_offset = self.next_offset, self.next_offset + rows.num_rows
        self._taken += rows.num_rows
        values, headers = rows.column("value"), rows.column("headers").to_pylist() if _has_headers(rows) else None
        return RecordBatch(
            *self.partition,
            range(first, self.next_offset),
            rows.column("key").to_pylist(),
            values.to_pylist() if self._value is None else ValueColumn(self._value, values.combine_chunks()),
            numpy.floor_divide(rows.column("time").to_numpy(), 1000).tolist(),
            None if headers is None else [headers_from_json(each) for each in headers],
            self.next_offset,
        )


def _sorted(chunks: Sequence[bytes], value: Column | None) -> Any:
    """Return the rows of all chunks as a table; None when there are none."""
    import pyarrow
    from pyarrow import compute

    if not chunks:
        return None
    tables = [pyarrow.ipc.open_stream(chunk).read_all() for chunk in chunks]
    table = pyarrow.concat_tables(tables).combine_chunks()
    first = ["time", *(name for name in table.schema.names if name.startswith("order")), "key"]
    content = [] if value is not None else ["value"]  # Arrow sorts no structs
    if value is None and _has_headers(table):
        content.append("headers")
    indices = compute.sort_indices(table, sort_keys=[(name, "ascending") for name in first + content])
    table = table.take(indices)
    return table if value is None else _sorted_by_content(table, first, value)


def _sorted_by_content(table: Any, first: Sequence[str], value: Column) -> Any:
    """Return a table that is sorted by the columns `first`, and where they are equal by values and headers."""
    import numpy
    import pyarrow

    is_equal = numpy.ones(max(0, len(table) - 1), bool)
    for name in first:
        is_equal &= _equals_next(table.column(name).combine_chunks())
    if not is_equal.any():
        return table
    starts = numpy.flatnonzero(numpy.concatenate([[True], ~is_equal]))
    indices = numpy.arange(len(table))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(table)], strict=True):
        if end - start > 1:
            rows = table.slice(start, end - start)
            texts = value.texts(rows.column("value").combine_chunks())
            headers = rows.column("headers").to_pylist() if _has_headers(rows) else [None] * len(texts)
            # Null comes last, as Arrow sorts it.
            content = [
                (text is None, text or b"", header is None, header or "")
                for text, header in zip(texts, headers, strict=True)
            ]
            indices[start:end] = [start + each for each in sorted(range(len(content)), key=content.__getitem__)]
    return table.take(pyarrow.array(indices))


def _has_headers(rows: Any) -> bool:
    return "headers" in rows.column_names and rows.column("headers").null_count < len(rows)


def _equals_next(array: Any) -> Any:
    """Return for each value but the last whether the next one is equal to it; null and NaN count as equal."""
    from pyarrow import compute

    one, other = array[:-1], array[1:]
    both_null = compute.and_(one.is_null(nan_is_null=True), other.is_null(nan_is_null=True))
    is_equal = compute.fill_null(compute.equal(one, other), False)
    return compute.or_(is_equal, both_null).to_numpy(zero_copy_only=False)


def _chunks(groups: Sequence[int], topic: str, chunks: Sequence[Any]) -> pyarrow.RecordBatch:
    import pyarrow

    return pyarrow.RecordBatch.from_arrays(
        [
            pyarrow.array(groups, pyarrow.int64()),
            pyarrow.array([topic] * len(groups), pyarrow.string()),
            pyarrow.array(chunks, pyarrow.binary()),
        ],
        ["group", "topic", "chunk"],
    )


def serialized(rows: pyarrow.RecordBatch) -> bytes:
    """Return rows as an Arrow stream, compressed."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
    with pyarrow.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def headers_from_json(text: str | None) -> Headers:
    """Return the headers that Spark's `to_json` wrote, which leaves null fields out, and writes bytes in base64.

    Headers that are null are left out.

    >>> headers_from_json('[{"key":"trace","value":"MQ=="},{"key":"flag"}]')
    (('trace', b'1'), ('flag', None))
    """
    if not text:
        return ()
    return tuple((each.get("key", ""), _bytes(each.get("value"))) for each in json.loads(text) if each)


def _bytes(encoded: str | None) -> bytes | None:
    return None if encoded is None else base64.b64decode(encoded)
