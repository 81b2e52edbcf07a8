"""The verb `copy`: a file or a table into a topic, each row once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .command import options, verb
from .failures import ended_by_sigterm
from .options import find_settings, log_options, name_and_value
from .output import ProgressMeter, count, note, print_json

if TYPE_CHECKING:
    from penstock.plugins.copying import CopySummary, Source

_NOTE_SECONDS = 10
"""Seconds between two notes on what a copy waits for."""

_source_options = options(
    click.option(
        "--format",
        "form",
        type=click.Choice(["json-lines", "parquet"]),
        help="Form of a file. [default: parquet for a directory and *.parquet, else json-lines]",
    ),
    click.option("--table", metavar="NAME", help="Of a database: the table, NAME or SCHEMA.NAME."),
    click.option("--query", metavar="SQL", help="Of a database: a SELECT in place of a table."),
    click.option(
        "--column", metavar="COLUMN", help="Of a database: the column that grows, such as an id; rows are in its order."
    ),
    click.option(
        "--settled",
        metavar="TIME",
        help="Of a database: how long an id may take from the sequence to its row. [default: 1s for PostgreSQL, 0ms "
        "for SQLite]",
    ),
    click.option("--unique", is_flag=True, help="No two rows have the same value of --column. [default: as declared]"),
)
_record_options = options(
    click.option(
        "--key", "-k", "key", multiple=True, metavar="COLUMN", help="Column of the key. Repeatable. [default: no key]"
    ),
    click.option("--value", metavar="COLUMN", help="Column that is the value. [default: the row as a whole]"),
    click.option("--timestamp", "-t", metavar="COLUMN", help="Column of the timestamp. [default: the time of copying]"),
    click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="Header of all records."),
    click.option("--header-column", multiple=True, metavar="COLUMN", help="Column that is a header. Repeatable."),
    click.option("--tombstones", is_flag=True, help="A null in the column of --value deletes the key."),
    click.option("--key-serde", metavar="NAME", help="Serde of keys. [default: the application's, or str]"),
    click.option("--value-serde", metavar="NAME", help="Serde of values. [default: the application's, or json]"),
)


@verb(
    ("Each line of a file, which has a JSON object", "penstock copy orders.jsonl orders --key id --partitions 4"),
    ("The same file later: only the new lines, and those that come", "penstock copy orders.jsonl orders --key id --follow"),
    ("All Parquet files of a directory", "penstock copy exports/ orders --key id --timestamp ordered_at"),
    ("A table of PostgreSQL, and its new rows", "penstock copy postgresql://me@db/shop orders --table orders --column id --key id --key-serde int --follow"),
    ("What a query of SQLite returns", "penstock copy sqlite:shop.db paid --query 'SELECT * FROM orders WHERE paid' --column id"),
    target=False,
)  # fmt: skip
@click.argument("source")
@click.argument("topic")
@_source_options
@_record_options
@click.option("--name", metavar="NAME", help="Name of the copy. [default: that of the file or table]")
@click.option(
    "--partitions", "-p", type=click.IntRange(min=1), help="Make the topic if it is missing, with so many partitions."
)
@click.option(
    "--batch",
    "batch_rows",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    metavar="ROWS",
    help="Rows of a transaction.",
)
@click.option("--follow", "-F", is_flag=True, help="Go on with new rows until Ctrl-C (exit code 130) or SIGTERM (0).")
@click.option("--restart", is_flag=True, help="Forget the position, and copy all rows again.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as a JSON object.")
@log_options
def copy(source: str, topic: str, quiet: bool, as_json: bool, **given: Any) -> None:
    """Copy the rows of SOURCE to TOPIC, each once, and continue where an earlier call of the same name ended.

    SOURCE is a file of JSON lines, a Parquet file or a directory of them, postgresql://... or sqlite:FILE. The position
    is committed with the records, in one transaction; so it may be killed at any moment and started again. Two at a
    time cannot write: the earlier one ends. A source that was changed before the position is refused.
    """
    from penstock.plugins.copying import copy as copy_rows

    from .text import program_serdes

    where = {name: given.pop(name) for name in ("log", "data_dir", "app")}
    settings = find_settings(**where)
    names = ("form", "table", "query", "column", "settled", "unique")
    opened = _source(source, **{name: given.pop(name) for name in names})
    pairs = [name_and_value("--header", header) for header in given.pop("headers")]
    headers = tuple((name, value.encode()) for name, value in pairs)
    given["header_columns"] = given.pop("header_column")
    key_serde, value_serde = program_serdes(topic, where["app"])
    given["key_serde"] = given["key_serde"] or key_serde
    given["value_serde"] = given["value_serde"] or value_serde
    with (
        ProgressMeter(f"copying to {topic}", quiet=quiet) as meter,
        ended_by_sigterm() if given["follow"] else nullcontext(),
    ):
        listener = _Listener(meter, quiet=quiet)
        summary = copy_rows(opened, topic, log=settings, headers=headers, on_progress=listener, **given)
    if as_json:
        shown = {"name": summary.name, "topic": topic, "rows": summary.rows, "total": summary.total}
        print_json({**shown, "seconds": round(meter.seconds, 3)})
    elif not quiet:
        note(f"copied {count(summary.rows, 'row')} to {topic} in {meter.seconds:.1f} s; in all {summary.total:,}")


class _Listener:
    """Shows the progress of a copy, and the reason if it waits for long."""

    def __init__(self, meter: ProgressMeter, *, quiet: bool) -> None:
        self._meter, self._quiet = meter, quiet
        self._reason = ""
        self._noted = 0.0

    def __call__(self, summary: CopySummary, reason: str) -> None:
        self._meter.update(summary.rows)
        now = self._meter.seconds
        if not reason:
            self._reason = ""
        elif reason != self._reason:
            self._reason, self._noted = reason, now
        elif now - self._noted >= _NOTE_SECONDS and not self._quiet:
            self._noted = now
            note(f"waiting for {reason}")


def _source(
    source: str,
    form: str | None,
    table: str | None,
    query: str | None,
    column: str | None,
    settled: str | None,
    unique: bool,
) -> Source:
    from penstock.plugins.copying import JsonLines, ParquetFiles, PostgresRows, SqliteRows

    is_postgres = source.startswith(("postgresql:", "postgres:"))
    if is_postgres or source.startswith("sqlite:"):
        if form is not None:
            raise click.UsageError("--format is for files; a database has --table or --query")
        if column is None or (table is None) == (query is None):
            raise click.UsageError("a database needs --column, and --table or --query")
        options: dict[str, Any] = {"query": query, "column": column, "settled": settled, "unique": unique or None}
        if not is_postgres:
            return SqliteRows(source.removeprefix("sqlite:"), table, **options)
        rest = source.partition(":")[2]
        return PostgresRows(source if rest.startswith("//") else rest, table, **options)
    of_databases: Sequence[tuple[str, Any]] = (
        ("--table", table), ("--query", query), ("--column", column), ("--settled", settled), ("--unique", unique)
    )  # fmt: skip
    for option, value in of_databases:
        if value:
            raise click.UsageError(f"{option} is for a database, postgresql://... or sqlite:FILE, and not for a file")
    path = Path(source)
    if form is None:
        form = "parquet" if path.is_dir() or path.suffix == ".parquet" else "json-lines"
    return ParquetFiles(path) if form == "parquet" else JsonLines(path)
