"""SqlRows: the rows of a table or query, by a column that grows; its database is a SqlDatabase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock import ConfigError, Duration, duration_ms
from penstock.support.text_form import from_json, to_json

from .source import CopyError, RowBatch, Source, SourceReader


@dataclass(frozen=True)
class Horizon:
    """The greatest value of the column at one moment, None without rows; and a mark of that moment.

    `is_before`: the value is below the position of the copy, which cannot be.
    """

    value: Any
    is_before: bool
    mark: Any = None


@dataclass(frozen=True)
class Selection:
    """The rows that a copy reads, as SQL: `relation` is a table's quoted name, or a query in parentheses."""

    relation: str
    column: str
    table: str | None = None


class SqlDatabase(ABC):
    """A connection to a database. One thread calls all methods, which raise CopyError with the database's message."""

    settled: ClassVar[str]
    """The default of `settled`."""

    @abstractmethod
    def is_unique(self, selection: Selection) -> bool:
        """Return whether no two rows of a table have the same value of the column."""

    @abstractmethod
    def has_null(self, selection: Selection) -> bool:
        """Return whether the column of some row is null."""

    @abstractmethod
    def horizon(self, selection: Selection, after: Any) -> Horizon:
        """Return the greatest value of the column now."""

    @abstractmethod
    def is_settled(self, mark: Any) -> bool:
        """Return whether every transaction that was writing at the moment of `mark` has ended."""

    @abstractmethod
    def now(self) -> float:
        """Return the seconds of a stopwatch."""

    @abstractmethod
    def select(
        self, selection: Selection, after: Any, up_to: Any, *, inclusive: bool, most: int | None
    ) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """Return names of columns, and rows in the column's order: above `after` (None: all), up to `up_to`."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; idempotent."""


class SqlRows(Source):
    """The rows of a table, or of a query, in the order of a column that grows, such as a serial id.

    New rows are found by a greater value, so a row that is updated or deleted later is not copied again. Rows are read
    up to the greatest value that was there `settled` ago, once all transactions of that moment have ended: a row whose
    transaction ends late is waited for. Where the column is not unique, rows with the greatest value wait until there
    is a greater one. A row with null in the column is an error.
    """

    kind = "sql"

    def __init__(
        self,
        table: str | None = None,
        *,
        query: str | None = None,
        column: str,
        settled: Duration | None = None,
        unique: bool | None = None,
    ) -> None:
        """Take a table, `NAME` or `SCHEMA.NAME`, or a query without a semicolon; and the name of the column.

        `unique`: no two rows have the same value; None: ask the database about a table, no for a query.
        """
        if (table is None) == (query is None):
            raise ConfigError("a copy of a database needs a table or a query, and not both")
        if settled is not None:
            duration_ms(settled, "settled")
        self.settled, self.unique = settled, unique
        relation = _quoted_name(table) if table is not None else f"({(query or '').strip().rstrip(';')}\n) AS source"
        self.selection = Selection(relation, column, table)

    def __str__(self) -> str:
        table = self.selection.table
        return "the query" if table is None else f"table {table!r}"

    @property
    def name(self) -> str:
        return self.selection.table or ""

    def open(self, position: Any, *, follow: bool) -> SourceReader:
        database = self.connect()
        try:
            return _Reader(self, database, position, follow=follow)
        except BaseException:
            database.close()
            raise

    @abstractmethod
    def connect(self) -> SqlDatabase:
        """Return a new connection. Raises CopyError."""


class _Reader(SourceReader):
    """`_end`: the greatest value that may be read; `_next_end`: the one that is not settled yet, with its time.

    `_last_end`: the one up to which all has been read.
    """

    poll_seconds = 1.0

    def __init__(self, source: SqlRows, database: SqlDatabase, position: Any, *, follow: bool) -> None:
        self._source, self._database, self._follow = source, database, follow
        self._after = None if position is None else from_json(position["after"])
        self._count = 0 if position is None else position["rows"]
        if position is not None and position["column"] != source.selection.column:
            raise CopyError(
                f"{source} was copied by the column {position['column']!r}, and now the column is "
                f"{source.selection.column!r}"
            )
        self._seconds = duration_ms(source.settled or database.settled) / 1000
        self._is_unique = source.unique if source.unique is not None else database.is_unique(source.selection)
        self._end: Horizon | None = None
        self._next_end: tuple[Horizon, float] | None = None
        self._last_end: Any = None
        self._is_read = False
        self._check_nulls()

    def _check_nulls(self) -> None:
        if self._database.has_null(self._source.selection):
            column = self._source.selection.column
            raise CopyError(
                f"{self._source}: the column {column!r} of some rows is null, and they would never be copied: give the "
                f"rows values, or leave them out with a query (... WHERE {column} IS NOT NULL)"
            )

    def read(self, most: int) -> RowBatch | None:
        self.waiting_for = ""
        while True:
            if self._end is not None:
                batch = self._select(self._end, most)
                if batch is not None:
                    return batch
                self._last_end, self._end, self._is_read = self._end.value, None, True
            if self._is_read and not self._follow:
                return None
            if not self._find_end():
                return None

    def _find_end(self) -> bool:
        """Set `_end` if there are rows that may be read now."""
        database, selection = self._database, self._source.selection
        if self._next_end is None:
            horizon = database.horizon(selection, self._after)
            if horizon.is_before:
                raise CopyError(
                    f"{self._source}: the greatest {selection.column!r} is {horizon.value}, and rows up to "
                    f"{self._after} were copied: the column went back, or this is another table"
                )
            # Where the column is not unique, the last end is above the position for as long as its rows wait.
            if horizon.value is None or horizon.value in (self._after, self._last_end):
                return False
            self._check_nulls()
            self._next_end = horizon, database.now()
        horizon, since = self._next_end
        if database.now() < since + self._seconds or not database.is_settled(horizon.mark):
            self.waiting_for = f"transactions that are writing, before rows up to {horizon.value} are read"
            return False
        self._end, self._next_end = horizon, None
        return True

    def _select(self, end: Horizon, most: int) -> RowBatch | None:
        database, selection = self._database, self._source.selection
        inclusive = self._is_unique
        names, rows = database.select(selection, self._after, end.value, inclusive=inclusive, most=most)
        if len(set(names)) < len(names):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise CopyError(f"{self._source}: two columns have the name {twice!r}: name them apart in a query")
        if selection.column not in names:
            raise CopyError(f"{self._source} has no column {selection.column!r}; it has {', '.join(names)}")
        if not rows:
            return None
        at = list(names).index(selection.column)
        last = rows[-1][at]
        if len(rows) == most and not self._is_unique:
            # The next row may have the same value, and the position cannot be between the two.
            rows = self._below(rows, at) or database.select(selection, self._after, last, inclusive=True, most=None)[1]
            last = rows[-1][at]
        self._after = last
        self._count += len(rows)
        position = {"column": selection.column, "after": to_json(last), "rows": self._count}
        values = [row[at] for row in rows]
        source, column = self._source, selection.column
        return RowBatch(
            [dict(zip(names, row, strict=True)) for row in rows],
            position,
            lambda index: f"{source}, the row with {column} = {values[index]}",
        )

    def _below(self, rows: list[Sequence[Any]], at: int) -> list[Sequence[Any]]:
        """Return the rows whose value is below that of the last one."""
        last = rows[-1][at]
        if not isinstance(last, str):
            return [row for row in rows if row[at] != last]
        # Texts are equal by the column's collation, which may ignore case, and which only the database knows.
        return self._database.select(self._source.selection, self._after, last, inclusive=False, most=None)[1]

    def close(self) -> None:
        self._database.close()


def quoted(name: str) -> str:
    """Return a name as SQL has it, in its own letters."""
    return '"' + name.replace('"', '""') + '"'


def _quoted_name(name: str) -> str:
    return ".".join(map(quoted, name.split(".")))
