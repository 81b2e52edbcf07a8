"""PostgresRows: rows of a PostgreSQL database, by psycopg."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from penstock import Duration
from penstock.support.packages import needed

from .json_lines import exact, parse_json
from .source import CopyError
from .sql import Horizon, Selection, SqlDatabase, SqlRows, quoted

_WRITES = (
    "locktype = 'relation' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
)
_OPTIONS = "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 -c default_transaction_read_only=on"


class PostgresRows(SqlRows):
    """The rows of a table, or of a query, of a PostgreSQL database; see `SqlRows`. Needs the extra `postgres`.

    A sequence may give a lower id to a transaction that ends after one with a greater id. So rows are read up to an id
    only when all transactions that were writing to the database after that id was seen have ended. `settled` (default:
    1 s) is the time that an id may take from the sequence to its INSERT, where a program takes it ahead.
    """

    def __init__(
        self,
        dsn: str,
        table: str | None = None,
        *,
        query: str | None = None,
        column: str,
        settled: Duration | None = None,
        unique: bool | None = None,
    ) -> None:
        """Take the database, as libpq reads it, and what `SqlRows` takes."""
        super().__init__(table, query=query, column=column, settled=settled, unique=unique)
        self._dsn = dsn

    def connect(self) -> SqlDatabase:
        with needed("a copy of PostgreSQL", "postgres"):
            import psycopg
        try:
            given = psycopg.conninfo.conninfo_to_dict(self._dsn)
            options = f"{given.pop('options', '') or ''} {_OPTIONS}".strip()
            defaults: dict[str, Any] = {"connect_timeout": 10, "application_name": "penstock copy"}
            raw = psycopg.connect(
                "", **{**defaults, **given, "options": options}, autocommit=True, client_encoding="UTF8"
            )
        except psycopg.Error as error:
            raise CopyError(f"PostgreSQL: {_on_one_line(error)}") from error
        return _Postgres(raw, str(self))


class _Postgres(SqlDatabase):
    settled = "1s"

    def __init__(self, raw: Any, what: str) -> None:
        from psycopg.types.json import set_json_loads
        from psycopg.types.string import TextLoader

        self._raw, self._what = raw, what
        set_json_loads(_load_json, raw)
        # A timedelta has no months.
        raw.adapters.register_loader("interval", TextLoader)
        if self._all("SELECT pg_is_in_recovery()")[0][0]:
            raise CopyError(
                f"{what}: this server is a standby, which does not show the transactions that are writing: name the "
                "primary"
            )

    def is_unique(self, selection: Selection) -> bool:
        if selection.table is None:
            return False
        return bool(
            self._all(
                "SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
                "WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1 "
                "AND i.indpred IS NULL AND i.indexprs IS NULL AND a.attname = %s",
                (selection.relation, selection.column),
            )
        )

    def has_null(self, selection: Selection) -> bool:
        column = quoted(selection.column)
        return bool(self._all(f"SELECT 1 FROM {_plain(selection)} WHERE {column} IS NULL LIMIT 1"))

    def horizon(self, selection: Selection, after: Any) -> Horizon:
        column = quoted(selection.column)
        before = "false" if after is None else f"max({column}) < %s"
        greatest, is_before = self._all(
            f"SELECT max({column}), {before} FROM {_plain(selection)}", () if after is None else (after,)
        )[0]
        # In a later statement: who has a lower id locked the table before taking it, so is among these or has ended.
        return Horizon(greatest, bool(is_before), self._writers())

    def _writers(self) -> list[str]:
        """Return the transactions of this database that have locked a table to write to it."""
        rows = self._all(f"SELECT DISTINCT virtualtransaction FROM pg_locks WHERE {_WRITES}")
        return [transaction for (transaction,) in rows]

    def is_settled(self, mark: Any) -> bool:
        return not mark or not set(mark) & set(self._writers())

    def now(self) -> float:
        return monotonic()

    def select(
        self, selection: Selection, after: Any, up_to: Any, *, inclusive: bool, most: int | None
    ) -> tuple[Sequence[str], list[Sequence[Any]]]:
        column = quoted(selection.column)
        conditions = f"{column} {'<=' if inclusive else '<'} %s"
        values = [up_to]
        if after is not None:
            conditions += f" AND {column} > %s"
            values.append(after)
        limit = "" if most is None else f" LIMIT {most}"
        with self._errors():
            cursor = self._raw.execute(
                f"SELECT * FROM {_plain(selection)} WHERE {conditions} ORDER BY {column}{limit}", values
            )
            return [each.name for each in cursor.description], cursor.fetchall()

    def _all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._errors():
            rows: list[Any] = self._raw.execute(statement, values).fetchall()
            return rows

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except (psycopg.Error, ValueError) as error:
            raise CopyError(f"{self._what}: {_on_one_line(error)}") from error

    def close(self) -> None:
        with suppress(Exception):
            self._raw.close()


def _plain(selection: Selection) -> str:
    """Return the relation with percent signs as psycopg reads them."""
    return selection.relation.replace("%", "%%")


def _load_json(data: str | bytes) -> Any:
    return exact(parse_json(data if isinstance(data, str) else data.decode()))


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split())
