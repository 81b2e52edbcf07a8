"""Typed columns in and out: rows of a DataFrame as records, and records of sinks as rows."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock import (
    Application,
    ConfigError,
    OutputBatch,
    ProductionError,
    Serde,
    SerdeError,
    SerdeUnavailableError,
    SourceNode,
)
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.serdes.of import typed_serde
from penstock.plugins.serdes.typed.base import TypedSerde
from penstock.program.serdes import serde_name, serdes_of_topic

from ...observed import COUNTS
from ..packing import serialized
from . import scalars, spark_types
from .scalars import BinaryColumn
from .serdes import Column, TopicColumns, TopicPart
from .spark_types import column_of, fitted

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import DataType


@dataclass(frozen=True)
class KeyBytes:
    """The bytes of typed keys, in Spark's workers. `cargo` has the column and the serde, packed."""

    cargo: bytes

    def __call__(self, array: Any) -> list[bytes | None]:
        """Return the bytes of each key of an array. Raises SerdeError with topic and field for one that has none."""
        part, serde = self._parts
        serialize = serde.serialize
        try:
            keys = part.read(array)
            if part.serde is None and isinstance(part.column, _NESTED):
                keys = list(map(_in_order, keys))
            return [None if key is None else serialize(key) for key in keys]
        except SerdeUnavailableError:
            raise
        except SerdeError as error:
            where = f"topic {part.topic!r}, key: "
            said = str(error).removeprefix(where)
            raise SerdeError(f"{where}{said}. A key's bytes decide its task, so no handler is asked") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyBytes, (self.cargo,)

    @cached_property
    def _parts(self) -> tuple[TopicPart, Serde[Any]]:
        parts: tuple[TopicPart, Serde[Any]] = pickle.loads(self.cargo)
        return parts


def typed_keys(
    application: Application, topic: str, kind: DataType, *, case_sensitive: bool = False
) -> KeyBytes | None:
    """Return the bytes of a topic's keys of a Spark type; None for keys that are bytes already.

    Raises ConfigError with the topic for a type that is not supported, and one that the source's key serde cannot
    write.
    """
    if kind.simpleString() == "binary":
        return None
    source = _source(application, topic)
    serde, _ = serdes_of_topic(
        source.key_serde, source.value_serde, application.settings, f"source {source.name!r}", topic
    )
    part = _part(topic, "key", kind, serde, case_sensitive)
    if part.serde is None:
        try:
            serde.serialize(_sample(part.column))
        except SerdeUnavailableError:
            pass  # `prepare_serdes` says so, with where the serde is used
        except SerdeError as error:
            named = serde_name(application.settings.key_serde if source.key_serde is None else source.key_serde)
            raise ConfigError(
                f"the DataFrame of topic {topic!r}: its key is of type {kind.simpleString()}, and the key serde "
                f"{named!r} of source {source.name!r} cannot write that: {error}. Name one that can, such as "
                f'key_serde="int" or "json", or cast the key: Records(frame, key=col(...).cast("string"))'
            ) from error
    return KeyBytes(pack((part, serde)))


def typed_values(
    application: Application, topic: str, kind: DataType, *, case_sensitive: bool = False
) -> TopicPart | None:
    """Return a topic's values of a Spark type; None for values that are bytes already.

    Raises ConfigError with the topic for a type that is not supported, and one that lacks a field of its class.
    """
    if kind.simpleString() == "binary":
        return None
    source = _source(application, topic)
    _, serde = serdes_of_topic(
        source.key_serde, source.value_serde, application.settings, f"source {source.name!r}", topic
    )
    return _part(topic, "value", kind, serde, case_sensitive)


def _source(application: Application, topic: str) -> SourceNode:
    nodes = application.program.nodes.values()
    return next(node for node in nodes if isinstance(node, SourceNode) and topic in node.topics)


def _part(topic: str, part: str, kind: DataType, serde: Serde[Any], case_sensitive: bool) -> TopicPart:
    where = f"the DataFrame of topic {topic!r}: {part}"
    column = column_of(kind, where)
    if serde.value_type is None:
        return TopicPart(topic, part, column)
    typed = serde if isinstance(serde, TypedSerde) else typed_serde(serde.value_type)
    column = fitted(column, serde.value_type, where, case_sensitive=case_sensitive)
    return TopicPart(topic, part, column, typed)


_NESTED = (spark_types.StructColumn, spark_types.MapColumn, spark_types.ArrayColumn)


def _in_order(value: Any) -> Any:
    """Return a key with its dicts in order, so that equal keys have equal bytes in whatever order their columns are."""
    if isinstance(value, dict):
        return {key: _in_order(each) for key, each in sorted(value.items(), key=lambda item: repr(item[0]))}
    return [_in_order(each) for each in value] if isinstance(value, list) else value


_SAMPLES: dict[type[Column], Any] = {
    scalars.IntegerColumn: 0, scalars.FloatColumn: 0.0, scalars.BooleanColumn: False, scalars.DecimalColumn: Decimal(),
    scalars.TextColumn: "", scalars.BinaryColumn: b"", scalars.DateColumn: date(1970, 1, 1), scalars.TimeColumn: time(),
    scalars.IntervalColumn: timedelta(), spark_types.ArrayColumn: [], spark_types.MapColumn: {},
}  # fmt: skip


def _sample(column: Column) -> Any:
    """Return some value of a column."""
    if isinstance(column, spark_types.StructColumn):
        return {field.name: _sample(field.column) for field in column.fields}
    if isinstance(column, scalars.TimestampColumn):
        return datetime(1970, 1, 1, tzinfo=UTC if column.is_zoned else None)
    return _SAMPLES.get(type(column))


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
