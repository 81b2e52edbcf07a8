"""Table: a table of PostgreSQL that was made or checked, and the table of positions beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import SinkError

from .library import load
from .rows import Rows
from .values import Convert, converter, is_known

POSITIONS = "penstock_positions"
_LOCK = 0x70656E73746F636B  # "penstock"
_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, NULL), a.attnotnull, a.atthasdef OR a.attidentity <> '',
        a.attgenerated <> ''
    FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
    SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a
        ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[:i.indnkeyatts - 1])
    WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    GROUP BY i.indexrelid
"""


@dataclass(frozen=True)
class Table:
    """A table that can take the records. `positions` and `name` are identifiers of SQL."""

    name: Any
    positions: Any
    columns: Mapping[str, Convert]
    takes_copy: bool


def open_table(
    connection: Any,
    name: Sequence[str],
    columns: Mapping[str, str] | Sequence[str] | None,
    form: Rows,
) -> Table:
    """Make the tables that are missing, and check the columns. Raises SinkError for a table that does not fit."""
    key, timestamp, mode = form.key, form.timestamp, form.mode
    sql = load().sql
    table, positions = sql.Identifier(*name), sql.Identifier(*name[:-1], POSITIONS)
    _make(connection, positions, _positions_columns(sql))
    if isinstance(columns, Mapping):
        parts = [sql.SQL("{} {}").format(sql.Identifier(each), sql.SQL(type_)) for each, type_ in columns.items()]
        if mode == "upsert":
            parts.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key))))
        _make(connection, table, sql.SQL(", ").join(parts))
    elif _number_of(connection, table) is None:
        raise SinkError("it is not there: make it, or give columns= with the type of each, and it is made")
    number = _number_of(connection, table)
    rows = connection.execute(_COLUMNS, (number,)).fetchall()
    types = {row[0]: row[1] for row in rows if not row[4]}
    chosen = list(columns) if columns is not None else [
        row[0] for row in rows if not row[4] and (row[0] in (*key, timestamp) or not row[3])
    ]  # fmt: skip
    if lacking := [each for each in (*chosen, *key, *([timestamp] if timestamp else [])) if each not in types]:
        raise SinkError(
            f"it has no column {', '.join(lacking)}, but {', '.join(types)}: add it (ALTER TABLE ... ADD "
            "COLUMN), or change columns="
        )
    for each, type_ in columns.items() if isinstance(columns, Mapping) else ():
        (declared,) = connection.execute("SELECT format_type(%s::regtype, NULL)", (type_,)).fetchone()
        if declared != types[each]:
            raise SinkError(f"column {each!r} is of type {types[each]}, and columns= says {type_}: change one")
    if needed := [row[0] for row in rows if row[2] and not row[3] and not row[4] and row[0] not in chosen]:
        raise SinkError(f"column {', '.join(needed)} may not be NULL, has no default, and is not written")
    if timestamp is not None and types[timestamp] != "timestamp with time zone":
        raise SinkError(f"column {timestamp!r} of timestamps is of type {types[timestamp]}, not timestamptz")
    if mode == "upsert":
        unique = [set(row[0]) for row in connection.execute(_UNIQUE, (number,))]
        if set(key) not in unique:
            raise SinkError(f"it has no primary key or unique index of {', '.join(key)}: make one, for upserts")
    made = {each: converter(each, types[each]) for each in chosen}
    return Table(table, positions, made, all(is_known(types[each]) for each in chosen))


def _positions_columns(sql: Any) -> Any:
    return sql.SQL(
        "application text, sink text, topic text, partition integer, topic_id text NOT NULL, "
        "next_offset bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT now(), "
        "PRIMARY KEY (application, sink, topic, partition)"
    )


def _number_of(connection: Any, table: Any) -> int | None:
    found: int | None
    (found,) = connection.execute("SELECT to_regclass(%s)::oid", (table.as_string(connection),)).fetchone()
    return found


def _make(connection: Any, table: Any, columns: Any) -> None:
    """Make a table that is missing. Several tasks may do so at once: CREATE IF NOT EXISTS alone would fail in some."""
    sql = load().sql
    if _number_of(connection, table) is None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(table, columns))
