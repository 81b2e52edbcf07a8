"""Rows of a Spark DataFrame as dicts, in which a TIMESTAMP is the instant that it is in Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from .source import CopyError, Row

Read = Callable[[Any], Any]


def rows_of_spark(frame: Any, source: object) -> Iterator[Row]:
    """Yield the rows of a DataFrame in its order. Raises CopyError for two columns, or fields, of one name.

    PySpark returns a TIMESTAMP, which is an instant, as the wall time of this process without a zone, in which two
    instants are one each autumn: here it is in UTC. A TIMESTAMP_NTZ has no zone, and stays as it is.
    """
    read = _struct(frame.schema, source)
    for row in frame.toLocalIterator(prefetchPartitions=True):
        yield read(row)


def _reader(kind: Any, source: object) -> Read | None:
    """Return the function that reads values of a type of Spark; None if they stay as they are."""
    name = type(kind).__name__
    if name == "TimestampType":
        return lambda value: _instant(value, source)
    if name == "StructType":
        return _struct(kind, source)
    if name == "ArrayType":
        return _array(_reader(kind.elementType, source))
    if name == "MapType":
        if type(kind.keyType).__name__ in ("StructType", "ArrayType"):
            raise CopyError(f"{source}: keys of a {kind.simpleString()} are no keys of a dict: select map_entries(...)")
        return _map(_reader(kind.keyType, source), _reader(kind.valueType, source))
    return None


def _struct(kind: Any, source: object) -> Read:
    names = kind.fieldNames()
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CopyError(f"{source}: two columns have the name {twice!r}: name them apart (withColumnRenamed, alias)")
    fields = [(name, _or_none(_reader(field.dataType, source))) for name, field in zip(names, kind.fields, strict=True)]
    return lambda row: {name: read(value) for (name, read), value in zip(fields, row, strict=True)}


def _array(read: Read | None) -> Read | None:
    inner = _or_none(read)
    return None if read is None else lambda values: [inner(each) for each in values]


def _map(key: Read | None, value: Read | None) -> Read | None:
    if key is None and value is None:
        return None
    read_key, read_value = _or_none(key), _or_none(value)
    return lambda values: {read_key(name): read_value(each) for name, each in values.items()}


def _or_none(read: Read | None) -> Read:
    if read is None:
        return lambda value: value
    return lambda value: None if value is None else read(value)


def _instant(value: datetime, source: object) -> datetime:
    try:
        return value.astimezone(UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise CopyError(
            f"{source}: a TIMESTAMP at {value} here is not within Python's years in UTC: {error}"
        ) from error
