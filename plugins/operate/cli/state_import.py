"""The verb `state import`: the first content of a store, from a file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from penstock import Application, ConfigError, Serde, SerdeError, StoreBuilder
from penstock.support.packages import needed

from .command import verb
from .options import application_options, find_application, leased
from .output import count, note

_PORTION = 20_000


@verb(
    ("Before the first start", "penstock state import shop:application totals totals.parquet"),
    ("From another application", "penstock state export old:application totals --output totals.jsonl\npenstock state import shop:application totals totals.jsonl"),
    name="import",
)  # fmt: skip
@click.argument("store", metavar="STORE")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    help="Of the file. [default: parquet for a name that ends so, else jsonl]",
)
@click.option("--task", metavar="TASK", help="Put all rows into this task, where keys are not those of records.")
@application_options
def import_store(target: str, store: str, file: Path, form: str | None, task: str | None, **where: Any) -> None:
    """Fill STORE of MODULE:ATTR, which is empty, from FILE, in the form that `penstock state export` writes.

    Each row goes to the task of its key. It is refused while the application runs, and where the store has content. The
    application need not have run before.
    """
    from penstock.plugins.state.copies.contents import declared_store
    from penstock.plugins.state.transfer.backups import fill_store

    application = find_application(target, **where)
    form = form or ("parquet" if file.suffix == ".parquet" else "jsonl")
    with leased(application) as (stored, log, lease), _read_twice(file) as opened:
        _, builder = declared_store(stored, store)
        read = _of_parquet if form == "parquet" else _of_lines
        filled = fill_store(stored, log, store, lambda: read(opened, file, stored, builder), lease, task=task)
    expired = f"; {count(filled.expired, 'row')} had expired" if filled.expired else ""
    note(f"{count(filled.rows - filled.expired, 'entry', 'entries')} of {store}{expired}")


@contextmanager
def _read_twice(file: Path) -> Iterator[Path]:
    """Return a file that can be read again from its beginning: what a pipe has is copied first."""
    from penstock.plugins.engine.task.temporary import TemporaryDirectory

    if file.is_file():
        yield file
        return
    with TemporaryDirectory("import") as directory, file.open("rb") as pipe:
        copied = directory / "rows"
        with copied.open("wb") as copy:
            shutil.copyfileobj(pipe, copy)
        yield copied


Readers = Mapping[str, Callable[[Any], Any]]
"""By part of a row, `key` or `value`: makes the object of the store's serde."""


def _of_lines(opened: Path, file: Path, application: Application, store: StoreBuilder) -> Iterator[Mapping[str, Any]]:
    from penstock.plugins.state.copies.contents import reading_serdes

    from .text import headers_from_json

    read = {name: serde.from_json for name, serde in _by_part(reading_serdes(application, store)).items()}
    with opened.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if headers := row.get("headers"):
                    row["headers"] = headers_from_json(headers)
                yield _made(row, read)
            except Exception as error:  # a serde of another package may raise anything
                raise ConfigError(
                    f"{file}, line {number}: {error if isinstance(error, SerdeError | ValueError) else repr(error)}"
                ) from error


def _of_parquet(opened: Path, file: Path, application: Application, store: StoreBuilder) -> Iterator[Mapping[str, Any]]:
    with needed("Parquet"):
        from pyarrow import ArrowInvalid, parquet

    from penstock.plugins.state.copies.arrow_columns import is_json_text
    from penstock.plugins.state.copies.contents import reading_serdes

    read = {
        name: _from_text(serde) if is_json_text(serde) else _as_it_is(serde)
        for name, serde in _by_part(reading_serdes(application, store)).items()
    }
    number = 0
    try:
        with parquet.ParquetFile(opened) as rows:
            for batch in rows.iter_batches(_PORTION):
                for row in batch.to_pylist():
                    number += 1
                    if headers := row.get("headers"):
                        row["headers"] = [(each["name"], each["value"]) for each in headers]
                    yield _made(row, read)
    except (ArrowInvalid, ValueError, TypeError, SerdeError) as error:
        raise ConfigError(f"{file}, row {number}: {error}") from error


def _by_part(serdes: Mapping[str, Serde[Any]]) -> Mapping[str, Serde[Any]]:
    return {name.removesuffix("_serde"): serde for name, serde in serdes.items()}


def _made(row: Any, read: Readers) -> Mapping[str, Any]:
    return {**row, **{name: read[name](row[name]) for name in read if name in row}}


def _as_it_is(serde: Serde[Any]) -> Callable[[Any], Any]:
    """Return the function from a value of a column of the serde's own type."""
    from penstock.plugins.serdes.typed.base import TypedSerde
    from penstock.plugins.state.copies.arrow_columns import without_absent

    if isinstance(serde, TypedSerde):
        schema = serde.json_schema()
        return lambda value: serde.of_plain(without_absent(value, schema))
    return lambda value: serde.deserialize(serde.serialize(value))


def _from_text(serde: Serde[Any]) -> Callable[[Any], Any]:
    return lambda text: serde.from_json(json.loads(text))
