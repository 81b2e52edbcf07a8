"""Packing: many rows for one task in one cell, so that the JVM moves a few chunks instead of many rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock import Headers, RecordBatch, TopicPartition
from penstock.plugins.logs.partitioner import partitions_for_keys

if TYPE_CHECKING:
    import pyarrow

CHUNK_SCHEMA = "group long, topic string, chunk binary"


class Packer:
    """The function for mapInArrow: rows of one topic in, one chunk out for each task that gets some of them.

    Rows have the columns of `records.normalized`. `groups` are the group keys of the tasks by partition. A row goes to
    the partition that Kafka's clients would choose for its key; one without a key to that of its value, so that it goes
    to the same one when Spark repeats the batch. The first packer of a batch also sends an empty row to each of
    `everyone`, so that every task runs.
    """

    def __init__(self, topic: str, groups: tuple[int, ...], everyone: tuple[int, ...]) -> None:
        self.topic = topic
        self.groups = groups
        self.everyone = everyone

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Pack one partition of a DataFrame."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.partitionId() == 0:
            yield _chunks(self.everyone, self.topic, [None] * len(self.everyone))
        for batch in batches:
            if batch.num_rows:
                yield self._pack(batch)

    def _pack(self, rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        import numpy
        import pyarrow

        if len(self.groups) == 1:
            return _chunks(self.groups, self.topic, [_serialized(rows)])
        keys = rows.column("key").to_pylist()
        if rows.column("key").null_count:
            values = rows.column("value").to_pylist()
            keys = [value or b"" if key is None else key for key, value in zip(keys, values, strict=True)]
        partitions = partitions_for_keys(keys, len(self.groups))
        rows = rows.take(pyarrow.array(numpy.argsort(partitions, kind="stable")))
        groups, chunks, start = [], [], 0
        for partition, count in enumerate(numpy.bincount(partitions, minlength=len(self.groups)).tolist()):
            if count:
                groups.append(self.groups[partition])
                chunks.append(_serialized(rows.slice(start, count)))
                start += count
        return _chunks(groups, self.topic, chunks)


class Rows:
    """The rows of one topic for one task in a batch, in the order in which they are processed.

    The order is by timestamp, then by the user's columns, then by content. It is the same whenever Spark repeats the
    batch, although its shuffle brings chunks in any order. `first`: the offset of the first record.
    """

    def __init__(self, partition: TopicPartition, chunks: Sequence[bytes], first: int) -> None:
        self.partition = partition
        self.next_offset = first
        self._rows = _sorted(chunks)
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
        headers = rows.column("headers")
        return RecordBatch(
            *self.partition,
            range(first, self.next_offset),
            rows.column("key").to_pylist(),
            rows.column("value").to_pylist(),
            numpy.floor_divide(rows.column("time").to_numpy(), 1000).tolist(),
            None if headers.null_count == rows.num_rows else [headers_from_json(each) for each in headers.to_pylist()],
            self.next_offset,
        )


def _sorted(chunks: Sequence[bytes]) -> Any:
    """Return the rows of all chunks as a table; None when there are none."""
    import pyarrow
    from pyarrow import compute

    if not chunks:
        return None
    tables = [pyarrow.ipc.open_stream(chunk).read_all() for chunk in chunks]
    table = pyarrow.concat_tables(tables).combine_chunks()
    ordering = [name for name in table.schema.names if name.startswith("order")]
    keys = [(name, "ascending") for name in ("time", *ordering, "key", "value", "headers")]
    return table.take(compute.sort_indices(table, sort_keys=keys))


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


def _serialized(rows: pyarrow.RecordBatch) -> bytes:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
    with pyarrow.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def headers_from_json(text: str | None) -> Headers:
    """Return the headers that Spark's `to_json` wrote; it leaves a null out, and writes bytes in base64.

    >>> headers_from_json('[{"key":"trace","value":"MQ=="},{"key":"flag"}]')
    (('trace', b'1'), ('flag', None))
    """
    if not text:
        return ()
    return tuple((each.get("key", ""), _bytes(each.get("value"))) for each in json.loads(text))


def _bytes(encoded: str | None) -> bytes | None:
    return None if encoded is None else base64.b64decode(encoded)
