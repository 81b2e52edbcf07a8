"""SqliteRows: rows of a SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from penstock import Duration

from .source import CopyError
from .sql import Horizon, Selection, SqlDatabase, SqlRows, quoted


class SqliteRows(SqlRows):
    """The rows of a table, or of a query, of a SQLite file; see `SqlRows`.

    SQLite has one writer at a time, so a greater id is never visible before a lower one.
    """

    def __init__(
        self,
        path: str | Path,
        table: str | None = None,
        *,
        query: str | None = None,
        column: str,
        settled: Duration | None = None,
        unique: bool | None = None,
    ) -> None:
        """Take the path of the file, and what `SqlRows` takes."""
        super().__init__(table, query=query, column=column, settled=settled, unique=unique)
        self._path = Path(path)

    def check(self) -> None:
        if not self._path.is_file():
            raise CopyError(f"there is no SQLite file {str(self._path)!r}")

    def connect(self) -> SqlDatabase:
        self.check()
        return _Sqlite(self._path, str(self))


class _Sqlite(SqlDatabase):
    settled = "0ms"

    def __init__(self, path: Path, what: str) -> None:
        self._what = f"{what} of {str(path)!r}"
        # A writer may have a lock for some seconds.
        self._raw = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30, isolation_level=None)

    def is_unique(self, selection: Selection) -> bool:
        table = selection.table
        if table is None:
            return False
        schema, _, name = table.rpartition(".")
        prefix = f"{quoted(schema)}." if schema else ""
        columns = self._all(f"PRAGMA {prefix}table_info({quoted(name)})")
        keys = [column[1] for column in columns if column[5]]
        indexes = self._all(f"PRAGMA {prefix}index_list({quoted(name)})")
        if keys == [selection.column] and not any(index[3] == "pk" for index in indexes):
            return True  # another name of the rowid
        for index in indexes:
            parts = [part[2] for part in self._all(f"PRAGMA {prefix}index_info({quoted(index[1])})")]
            if index[2] and not index[4] and parts == [selection.column] and self._compares(selection, index[1]):
                return True
        return False

    def _compares(self, selection: Selection, index: str) -> bool:
        """Return whether an index has the collation of the column: by another one, equal values may be unequal."""
        by_index = f"{selection.relation} INDEXED BY {quoted(index)}"
        plan = self._all(f"EXPLAIN QUERY PLAN SELECT * FROM {by_index} WHERE {_column(selection)} > ?", (0,))
        return any(str(step[3]).startswith("SEARCH") for step in plan)

    def has_null(self, selection: Selection) -> bool:
        column = _column(selection)
        return bool(self._all(f"SELECT 1 FROM {selection.relation} WHERE {column} IS NULL LIMIT 1"))

    def horizon(self, selection: Selection, after: Any) -> Horizon:
        column = _column(selection)
        # What `max` returns has no collation, so it is the column that is compared with the position.
        greatest, is_before = self._all(
            f"SELECT max({column}), NOT EXISTS (SELECT 1 FROM {selection.relation} WHERE {column} >= ?) "
            f"FROM {selection.relation}",
            (after,),
        )[0]
        return Horizon(greatest, None not in (greatest, after) and bool(is_before))

    def is_settled(self, mark: Any) -> bool:
        return True

    def now(self) -> float:
        return monotonic()

    def select(
        self, selection: Selection, after: Any, up_to: Any, *, inclusive: bool, most: int | None
    ) -> tuple[Sequence[str], list[Sequence[Any]]]:
        column = _column(selection)
        conditions = f"{column} {'<=' if inclusive else '<'} ?"
        values = [up_to]
        if after is not None:
            conditions += f" AND {column} > ?"
            values.append(after)
        limit = "" if most is None else f" LIMIT {most}"
        with self._errors():
            cursor = self._raw.execute(
                f"SELECT * FROM {selection.relation} WHERE {conditions} ORDER BY {column}{limit}", values
            )
            return [each[0] for each in cursor.description], list(cursor)

    def _all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._errors():
            return self._raw.execute(statement, values).fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CopyError(f"{self._what}: {error}") from error

    def close(self) -> None:
        self._raw.close()


def _column(selection: Selection) -> str:
    # In double quotes SQLite takes the name of a column that is not there for text.
    return "`" + selection.column.replace("`", "``") + "`"
