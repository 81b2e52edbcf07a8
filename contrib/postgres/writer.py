"""PostgresWriter: writes the records of one partition to a table, and the position, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from penstock import SinkMovedError, SinkPlace, SinkPosition, SinkRecord, SinkRefusedError, SinkWriter

from .library import Connection, load
from .rows import Rows
from .table import Table
from .values import from_ms

_COPIED = 20
"""From so many rows on, COPY is faster than INSERT."""
_WHERE = "application = %s AND sink = %s AND topic = %s AND partition = %s"
_Row = tuple[Any, ...]


class PostgresWriter(SinkWriter):
    """An open connection of one task."""

    def __init__(self, connection: Connection, table: Table, rows: Rows, place: SinkPlace) -> None:
        self._form = rows
        self._connection = connection
        self._columns = table.columns
        self._names = list(table.columns)
        self._place = (place.application_id, place.sink, place.topic, place.partition)
        sql = load().sql
        names = sql.SQL(", ").join(map(sql.Identifier, self._names))
        values = sql.SQL(", ").join(sql.Placeholder() * len(self._names))
        insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(table.name, names, values)
        self._copy = sql.SQL("COPY {} ({}) FROM STDIN").format(table.name, names) if table.takes_copy else None
        key = [sql.Identifier(each) for each in rows.key]
        others = [sql.Identifier(each) for each in self._names if each not in rows.key]
        on_conflict = sql.SQL(" ON CONFLICT ({}) DO ").format(sql.SQL(", ").join(key))
        update = sql.SQL("UPDATE SET {}").format(
            sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(each) for each in others)
        )
        self._insert = insert
        self._upsert = insert + on_conflict + (update if others else sql.SQL("NOTHING"))
        equal = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(each) for each in key)
        self._delete = sql.SQL("DELETE FROM {} WHERE {}").format(table.name, equal)
        self._begin = sql.SQL(
            "INSERT INTO {} (application, sink, topic, partition, topic_id, next_offset) "
            "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
        ).format(table.positions)
        self._move = sql.SQL(
            "UPDATE {} SET topic_id = %s, next_offset = %s, written_at = now() "
            f"WHERE {_WHERE} AND topic_id = %s AND next_offset = %s"
        ).format(table.positions)
        read = sql.SQL(f"SELECT topic_id, next_offset FROM {{}} WHERE {_WHERE}").format(table.positions)
        with connection.watched():
            row = connection.raw.execute(read, self._place).fetchone()
        self._position = None if row is None else SinkPosition(*row)

    @property
    def position(self) -> SinkPosition | None:
        return self._position

    def write(self, records: Sequence[SinkRecord], follows: SinkPosition | None, ends: SinkPosition) -> None:
        # Values are converted first: a row that does not fit costs no transaction.
        rows = self._rows(records) if self._form.mode == "insert" else []
        work = self._changes(records) if self._form.mode == "upsert" else []
        # Without `transaction`, rows before a failure would stay: the connection commits each statement by itself.
        with self._connection.watched(), self._connection.raw.transaction(), self._connection.raw.cursor() as cursor:
            if follows is None:
                cursor.execute(self._begin, (*self._place, ends.topic_id, ends.next_offset))
            else:
                new, old = (ends.topic_id, ends.next_offset), (follows.topic_id, follows.next_offset)
                cursor.execute(self._move, (*new, *self._place, *old))
            if cursor.rowcount != 1:
                raise SinkMovedError(f"its position is not {follows} any more")
            if self._form.mode == "insert":
                self._add(cursor, rows)
            else:
                for is_deletion, changes in groupby(work, itemgetter(0)):
                    cursor.executemany(self._delete if is_deletion else self._upsert, [row for _, row in changes])

    def _add(self, cursor: Any, rows: list[_Row]) -> None:
        if self._copy is None or len(rows) < _COPIED:
            cursor.executemany(self._insert, rows)
            return
        with cursor.copy(self._copy) as copy:
            for row in rows:
                copy.write_row(row)

    def _rows(self, records: Iterable[SinkRecord]) -> list[_Row]:
        rows = []
        for record in records:
            row = self._row(record)
            if row is None:
                raise SinkRefusedError('it has no value: it deletes the row of its key, and the mode is "insert"')
            rows.append(row)
        return rows

    def _changes(self, records: Iterable[SinkRecord]) -> list[tuple[bool, _Row]]:
        """Return the last change of each key, in their order: whether it deletes, and the row, or the key of that."""
        changes: dict[_Row, tuple[bool, _Row]] = {}
        form, columns = self._form, self._columns
        for record in records:
            row = self._row(record)
            parts = form.key_parts(record.key)
            key = tuple(columns[name](parts[name]) for name in form.key)
            changes.pop(key, None)
            changes[key] = (True, key) if row is None else (False, row)
        return list(changes.values())

    def _row(self, record: SinkRecord) -> _Row | None:
        values = self._form.values_of(record, self._names)
        if values is None:
            return None
        timestamp, columns = self._form.timestamp, self._columns
        return tuple(
            from_ms(values[name]) if name == timestamp else convert(values.get(name))
            for name, convert in columns.items()
        )

    def close(self) -> None:
        self._connection.close()
