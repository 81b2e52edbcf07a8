"""Results: what a task has written, as Arrow data in a cell a chunk, and the rows of the result from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock import OutputBatch, ProductionError

from ...observed import COUNTS
from ..packing import serialized
from .columns import Column
from .scalars import BinaryColumn
from .serdes import TopicColumns

if TYPE_CHECKING:
    import pyarrow

CHUNKS_SCHEMA = f"chunk binary, {COUNTS} string"
_ROWS = 10_000
_BYTES = 32 << 20
"""About the most bytes of a chunk: Arrow and Spark hold 2 GB in a column or a cell."""
_SAMPLED = 64
_LAST_MS = (1 << 63) // 1000 - 1


def packed(outputs: Sequence[OutputBatch], topics: Mapping[str, TopicColumns]) -> list[bytes]:
    """Return what a task has written as chunks of rows: topic, key, value, timestamp, headers, a struct a topic."""
    return [
        serialized(rows)
        for batch in outputs
        for start in range(0, len(batch), _ROWS)
        for rows in _of_moderate_size(batch, slice(start, min(start + _ROWS, len(batch))), topics)
    ]


def unpacked(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of chunks: the function for mapInArrow."""
    import pyarrow

    for batch in batches:
        for chunk in batch.column("chunk").to_pylist():
            yield from pyarrow.ipc.open_stream(chunk)


def _of_moderate_size(
    batch: OutputBatch, part: slice, topics: Mapping[str, TopicColumns]
) -> Iterator[pyarrow.RecordBatch]:
    """Yield rows, in halves of halves if their values are large."""
    half = (part.start + part.stop) // 2
    step = 1 + (part.stop - part.start) // _SAMPLED
    if half > part.start and step * sum(map(_bytes_in, batch.values[part][::step])) > _BYTES:
        yield from _of_moderate_size(batch, slice(part.start, half), topics)
        yield from _of_moderate_size(batch, slice(half, part.stop), topics)
    else:
        yield _rows(batch, part, topics)


def _bytes_in(value: Any) -> int:
    """Return about how many bytes a value has: bytes, or what a column has made of one."""
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return 8
    return sum(map(_bytes_in, value))


def _rows(batch: OutputBatch, part: slice, topics: Mapping[str, TopicColumns]) -> pyarrow.RecordBatch:
    import numpy
    import pyarrow

    keys, values, timestamps = batch.keys[part], batch.values[part], batch.timestamps[part]
    if max(timestamps) > _LAST_MS:
        raise ProductionError(
            f"topic {batch.topic!r}: the timestamp {max(timestamps)} ms is too high for Spark's type timestamp; give "
            "the record another, such as that of the record that it comes from"
        )
    bytes_of = _bytes if batch.topic in topics else _binary
    arrays = {
        "topic": pyarrow.array([batch.topic] * len(keys), pyarrow.string()),
        "key": bytes_of(keys),
        "value": bytes_of(values),
        "timestamp": pyarrow.array(numpy.array(timestamps, numpy.int64) * 1000).cast(pyarrow.timestamp("us", "UTC")),
        "headers": _headers(batch, part, len(keys)),
    }
    for topic, columns in topics.items():
        kind = struct_of(columns)
        arrays[topic] = _struct(keys, values, columns, kind) if topic == batch.topic else pyarrow.nulls(len(keys), kind)
    return pyarrow.RecordBatch.from_pydict(arrays)


def _headers(batch: OutputBatch, part: slice, count: int) -> Any:
    import pyarrow

    kind = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
    if batch.headers is None:
        return pyarrow.nulls(count, kind)
    rows = [[{"key": name, "value": value} for name, value in each] or None for each in batch.headers[part]]
    return pyarrow.array(rows, kind)


def struct_of(columns: TopicColumns) -> Any:
    """Return the Arrow type of a topic's column."""
    import pyarrow

    parts = {"key": columns.key, "value": columns.value}
    return pyarrow.struct([(name, (part or BinaryColumn()).arrow()) for name, part in parts.items()])


def _struct(keys: list[Any], values: list[Any], columns: TopicColumns, kind: Any) -> Any:
    """Return a topic's column; it is null for dead letters, which have their source's bytes."""
    import pyarrow

    dead = [
        (columns.key is not None and isinstance(key, bytes)) or (columns.value is not None and isinstance(value, bytes))
        for key, value in zip(keys, values, strict=True)
    ]
    parts = [
        _bytes(cells) if column is None else _typed(cells, dead, column)
        for cells, column in ((keys, columns.key), (values, columns.value))
    ]
    return pyarrow.StructArray.from_arrays(parts, fields=list(kind), mask=pyarrow.array(dead, pyarrow.bool_()))


def _typed(cells: list[Any], dead: list[bool], column: Column) -> Any:
    import pyarrow

    plain = [None if cell is None or is_dead else cell[0] for cell, is_dead in zip(cells, dead, strict=True)]
    return pyarrow.array(plain, column.arrow())


def _bytes(cells: list[Any]) -> Any:
    return _binary([cell if isinstance(cell, bytes) else None for cell in cells])


def _binary(cells: list[bytes | None]) -> Any:
    import pyarrow

    return pyarrow.array(cells, BinaryColumn().arrow())
