"""Rows: how records become rows of a schema, many at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock import ConfigError, SinkRecord, SinkRefusedError

from .library import load, schema_of
from .values import ERRORS, ColumnType, column_type, shown

Row = Callable[[SinkRecord], Mapping[str, Any]]
"""Returns the columns of a record by name, without those of the key and the timestamp."""
TIMESTAMP = "__timestamp"
"""The column of the records' timestamps (ms) in rows that wait for their file, where they choose its directory."""
_EARLIEST, _LATEST = (
    int(datetime(year, 1, 2, tzinfo=UTC).timestamp() * 1000) for year in (1, 9999)
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Rows:
    """The options of a sink that say what a record's row is. `keeps_timestamps`: with a column TIMESTAMP beside."""

    schema: Any
    key: tuple[str, ...]
    row: Row | None
    timestamp: str | None
    keeps_timestamps: bool

    @property
    def types(self) -> dict[str, ColumnType]:
        """The types of the columns by name. Raises ConfigError for one that is not supported."""
        return {field.name: column_type(field.name, field.type) for field in self.schema}


class RowMaker:
    """Makes batches of rows. Not thread-safe."""

    def __init__(self, rows: Rows) -> None:
        pa = load()
        self._rows = rows
        self._types = rows.types
        self._names = list(self._types)
        own = {*rows.key, *(() if rows.timestamp is None else (rows.timestamp,))}
        self._others = [name for name in self._names if name not in own]
        self._needed = {field.name for field in rows.schema if not field.nullable}
        extra = [pa.field(TIMESTAMP, pa.int64())] if rows.keeps_timestamps else []
        self.schema = pa.schema([*rows.schema, *extra])

    def batch(self, records: Sequence[SinkRecord]) -> Any:
        """Return the rows as a record batch. Raises SinkRefusedError with the refusals of all records at fault."""
        try:
            return self._batch(records)
        except SinkRefusedError as error:
            refusals = {record.offset: refusal for record in records if (refusal := self._refusal(record)) is not None}
            if not refusals:
                raise  # never: what a record refuses alone is refused among others
            raise SinkRefusedError(str(error), refusals) from error

    def _refusal(self, record: SinkRecord) -> SinkRefusedError | None:
        try:
            self._batch([record])
        except SinkRefusedError as refusal:
            return refusal
        return None

    def _batch(self, records: Sequence[SinkRecord]) -> Any:
        pa = load()
        columns = self._columns(records)
        arrays = [self._array(name, columns[name]) for name in self._names]
        if self._rows.keeps_timestamps:
            arrays.append(pa.array([record.timestamp for record in records], pa.int64()))
        return pa.record_batch(arrays, schema=self.schema)

    def _columns(self, records: Sequence[SinkRecord]) -> Mapping[str, Sequence[Any]]:
        """Return the values of each column."""
        rows = self._rows
        mappings = self._mappings(records)
        if unknown := set[str]().union(*mappings) - set(self._names):
            raise SinkRefusedError(
                f"its value has {', '.join(sorted(map(str, unknown)))}, and the columns are {', '.join(self._names)}"
            )
        columns: dict[str, Sequence[Any]] = {name: [mapping.get(name) for mapping in mappings] for name in self._others}
        if rows.key:
            columns |= self._keys([record.key for record in records])
        if rows.timestamp is not None or rows.keeps_timestamps:
            times = [record.timestamp for record in records]
            if min(times) < _EARLIEST or max(times) > _LATEST:
                raise SinkRefusedError(f"its timestamp is not between the years 1 and 9999: {min(times)} ms")
            if rows.timestamp is not None:
                columns[rows.timestamp] = times
        return columns

    def _mappings(self, records: Sequence[SinkRecord]) -> list[Mapping[str, Any]]:
        row = self._rows.row
        values: list[Any] = [record.value for record in records]
        if row is not None:
            values = [_called(row, record) for record in records]
        if all(type(value) is dict for value in values):
            return values
        return [self._mapping(value) for value in values]

    def _mapping(self, value: Any) -> Mapping[str, Any]:
        if value is None:
            raise SinkRefusedError("it has no value, and rows are only added")
        if isinstance(value, Mapping):
            return value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        fields = getattr(value, "_fields", None)
        if isinstance(value, tuple) and fields:
            return dict(zip(fields, value, strict=True))
        if len(self._others) != 1:
            raise SinkRefusedError(
                f"its value is {shown(value)}, expected a mapping of columns: {', '.join(self._others) or 'none'}"
            )
        return {self._others[0]: value}

    def _keys(self, keys: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
        """Return the values of the columns of keys."""
        names = self._rows.key
        if len(names) == 1 and not any(issubclass(kind, Mapping) for kind in set(map(type, keys))):
            return {names[0]: keys}
        return dict(zip(names, zip(*map(self._key_parts, keys), strict=True), strict=True))

    def _key_parts(self, key: Any) -> Sequence[Any]:
        names = self._rows.key
        if isinstance(key, Mapping):
            return [key.get(name) for name in names]
        if len(names) == 1:
            return [key]
        if isinstance(key, tuple) and len(key) == len(names):
            return key
        raise SinkRefusedError(f"its key is {shown(key)}, expected a tuple or a mapping of {', '.join(names)}")

    def _array(self, name: str, values: Sequence[Any]) -> Any:
        pa, column = load(), self._types[name]
        if name == self._rows.timestamp:
            return pa.array(values, pa.timestamp("ms", "UTC")).cast(column.arrow)
        try:
            made = column.array(values)
        except ERRORS as error:
            found = f"{shown(values[0])} does not fit" if len(values) == 1 else "a value does not fit"
            raise SinkRefusedError(f"column {name!r} ({column.arrow}): {found}: {error}") from error
        if made.null_count and name in self._needed:
            raise SinkRefusedError(f"column {name!r} ({column.arrow}) may not be null, and it has no value there")
        return made


def _called(row: Row, record: SinkRecord) -> Any:
    try:
        return row(record)
    except Exception as error:
        raise SinkRefusedError(f"row= raised {type(error).__name__}: {error}") from error


def rows_of(
    where: str,
    *,
    schema: Any,
    columns: Mapping[str, Any] | None,
    key: str | Sequence[str],
    row: Row | None,
    timestamp: str | None,
    keeps_timestamps: bool = False,
) -> Rows:
    """Return the rows that options of a sink describe. Raises ConfigError, which begins with `where`."""
    pa = load()
    if (schema is None) == (columns is None):
        raise ConfigError(f"{where}: expected either schema= or columns=")
    if schema is not None and not isinstance(schema, pa.Schema):
        raise ConfigError(f"{where}: schema: expected a schema of pyarrow, found {schema!r}; columns= has types")
    if columns is not None and not isinstance(columns, Mapping):
        raise ConfigError(f"{where}: columns: expected types by name, found {columns!r}")
    made = schema_of(where, columns or {}) if schema is None else schema.remove_metadata()
    names = (key,) if isinstance(key, str) else tuple(key)
    if row is not None and not callable(row):
        raise ConfigError(f"{where}: row: expected a function of a SinkRecord, found {row!r}")
    rows = Rows(made, names, row, timestamp, keeps_timestamps)
    try:
        rows.types  # noqa: B018
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    _check_columns(where, rows)
    return rows


def _check_columns(where: str, rows: Rows) -> None:
    """Raise ConfigError for names of columns that do not fit together."""
    names = rows.schema.names
    named = [*rows.key, *(() if rows.timestamp is None else (rows.timestamp,))]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{where}: the schema has a column twice: {', '.join(doubled)}")
    if not names or TIMESTAMP in names:
        raise ConfigError(f"{where}: the schema needs a column, and none named {TIMESTAMP!r}")
    if lacking := [name for name in named if name not in names]:
        raise ConfigError(f"{where}: the schema lacks {', '.join(lacking)}, which key or timestamp names")
    if len(set(named)) < len(named):
        raise ConfigError(f"{where}: key and timestamp name a column twice: {', '.join(named)}")
    if rows.timestamp is not None:
        type_ = rows.schema.field(rows.timestamp).type
        if not load().types.is_timestamp(type_) or type_.tz is None or type_.unit == "s":
            raise ConfigError(
                f"{where}: column {rows.timestamp!r} of timestamps is of type {type_}, expected one such as "
                "timestamp[ms, tz=UTC]"
            )
