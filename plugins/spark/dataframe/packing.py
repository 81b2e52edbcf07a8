"""Packing: rows for a task, and records from it, many in one cell: the JVM moves a few chunks instead of many rows."""

from __future__ import annotations

import base64
import json
import os
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgpack

from penstock import (
    Application,
    ConfigError,
    Headers,
    OutputBatch,
    ProductionError,
    RecordBatch,
    Serde,
    SerdeError,
    SerdeUnavailableError,
    SourceNode,
    TopicPartition,
)
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.logs.partitioner import partitions_for_keys
from penstock.plugins.serdes.of import typed_serde
from penstock.plugins.serdes.typed.base import TypedSerde
from penstock.program.serdes import serde_name, serdes_of_topic

from ..worker import COUNTS, WorkerFunction, release_memory
from . import scalars, spark_types
from .scalars import BinaryColumn
from .spark_types import column_of, fitted
from .typed_serdes import Column, TopicColumns, TopicPart, ValueColumn

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import DataType


CHUNK_SCHEMA = "group long, topic string, chunk binary"


class Packer(WorkerFunction):
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
        release_memory()

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


@contextmanager
def message_first() -> Iterator[None]:
    """Let PySpark report an error in the block by its message, with the tracebacks behind it.

    PySpark puts the worker's traceback before the message otherwise. This process ends after the report.
    """
    try:
        yield
    except Exception as error:
        if not getattr(error, "__notes__", None):  # a task host has added its own
            error.add_note(traceback.format_exc())
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


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
            numpy.floor_divide(_integers(rows.column("time")), 1000).tolist(),
            None if headers is None else [headers_from_json(header) for header in headers],
            self.next_offset,
        )


def _integers(column: Any) -> Any:
    """Return a column of int64 without nulls as a numpy array: its own `to_numpy` imports pandas."""
    import numpy

    array = column.combine_chunks()
    return numpy.frombuffer(array.buffers()[1], numpy.int64, len(array), array.offset * 8)


def _sorted(chunks: Sequence[bytes], value: Column | None) -> Any:
    """Return the rows of all chunks as a table; None when there are none."""
    import pyarrow
    from pyarrow import compute

    if not chunks:
        return None
    alone = pyarrow.ipc.IpcReadOptions(use_threads=False)  # as in `serialized`
    tables = [pyarrow.ipc.open_stream(chunk, options=alone).read_all() for chunk in chunks]
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
    """Return, for each value but the last, whether it equals the next one; nulls are equal, and so are NaNs."""
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
    # With threads, a worker waited for Arrow's pool of them in a seventh of a profile's samples.
    options = pyarrow.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pyarrow.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_batch(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def headers_from_json(text: str | None) -> Headers:
    """Return the headers that Spark's `to_json` wrote, with bytes in base64.

    Headers that are null, or have neither a name nor a value, are left out; a null name is empty. Null fields are left
    out of the text, unless `spark.sql.jsonGenerator.ignoreNullFields` is off.

    >>> headers_from_json('[{"key":"trace","value":"MQ=="},{"key":"flag"},{"value":"MQ=="},{}]')
    (('trace', b'1'), ('flag', None), ('', b'1'))
    >>> headers_from_json('[{"key":"flag","value":null},{"key":null,"value":"MQ=="},{"key":null,"value":null},null]')
    (('flag', None), ('', b'1'))
    """
    if not text:
        return ()
    pairs = [(each.get("key"), each.get("value")) for each in json.loads(text) if each]
    return tuple((key or "", _bytes(value)) for key, value in pairs if (key, value) != (None, None))


def _bytes(encoded: str | None) -> bytes | None:
    return None if encoded is None else base64.b64decode(encoded)


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
"""What an operator with typed results yields: chunks of rows, which `Unpacker` unpacks."""
ARRAYS_SCHEMA = (
    "topic string, key array<binary>, value array<binary>, timestamp array<long>, "
    f"headers array<array<struct<key:string,value:binary>>>, {COUNTS} string"
)
"""What an operator whose results are bytes yields: arrays with a cell a row; timestamps in milliseconds."""
_ROWS = 10_000
_BYTES = 32 << 20
"""About the most bytes of a chunk: Arrow and Spark hold 2 GB in a column or a cell."""
_SAMPLED = 64
_LAST_MS = (1 << 63) // 1000 - 1


def packed(outputs: Sequence[OutputBatch], topics: Mapping[str, TopicColumns]) -> list[bytes]:
    """Return what a task has written as chunks of rows: topic, key, value, timestamp, headers, a struct a topic."""
    return [serialized(_rows(batch, part, topics)) for batch, part in _parts(outputs)]


def packed_arrays(outputs: Sequence[OutputBatch]) -> list[bytes]:
    """Return what a task has written as rows of `ARRAYS_SCHEMA`, each as `arrays` reads it.

    They only go through a socket of this machine, and both sides have the rows as lists, which msgpack takes as they
    are.
    """
    packer = msgpack.Packer()
    return [
        packer.pack(
            (
                batch.topic,
                batch.keys[part],
                batch.values[part],
                batch.timestamps[part],
                None if batch.headers is None else batch.headers[part],
            )
        )
        for batch, part in _parts(outputs)
    ]


def arrays(chunk: bytes) -> tuple[Any, ...]:
    """Return a row that `packed_arrays` packed: that of `ARRAYS_SCHEMA`, without its counts."""
    topic, keys, values, timestamps, headers = msgpack.unpackb(chunk)
    if headers is not None:
        headers = [[{"key": name, "value": value} for name, value in row] or None for row in headers]
    return topic, keys, values, timestamps, headers


class Unpacker(WorkerFunction):
    """The function for mapInArrow: chunks in, their rows out."""

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Unpack one partition of a DataFrame."""
        import pyarrow

        for batch in batches:
            for chunk in batch.column("chunk"):
                yield from pyarrow.ipc.open_stream(chunk.as_buffer())
        release_memory()


def _parts(outputs: Sequence[OutputBatch]) -> Iterator[tuple[OutputBatch, slice]]:
    """Yield what a task has written in parts of moderate size."""
    for batch in outputs:
        for start in range(0, len(batch), _ROWS):
            for part in _of_moderate_size(batch, slice(start, min(start + _ROWS, len(batch)))):
                latest = max(batch.timestamps[part])
                if latest > _LAST_MS:
                    raise ProductionError(
                        f"topic {batch.topic!r}: the timestamp {latest} ms is too high for Spark's type timestamp; "
                        "give the record another, such as that of the record that it comes from"
                    )
                yield batch, part


def _of_moderate_size(batch: OutputBatch, part: slice) -> Iterator[slice]:
    """Yield a part, or halves of halves of it if its values are large."""
    half = (part.start + part.stop) // 2
    step = 1 + (part.stop - part.start) // _SAMPLED
    if half > part.start and step * sum(map(_bytes_in, batch.values[part][::step])) > _BYTES:
        yield from _of_moderate_size(batch, slice(part.start, half))
        yield from _of_moderate_size(batch, slice(half, part.stop))
    else:
        yield part


def _bytes_in(value: Any) -> int:
    """Return about how many bytes a value takes: bytes, or the object of a typed column."""
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
    bytes_of = _only_bytes if batch.topic in topics else _binary
    times = pyarrow.py_buffer(numpy.array(timestamps, numpy.int64) * 1000)
    arrays = {
        "topic": _repeated(batch.topic, len(keys)),
        "key": bytes_of(keys),
        "value": bytes_of(values),
        "timestamp": pyarrow.Array.from_buffers(pyarrow.timestamp("us", "UTC"), len(keys), [None, times]),
        "headers": _headers(batch, part, len(keys)),
    }
    for topic, columns in topics.items():
        kind = struct_of(columns)
        arrays[topic] = _struct(keys, values, columns, kind) if topic == batch.topic else pyarrow.nulls(len(keys), kind)
    return pyarrow.RecordBatch.from_pydict(arrays)


def _repeated(text: str, count: int) -> Any:
    import numpy
    import pyarrow

    data = text.encode()
    ends = pyarrow.py_buffer(numpy.arange(count + 1, dtype=numpy.int32) * numpy.int32(len(data)))
    return pyarrow.Array.from_buffers(pyarrow.string(), count, [None, ends, pyarrow.py_buffer(data * count)])


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
        _only_bytes(cells) if column is None else _typed(cells, dead, column)
        for cells, column in ((keys, columns.key), (values, columns.value))
    ]
    return pyarrow.StructArray.from_arrays(parts, fields=list(kind), mask=pyarrow.array(dead, pyarrow.bool_()))


def _typed(cells: list[Any], dead: list[bool], column: Column) -> Any:
    import pyarrow

    plain = [None if cell is None or is_dead else cell[0] for cell, is_dead in zip(cells, dead, strict=True)]
    return pyarrow.array(plain, column.arrow())


def _only_bytes(cells: list[Any]) -> Any:
    return _binary([cell if isinstance(cell, bytes) else None for cell in cells])


def _binary(cells: Sequence[bytes | None]) -> Any:
    """Return cells as an Arrow array.

    It is made of buffers, as `pyarrow.array` imports pandas: 36 MB, which a task host needs for nothing else.
    """
    import numpy
    import pyarrow

    present: Sequence[bytes] = cells  # type: ignore[assignment]
    validity = None
    if None in cells:
        validity = pyarrow.py_buffer(numpy.packbits([cell is not None for cell in cells], bitorder="little"))
        present = [cell or b"" for cell in cells]
    offsets = numpy.zeros(len(cells) + 1, numpy.int64)
    numpy.cumsum(numpy.fromiter(map(len, present), numpy.int64, len(cells)), out=offsets[1:])
    if offsets[-1] >= 1 << 31:
        return pyarrow.array(cells, BinaryColumn().arrow())  # raises
    ends = pyarrow.py_buffer(offsets.astype(numpy.int32))
    buffers = [validity, ends, pyarrow.py_buffer(b"".join(present))]
    return pyarrow.Array.from_buffers(BinaryColumn().arrow(), len(cells), buffers)
