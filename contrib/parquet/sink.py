"""ParquetSink: Parquet files as a program names them: where they are, their columns, and when a file is complete."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import ConfigError, Duration, SinkPlace, StagedSink, StagedWriter, duration_ms
from penstock.contrib.arrow.library import load
from penstock.contrib.arrow.rows import Row, RowMaker, rows_of

from .location import SINK, Location
from .writer import Limits, ParquetWriter

_FORM = re.compile(r"(?:%[YmdHMSjGVuWU%]|[^%])+")
_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class ParquetSink(StagedSink):
    """Writes each record once to Parquet files. A commit decides which records a file has; then it is written.

    `location`: a directory of this host, or a URL that pyarrow.fs knows, such as "s3://bucket/folder"; or a path in
    `filesystem`, one of pyarrow.fs. It has to exist, and to be the same for all processes.

    `schema`: a schema of pyarrow, or `columns`: types by name, such as {"id": "int64 not null", "price": "decimal(10,
    2)", "at": "timestamp"}, which is timestamp[us, tz=UTC]. A record's value is a mapping or a dataclass with these
    columns, or the value of the only one. `row`, a function of the SinkRecord, makes such a mapping of another value.
    `key`: the columns of the record's key, one name or several; `timestamp`: the column of the record's timestamp. A
    column that a value lacks is null.

    A file is complete with `max_rows` rows, with about `max_bytes` bytes of rows in memory, or `max_age` after its
    first row came. `partition_by`: names and formats of directories by the record's timestamp in UTC, {"day":
    "%Y-%m-%d"}; each file is then one for each directory. `compression` is that of pyarrow.

    Raises ConfigError for options that do not fit, and MissingPackageError without pyarrow.
    """

    def __init__(
        self,
        location: str,
        *,
        schema: Any = None,
        columns: Mapping[str, Any] | None = None,
        key: str | Sequence[str] = (),
        row: Row | None = None,
        timestamp: str | None = None,
        partition_by: Mapping[str, str] | None = None,
        max_rows: int = 1_000_000,
        max_bytes: int = 64 * 1024 * 1024,
        max_age: Duration = "1m",
        compression: str = "zstd",
        filesystem: Any = None,
    ) -> None:
        load(SINK)
        self._location = Location(location, filesystem)
        self._partition_by = self._directories(partition_by or {})
        self._rows = rows_of(
            str(self),
            schema=schema,
            columns=columns,
            key=key,
            row=row,
            timestamp=timestamp,
            keeps_timestamps=bool(self._partition_by),
        )
        if both := [name for name in self._partition_by if name in self._rows.schema.names]:
            raise ConfigError(f"{self}: partition_by names a column of the schema, {both[0]!r}: choose another name")
        for name, value in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"{self}: {name}: expected a number from 1 on, found {value!r}")
        self._limits = Limits(max_rows, max_bytes, duration_ms(max_age, "max_age"))
        if compression not in _COMPRESSIONS:
            raise ConfigError(f"{self}: compression: expected {', '.join(_COMPRESSIONS)}, found {compression!r}")
        self._options = {"compression": compression}

    def _directories(self, partition_by: Mapping[str, str]) -> dict[str, str]:
        for name, form in partition_by.items():
            if not _NAME.fullmatch(name) or not isinstance(form, str) or not _FORM.fullmatch(form):
                raise ConfigError(
                    f"{self}: partition_by: expected names and formats of numbers, such as {{'day': '%Y-%m-%d'}}, "
                    f"found {name!r}: {form!r}"
                )
        return dict(partition_by)

    def __str__(self) -> str:
        return f"Parquet files in {str(self._location)!r}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def open(self, place: SinkPlace) -> StagedWriter:
        rows = self._rows
        columns = {field.name: str(field.type) if field.nullable else f"{field.type} not null" for field in rows.schema}
        return ParquetWriter(
            self._location.open(), place, RowMaker(rows), columns, self._partition_by, self._limits, self._options
        )
