"""DeltaSink: a Delta table as a program names it: where it is, and how records become rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock import ConfigError, Sink, SinkError, SinkPlace, SinkWriter
from penstock.contrib.arrow.rows import Row, RowMaker, rows_of

from .columns import delta_schema
from .library import SINK, Storage, load
from .local import local_path
from .table import OpenTable
from .writer import DeltaWriter

_UNSAFE = "allow_unsafe_rename"


class DeltaSink(Sink):
    """Appends each record once to a Delta table, in one commit with the position.

    `table_uri`: a directory of this host, whose parent has to exist, or a URL that deltalake knows, such as
    "s3://bucket/table". `storage_options`: how it is reached, as deltalake takes them; what they leave out comes from
    the variables of the environment.

    `schema`: a schema of pyarrow, or `columns`: types by name, such as {"id": "int64 not null", "price": "decimal(10,
    2)", "at": "timestamp"}. By them the table is made if it is missing, and checked otherwise. A record's value is a
    mapping or a dataclass with these columns, or the value of the only one. `row`, a function of the SinkRecord, makes
    such a mapping of another value. `key`: the columns of the record's key, one name or several; `timestamp`: the
    column of the record's timestamp. A column that a value lacks is null. `partition_by`: the columns by whose values
    the table has directories.

    Raises ConfigError for options that do not fit, and MissingPackageError without deltalake.
    """

    def __init__(
        self,
        table_uri: str | Path,
        *,
        schema: Any = None,
        columns: Mapping[str, Any] | None = None,
        key: str | Sequence[str] = (),
        row: Row | None = None,
        timestamp: str | None = None,
        partition_by: str | Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        load()
        self._storage = _storage(table_uri, storage_options or {})
        self._rows = rows_of(str(self), schema=schema, columns=columns, key=key, row=row, timestamp=timestamp)
        self._partition_by = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        self._wanted = delta_schema(str(self), self._rows.schema, self._partition_by)

    def __str__(self) -> str:
        return f"Delta table {str(self._storage)!r}"

    def __repr__(self) -> str:
        return f"<{self}>"  # without the options, which may have secrets

    def open(self, place: SinkPlace) -> SinkWriter:
        if unsafe := _unsafe(os.environ.items()):
            raise SinkError(f"the variable {unsafe} lets writers replace each other's commits: remove it")
        table = OpenTable(self._storage, self._wanted, self._partition_by)
        return DeltaWriter(table, RowMaker(self._rows), place)


def _storage(table_uri: str | Path, given: Mapping[str, str]) -> Storage:
    uri = str(table_uri) if isinstance(table_uri, (str, Path)) else ""
    if not uri:
        raise ConfigError(
            f"{SINK}: table_uri: expected a directory or a URL such as 's3://bucket/table': {table_uri!r}"
        )
    if not isinstance(given, Mapping) or not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise ConfigError(f"{SINK}: storage_options: expected texts by name")
    if unsafe := _unsafe(given.items()):
        raise ConfigError(
            f"{SINK}: storage_options: {unsafe} lets writers replace each other's commits, so rows would be lost"
        )
    directory = local_path(uri)
    parts = urlsplit(uri)
    shown = directory or f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return Storage(directory or uri, dict(given), shown)


def _unsafe(options: Iterable[tuple[str, str]]) -> str:
    """Return the name of an option by which commits are no longer exclusive, or ""."""
    for name, value in options:
        lowered = name.lower()
        is_on = value.strip().lower() in ("1", "true", "on", "yes", "y", "ok")
        if lowered.endswith(_UNSAFE) and is_on:
            return name
        if lowered.endswith("conditional_put") and value.strip().lower() == "disabled":
            return name
    return ""
