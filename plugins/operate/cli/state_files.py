"""The verbs `state export` and `state import`, and StoreReading: one store, read from a log or from a query's checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock import Application, ConfigError, Serde, SerdeError, StoreBuilder, StoreError
from penstock.support.packages import needed

from .command import options, verb
from .options import (
    application_options,
    check_batch,
    checkpoint_options,
    find_application,
    find_checkpoint,
    leased,
    open_application,
)
from .output import count, data_output, note, reader_may_leave

if TYPE_CHECKING:
    from penstock import Commit, Log
    from penstock.plugins.spark.dataframe.checkpoint import Checkpoint
    from penstock.plugins.state.copies.key_tasks import KeyTasks


_PORTION = 20_000

store_argument = click.argument("store", metavar="STORE")
task_option = click.option("--task", metavar="TASK", help="Only this task, e.g. 0_3.")
times_options = options(
    click.option("--from", "first", type=int, default=0, help="Windows, sessions and versions from this time on (ms)."),
    click.option(
        "--to", "last", type=int, default=2**63 - 1, help="Windows, sessions and versions up to this time (ms)."
    ),
)
_format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    help="Of the file. [default: parquet for a name that ends so, else jsonl]",
)


@verb(
    ("To a file of JSON lines", "penstock state export shop:application totals --output totals.jsonl"),
    ("To Parquet", "penstock state export shop:application totals --output totals.parquet"),
    ("What was valid then", "penstock state export shop:application prices --from 1700000000000 --to 1700000000000"),
    ("To another program", "penstock state export shop:application totals | jq -r .key"),
)  # fmt: skip
@store_argument
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file, which appears when it is complete; else to stdout.",
)
@_format_option
@times_options
@task_option
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


def _json_lines(reading: StoreReading, file: Any) -> Any:
    """Write portions that are sent to it: columns, the task and the version."""
    from penstock.plugins.serdes.json_text import dump_lines

    while True:
        portion, task, version = yield
        file.write(dump_lines({"task": task, "version": version}, reading.text.columns(portion)))


def _parquet(reading: StoreReading, file: Any) -> Any:
    with needed("Parquet"):
        from pyarrow import parquet

    from penstock.plugins.state.copies.arrow_columns import ArrowColumns, is_json_text
    from penstock.plugins.state.copies.contents import reading_serdes

    arrow = ArrowColumns(reading.application, reading.store)
    serdes = _by_part(reading_serdes(reading.application, reading.store))
    texts = [name for name, serde in serdes.items() if is_json_text(serde)]
    schema = arrow.schema.with_metadata({_JSON_TEXT: json.dumps(texts)})
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while True:
            portion, task, version = yield
            writer.write_batch(arrow.batch(portion, task, version))


@contextmanager
def _written(output: Path | None, form: str) -> Iterator[Any]:
    """Return a file to write to. A regular, named file appears only when the block ends without an error."""
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


@contextmanager
def reading_store(
    application: Application, store: str, checkpoint: str | None, batch: int | None
) -> Iterator[StoreReading]:
    """Return a store to be read in the block: on the application's log, or as of a batch of a checkpoint."""
    check_batch(checkpoint, batch)
    if checkpoint is None:
        with open_application(application) as (application, log):
            yield _OnLog(application, log, store)
    else:
        yield _InCheckpoint(application, find_checkpoint(checkpoint, batch), store)


class StoreReading(ABC):
    """One store of an application. `count`: number of tasks of its sub-topology."""

    def __init__(self, application: Application, store: str, tasks: Collection[str], count: int) -> None:
        from penstock.plugins.state.copies.contents import StoreText, declared_store

        self.application = application
        self._number, self.store = declared_store(application, store)
        self.text = StoreText(application, self.store)
        """The text form of its entries."""
        self._tasks = tasks
        self._count = count

    def check_times(self, first: int, last: int) -> None:
        """Raise ConfigError for limits of time that the entries of the store do not have."""
        from penstock.plugins.state.copies.contents import KINDS_OF_TIMES, LATEST

        kind = getattr(self.store, "kind", "key_value")
        if (first, last) != (0, LATEST) and kind not in KINDS_OF_TIMES:
            raise ConfigError(
                f"--from, --to: store {self.store.name!r} is of the kind {kind!r}, whose entries have no times"
            )

    def tasks(self, task: str | None) -> list[str]:
        """Return all tasks with the store, or the requested one. Raises ConfigError for one without the store."""
        if task is not None and task not in self._tasks:
            raise ConfigError(f"--task {task}: store {self.store.name!r} is in the tasks {', '.join(self._tasks)}")
        return [task] if task is not None else list(self._tasks)

    def tasks_of(self, key: Any) -> list[str]:
        """Return the tasks that read records with a key. Raises ConfigError, with the options that help."""
        from penstock.plugins.state.copies.key_tasks import KeyTasks

        try:
            key_tasks = KeyTasks(self.application, self._number, self.store.name)
            return key_tasks.may_have(key, self._division(key_tasks))
        except ConfigError as error:
            raise ConfigError(f"{error}: name it with --task, or add --all-tasks") from error

    def _division(self, key_tasks: KeyTasks) -> int:
        """Return the number of tasks that share the keys of the store."""
        return self._count

    @abstractmethod
    def commits(self, tasks: Sequence[str]) -> Mapping[str, Any]:
        """Return the last commits of tasks, read one right after the other. Raises StoreError if one has none."""

    @abstractmethod
    def open(self, task: str, commit: Any = None) -> AbstractContextManager[tuple[Any, str]]:
        """Bring a copy of the store to one of `commits`, or the task's last one; return the store and its version."""


class _OnLog(StoreReading):
    """Reads replicas of the tasks, which stay under `state_dir`."""

    def __init__(self, application: Application, log: Log, store: str) -> None:
        from penstock.plugins.state.copies.contents import tasks_with

        self._log = log
        self._saved = tasks_with(application, log, store)
        super().__init__(application, store, self._saved, len(self._saved))

    def _division(self, key_tasks: KeyTasks) -> int:
        return key_tasks.count_of(self._saved)

    def commits(self, tasks: Sequence[str]) -> Mapping[str, Commit]:
        from penstock.plugins.state.copies.contents import last_commits

        return last_commits(self.application, self._log, [self._saved[task] for task in tasks])

    @contextmanager
    def open(self, task: str, commit: Commit | None = None) -> Iterator[tuple[Any, str]]:
        """Bring a replica there: to a later commit if the changelog does not lead to this one any more."""
        from penstock.plugins.engine.task.locations import Places
        from penstock.plugins.state.copies.contents import no_commit, open_store
        from penstock.plugins.state.copies.replica import Replica

        directory = Places.of(self.application).replica(self.store.name, task)
        with Replica(self.application, task, self._log, directory, stores=[self.store.name]) as replica:
            if commit is None or not replica.bring_to(commit):
                for _ in iter(lambda: replica.catch_up(), True):
                    note(f"task {task} commits faster than its records can be read; trying again")
            if replica.version is None:
                raise no_commit(self.application, task)
            with closing(open_store(self.application, replica, self.store)) as opened:
                yield opened, replica.version


class _InCheckpoint(StoreReading):
    """Restores the state of the tasks from the changelog, into temporary directories."""

    def __init__(self, application: Application, found: Checkpoint, store: str) -> None:
        self._place, self._query = found.place, found.query
        self._commits = found.commits_of(application, store)
        super().__init__(application, store, self._commits, found.partitions)

    def commits(self, tasks: Sequence[str]) -> Mapping[str, Any]:
        return {task: self._commits[task] for task in tasks}

    @contextmanager
    def open(self, task: str, commit: Any = None) -> Iterator[tuple[Any, str]]:
        from penstock.plugins.engine.task.temporary import TemporaryDirectory
        from penstock.plugins.spark.dataframe.checkpoint import open_at

        found = self._commits.get(task)
        if found is None:
            raise StoreError(f"task {task} has no commit in checkpoint {self._place}: it has had no row yet")
        with (
            TemporaryDirectory("state") as directory,
            open_at(self.application, self.store.name, task, self._query, found, directory / "task") as opened,
        ):
            yield opened, found.version


@verb(
    ("Before the first start", "penstock state import shop:application totals totals.parquet"),
    ("From another application", "penstock state export old:application totals --output totals.jsonl\npenstock state import shop:application totals totals.jsonl"),
    name="import",
)  # fmt: skip
@store_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@_format_option
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
    left = filled.rows - filled.expired - filled.replaced - filled.evicted
    expired = f"; {count(filled.expired, 'row')} had expired" if filled.expired else ""
    replaced = f"; {count(filled.replaced, 'row')} had the key of a later row, which counts" if filled.replaced else ""
    evicted = f"; {count(filled.evicted, 'row')} had no room beside later ones" if filled.evicted else ""
    note(f"{count(left, 'entry', 'entries')} of {store}{expired}{replaced}{evicted}")


@contextmanager
def _read_twice(file: Path) -> Iterator[Path]:
    """Return a file that can be read again from its beginning: the content of a pipe is copied first."""
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

    serdes = _by_part(reading_serdes(application, store))
    read = {name: serde.key_from_json if name == "key" else serde.from_json for name, serde in serdes.items()}
    with opened.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = _row_of(line)
                if headers := row.get("headers"):
                    row["headers"] = headers_from_json(headers)
                yield _made(row, read)
            except Exception as error:  # a serde of another package may raise anything
                raise ConfigError(
                    f"{file}, line {number}: {error if isinstance(error, SerdeError | ValueError) else repr(error)}"
                ) from error


def _row_of(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line. Raises ValueError."""
    from .text import shorten

    why = ""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        row, why = None, f" ({error.msg}, column {error.colno})" if line.strip() else ""
    if not isinstance(row, dict):
        raise ValueError(f'expected a JSON object with "key" and "value", found {shorten(line.strip())}{why}')
    return row


def _of_parquet(opened: Path, file: Path, application: Application, store: StoreBuilder) -> Iterator[Mapping[str, Any]]:
    with needed("Parquet"):
        from pyarrow import ArrowInvalid, parquet

    from penstock.plugins.state.copies.contents import reading_serdes

    serdes = _by_part(reading_serdes(application, store))
    number = 0
    try:
        with parquet.ParquetFile(opened) as rows:
            noted = (rows.schema_arrow.metadata or {}).get(_JSON_TEXT.encode())
            texts = None if noted is None else json.loads(noted)
            read = {
                name: _of_column(serde, name, None if texts is None else name in texts)
                for name, serde in serdes.items()
            }
            for batch in rows.iter_batches(_PORTION):
                for row in batch.to_pylist():
                    number += 1
                    if headers := row.get("headers"):
                        row["headers"] = [(header["name"], header["value"]) for header in headers]
                    yield _made(row, read)
    except (ArrowInvalid, ValueError, TypeError, SerdeError) as error:
        raise ConfigError(f"{file}, row {number}: {error}") from error


def _by_part(serdes: Mapping[str, Serde[Any]]) -> Mapping[str, Serde[Any]]:
    return {name.removesuffix("_serde"): serde for name, serde in serdes.items()}


def _made(row: Any, read: Readers) -> Mapping[str, Any]:
    return {**row, **{name: read[name](row[name]) for name in read if name in row}}


_JSON_TEXT = "penstock.json_text"
"""In the metadata of a file, which of `key` and `value` are JSON text, as a JSON list. Files of others have none."""


def _of_column(serde: Serde[Any], part: str, is_text: bool | None) -> Callable[[Any], Any]:
    """Return the function from a value of a column: of the serde's own type, or JSON text (`is_text`, if noted).

    It depends on the serde of the store that was exported: objects and lists of a type are either, by their fields.
    """
    from penstock.plugins.serdes.typed.base import TypedSerde
    from penstock.plugins.state.copies.arrow_columns import has_parts, is_json_text, without_absent

    from_json = serde.key_from_json if part == "key" else serde.from_json
    if is_text is None:
        is_text = is_json_text(serde) or has_parts(serde)
    if not isinstance(serde, TypedSerde):

        def own(value: Any) -> Any:
            return serde.deserialize(serde.serialize(value))
    else:
        schema = serde.json_schema()
        of_plain = serde.key_from_json if part == "key" else serde.of_plain

        def own(value: Any) -> Any:
            return of_plain(without_absent(value, schema))

    return lambda value: from_json(json.loads(value)) if is_text and isinstance(value, str) else own(value)
