"""The verb `state export`: all entries of a store as JSON lines or Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from penstock import ConfigError, StoreError
from penstock.support.packages import needed

from .command import verb
from .options import application_options, checkpoint_options, find_application
from .output import count, data_output, note, reader_may_leave
from .state_reading import StoreReading, reading_store

_PORTION = 20_000


@verb(
    ("To a file of JSON lines", "penstock state export shop:application totals --output totals.jsonl"),
    ("To Parquet", "penstock state export shop:application totals --output totals.parquet"),
    ("What was valid then", "penstock state export shop:application prices --from 1700000000000 --to 1700000000000"),
    ("To another program", "penstock state export shop:application totals | jq -r .key"),
)  # fmt: skip
@click.argument("store", metavar="STORE")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file, which appears when it is complete; else to stdout.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    help="Of the file. [default: parquet for a name that ends so, else jsonl]",
)
@click.option("--from", "first", type=int, default=0, help="Windows, sessions and versions from this time on (ms).")
@click.option("--to", "last", type=int, default=2**63 - 1, help="Windows, sessions and versions up to this time (ms).")
@click.option("--task", metavar="TASK", help="Only this task, e.g. 0_3.")
@checkpoint_options
@application_options
def export(
    target: str,
    store: str,
    output: Path | None,
    form: str | None,
    first: int,
    last: int,
    task: str | None,
    checkpoint: str | None,
    batch: int | None,
    **where: Any,
) -> None:
    """Write all entries of STORE of MODULE:ATTR as JSON lines or Parquet, each task at its last commit.

    Each line or row has the task, the version and the entry.
    """
    from penstock.plugins.state.copies.contents import columns

    application = find_application(target, **where)
    if form is None:
        form = "parquet" if output is not None and output.suffix == ".parquet" else "jsonl"
    written = 0
    with reading_store(application, store, checkpoint, batch) as reading, _written(output, form) as file:
        reading.check_times(first, last)
        write = _parquet(reading, file) if form == "parquet" else _json_lines(reading, file)
        next(write)
        for each, commit in reading.commits(reading.tasks(task)).items():
            with reading.open(each, commit) as (opened, version):
                for portion in columns(opened, _PORTION, first, last):
                    write.send((portion, each, version))
                    written += len(portion["key"])
        write.close()
    note(f"{count(written, 'entry', 'entries')} of {store}")


_Portion = tuple[Any, str, str]


def _json_lines(reading: StoreReading, file: Any) -> Any:
    """Write portions that are sent to it: columns, the task and the version."""
    from penstock.plugins.serdes.json_text import dump_lines

    while True:
        portion, task, version = yield
        file.write(dump_lines({"task": task, "version": version}, reading.text.columns(portion)))


def _parquet(reading: StoreReading, file: Any) -> Any:
    """Write portions that are sent to it to a Parquet file."""
    with needed("Parquet"):
        from pyarrow import parquet

    arrow = reading.arrow_columns()
    with parquet.ParquetWriter(file, arrow.schema, compression="zstd") as writer:
        while True:
            portion, task, version = yield
            writer.write_batch(arrow.batch(portion, task, version))


@contextmanager
def _written(output: Path | None, form: str) -> Iterator[Any]:
    """Return a file to write to; a regular one that is named appears when the block has ended without an error."""
    if output is None:
        if form == "parquet":
            raise ConfigError("--format parquet: name the file with --output")
        with reader_may_leave():
            lines = data_output()
            yield lines
            lines.flush()
        return
    try:
        if output.exists() and not output.is_file():
            # A pipe or a device: nothing may take its place.
            with open(output, "wb") as file:
                yield file
            return
        # A link keeps its place, too.
        output = output.resolve()
        aside = output.with_name(f"{output.name}.{os.getpid()}.tmp")
        try:
            with open(aside, "wb") as file:
                yield file
            aside.replace(output)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{output}: {error.strerror or error}; choose another file with --output") from error
