"""PostgresSink: a table of PostgreSQL as a program names it: where it is, and how records become rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from penstock import ConfigError, Duration, Sink, SinkPlace, SinkWriter, duration_ms

from .library import SINK, connect, load
from .rows import MODES, Row, Rows
from .table import open_table
from .writer import PostgresWriter

_NAME = re.compile(r"[^\x00]{1,63}")


class PostgresSink(Sink):
    """Writes each record once to a table of PostgreSQL, in one transaction with the position.

    `dsn`: where the database is, as libpq reads it ("host=db dbname=shop", or a URL); what it leaves out comes from the
    variables of the environment (PGHOST, PGPASSWORD ...), a service file or ~/.pgpass, where a password should be.
    `table` may name its schema: "sales.orders".

    `columns`: a mapping of names to SQL types, by which the table is made if it is missing, and checked otherwise; or
    names of columns of a table that is there; None: all of its columns but those with a default. A record's value is a
    mapping or a dataclass with these columns, or the value of the only column beside the key. `row`, a function of the
    SinkRecord, makes such a mapping of another value. `key`: the columns of the record's key, one name or several;
    `timestamp`: the column of the record's timestamp.

    `mode`: "insert" adds a row for each record. "upsert" has one row for each key: a later record replaces it, and one
    without a value deletes it; the table needs a primary key, or a unique index, of the columns of `key`. The default
    is "upsert" where there is a `key`.

    `timeout`: after so long without an answer, the server is away. Raises ConfigError for options that do not fit, and
    MissingPackageError without psycopg.
    """

    def __init__(
        self,
        dsn: str = "",
        *,
        table: str,
        columns: Mapping[str, str] | Sequence[str] | None = None,
        key: str | Sequence[str] = (),
        mode: str | None = None,
        row: Row | None = None,
        timestamp: str | None = None,
        timeout: Duration = "30s",
    ) -> None:
        load()
        parts = table.split(".") if isinstance(table, str) else []
        if len(parts) not in (1, 2) or not all(map(_NAME.fullmatch, parts)):
            raise ConfigError(f"{SINK}: table: expected its name, or SCHEMA.TABLE, found {table!r}")
        if isinstance(columns, str):
            raise ConfigError(f"{SINK}: columns: expected types by name, or names in a list, found {columns!r}")
        self._dsn = dsn
        self.table = tuple(parts)
        self.columns = columns if columns is None or isinstance(columns, Mapping) else list(columns)
        names = (key,) if isinstance(key, str) else tuple(key)
        self.rows = Rows(names, mode or ("upsert" if names else "insert"), row, timestamp)
        self.timeout = max(1.0, duration_ms(timeout, "timeout") / 1000)
        self._check()

    def _check(self) -> None:
        rows = self.rows
        if rows.mode not in MODES:
            raise ConfigError(f"{self}: mode: expected {' or '.join(map(repr, MODES))}, found {rows.mode!r}")
        if rows.mode == "upsert" and not rows.key:
            raise ConfigError(f'{self}: mode "upsert" needs key=, the columns of the records\' key')
        if rows.row is not None and not callable(rows.row):
            raise ConfigError(f"{self}: row: expected a function of a SinkRecord, found {rows.row!r}")
        named = [*rows.key, *(() if rows.timestamp is None else (rows.timestamp,))]
        lacking = [name for name in named if self.columns is not None and name not in self.columns]
        if lacking:
            raise ConfigError(f"{self}: columns lacks {', '.join(lacking)}, which key or timestamp names")
        if len(set(named)) < len(named):
            raise ConfigError(f"{self}: key and timestamp name a column twice: {', '.join(named)}")

    def __str__(self) -> str:
        return f"PostgreSQL table {'.'.join(self.table)!r}"

    def __repr__(self) -> str:
        return f"<{self}>"  # without the dsn, which may have a password

    def open(self, place: SinkPlace) -> SinkWriter:
        connection = connect(self._dsn, self.timeout, f"penstock {place.application_id} {place.sink}")
        try:
            with connection.watched():
                table = open_table(connection.raw, self.table, self.columns, self.rows)
            return PostgresWriter(connection, table, self.rows, place)
        except BaseException:
            connection.close()
            raise
