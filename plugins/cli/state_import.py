"""The verb `state import`: the first content of a store, from a file."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
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
    from penstock.plugins.backups import fill_store
    from penstock.plugins.replicas.contents import declared_store

    application = find_application(target, **where)
    form = form or ("parquet" if file.suffix == ".parquet" else "jsonl")
    with leased(application) as (stored, log, lease):
        _, builder = declared_store(stored, store)
        read = _of_parquet if form == "parquet" else _of_lines
        written = fill_store(stored, log, store, lambda: read(file, stored, builder), lease, task=task)
    note(f"{count(written, 'entry', 'entries')} of {store}")


Readers = Mapping[str, Callable[[Any], Any]]
"""By part of a row, `key` or `value`: makes the object of the store's serde."""


def _of_lines(file: Path, application: Application, store: StoreBuilder) -> Iterator[Mapping[str, Any]]:
    read = {name: _from_json(serde, name) for name, serde in _serdes(application, store).items()}
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if headers := row.get("headers"):
                    row["headers"] = [(name, None if each is None else b64decode(each)) for name, each in headers]
                yield _made(row, read)
            except (ValueError, TypeError, AttributeError, SerdeError) as error:
                raise ConfigError(f"{file}, line {number}: {error}") from error


def _of_parquet(file: Path, application: Application, store: StoreBuilder) -> Iterator[Mapping[str, Any]]:
    with needed("Parquet"):
        from pyarrow import ArrowInvalid, parquet

    from penstock.plugins.replicas.arrow_columns import is_json_text

    read = {
        name: _from_text(serde, name) if is_json_text(serde) else _as_it_is(serde)
        for name, serde in _serdes(application, store).items()
    }
    number = 0
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(_PORTION):
                for row in batch.to_pylist():
                    number += 1
                    if headers := row.get("headers"):
                        row["headers"] = [(each["name"], each["value"]) for each in headers]
                    yield _made(row, read)
    except (ArrowInvalid, ValueError, TypeError, SerdeError) as error:
        raise ConfigError(f"{file}, row {number}: {error}") from error


def _made(row: Any, read: Readers) -> Mapping[str, Any]:
    return {**row, **{name: read[name](row[name]) for name in read if name in row}}


def _serdes(application: Application, store: StoreBuilder) -> Mapping[str, Serde[Any]]:
    from penstock.program.serdes import resolve_serde
    from penstock.store.specs import declared_serdes

    settings = application.settings
    return {
        name.removesuffix("_serde"): resolve_serde(
            given, settings.state_serde, f"store {store.name!r}", settings.of_plugins
        )
        for name, given in declared_serdes(store).items()
    }


def _from_json(serde: Serde[Any], name: str) -> Callable[[Any], Any]:
    """Return the function from a JSON value to the object of a serde; it raises SerdeError."""
    from penstock.plugins.serdes.json_text import dump_json
    from penstock.plugins.serdes.typed.base import TypedSerde
    from penstock.plugins.serdes.uuid import UuidSerde

    from .text import TextSerde

    text = TextSerde(serde, name, is_key=name == "key")
    if isinstance(serde, UuidSerde):
        return lambda value: serde.deserialize(serde.serialize(_uuid(value)))

    # A serde of classes writes JSON, and does not take the parts of its objects.
    to_bytes = dump_json if isinstance(serde, TypedSerde) else text.from_json
    return lambda value: serde.deserialize(to_bytes(value))


def _from_text(serde: Serde[Any], name: str) -> Callable[[Any], Any]:
    make = _from_json(serde, name)
    return lambda text: make(json.loads(text))


def _as_it_is(serde: Serde[Any]) -> Callable[[Any], Any]:
    from penstock.plugins.replicas.arrow_columns import without_absent
    from penstock.plugins.serdes.json_text import dump_json
    from penstock.plugins.serdes.typed.base import TypedSerde
    from penstock.plugins.serdes.uuid import UuidSerde

    if isinstance(serde, TypedSerde):
        schema = serde.json_schema()
        return lambda value: serde.deserialize(dump_json(without_absent(value, schema)))
    make = _uuid if isinstance(serde, UuidSerde) else lambda value: value
    return lambda value: serde.deserialize(serde.serialize(make(value)))


def _uuid(value: str) -> Any:
    from uuid import UUID

    return UUID(value)
