"""read_state: the content of a store as a DataFrame, read in parallel, each task at one committed version."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import Application, Commit, ConfigError, StateStore, StoreError
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.plugins.state.copies.arrow_columns import ArrowColumns
from penstock.plugins.state.copies.contents import LATEST, columns, declared_store, last_commits, open_store, tasks_with
from penstock.plugins.state.copies.replica import Replica
from penstock.support.packages import needed

from .dataframe.checkpoint import StreamCommit, open_at, read_checkpoint
from .dataframe.packing import message_first
from .sessions import SPARK

with needed(SPARK):
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema

if TYPE_CHECKING:
    import pyarrow

_PORTION = 20_000


def read_state(
    spark: SparkSession,
    application: Application,
    store: str,
    *,
    first: int = 0,
    last: int = LATEST,
    tasks: Sequence[str] | None = None,
    checkpoint: str | Path | None = None,
    batch: int | None = None,
) -> DataFrame:
    """Return a DataFrame with the entries of a store of `application`, which may run meanwhile.

    Columns: `task`, `version`, `key`; `start` and `end` of windows and sessions, `timestamp` and `valid_to` of versions
    (-1: the latest); `value`, and `timestamp` and `headers` where values have them. Timers have `clock` and `at`. Times
    are ms, as long. Keys and values have the types of the serdes `str`, `int`, `int32`, `int16`, `float`, `float32`,
    `bool`, `bytes` and `uuid` (text); those of `of` with the fields of a class are structs, others JSON text.

    `first`, `last`: the time (ms) in which windows start, sessions overlap, or versions are valid; the same time twice
    shows what was valid then. `tasks`: only these, e.g. "0_3". The program is the one that ran last.

    `checkpoint`: that of a query of `transform`; its tasks are read as of the end of `batch` (None: the last one),
    without a log, and also while the query runs.

    The last commits of all tasks are looked at now. Each time the DataFrame is evaluated, Spark's executors restore the
    store of each task from the changelog into a temporary directory, at that commit: cache the DataFrame to do so once.
    An evaluation raises StoreError once the changelog does not lead there any more; a task whose changelog is in topics
    must not have committed meanwhile.

    Raises ConfigError for a store or a task that there is not, or a log that executors cannot open, StoreError where a
    task has no commit, or Spark cannot read the checkpoint, and IncompatibleStateError for a checkpoint of another
    application.
    Semantics: Spark's own state data source (`spark.read.format("statestore")`).
    """
    _, builder = declared_store(application, store)
    place: _Log | _Checkpoint
    if checkpoint is not None:
        found = read_checkpoint(spark, str(checkpoint), batch)
        commits = found.commits_of(application, store)
        place = _Checkpoint(found.query, [(task, commits[task]) for task in _chosen(store, commits, tasks)])
    elif batch is not None:
        raise ConfigError("read_state: `batch` is one of a query of `transform`: give its checkpoint, too")
    else:
        application, place = _in_the_log(application, store, tasks)
    directory = str(Path(application.settings.data_dir).expanduser().absolute())
    cargo = pack((application.with_settings(data_dir=directory), store, place))
    schema = from_arrow_schema(_plain_schema(ArrowColumns(application, builder).schema))
    numbers = spark.range(0, len(place.tasks), 1, len(place.tasks))
    return numbers.mapInArrow(_Reader(cargo, first, last), schema)


def _in_the_log(application: Application, store: str, tasks: Sequence[str] | None) -> tuple[Application, _Log]:
    if application.settings.log.startswith("memory"):
        raise ConfigError("read_state: executors cannot read a log in the memory of this process: use local: or kafka:")
    with closing(open_log(application.settings)) as log:
        stored = stored_application(application, log)
        saved = tasks_with(stored, log, store)
        commits = last_commits(stored, log, [saved[task] for task in _chosen(store, saved, tasks)])
    return stored, _Log([*commits.items()])


def _chosen(store: str, known: Collection[str], tasks: Sequence[str] | None) -> list[str]:
    if wrong := sorted({*(tasks or ())} - set(known)):
        raise ConfigError(f"read_state: store {store!r} is in the tasks {', '.join(known)}, not {', '.join(wrong)}")
    return list(known if tasks is None else tasks)


@dataclass(frozen=True)
class _Log:
    """Tasks whose commits are in the log."""

    tasks: Sequence[tuple[str, Commit]]

    @contextmanager
    def open(self, application: Application, store: str, number: int, directory: Path) -> Iterator[StateStore]:
        task, commit = self.tasks[number]
        _, builder = declared_store(application, store)
        with (
            closing(open_log(application.settings)) as log,
            Replica(application, task, log, directory, stores=[store]) as replica,
        ):
            if not replica.bring_to(commit):
                raise StoreError(
                    f"store {store!r} of application {application.id!r}: task {task} has committed since `read_state`, "
                    f"and the changelog does not lead to version {commit.version} any more: call it again"
                )
            with closing(open_store(application, replica, builder)) as opened:
                yield opened


@dataclass(frozen=True)
class _Checkpoint:
    """Tasks whose commits are in the checkpoint of a query."""

    query: str
    tasks: Sequence[tuple[str, StreamCommit]]

    def open(
        self, application: Application, store: str, number: int, directory: Path
    ) -> AbstractContextManager[StateStore]:
        task, commit = self.tasks[number]
        return open_at(application, store, task, self.query, commit, directory)


@dataclass(frozen=True)
class _Reader:
    """The function for mapInArrow: numbers of tasks in, their entries out."""

    cargo: bytes
    first: int
    last: int

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        with message_first():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._entries(number)

    def _entries(self, number: int) -> Iterator[pyarrow.RecordBatch]:
        found: tuple[Application, str, _Log | _Checkpoint] = pickle.loads(self.cargo)
        application, store, place = found
        task, commit = place.tasks[number]
        _, builder = declared_store(application, store)
        arrow = ArrowColumns(application, builder)
        with (
            TemporaryDirectory("read-state") as directory,
            place.open(application, store, number, directory / "task") as opened,
        ):
            for portion in columns(opened, _PORTION, self.first, self.last):
                yield _plain(arrow.batch(portion, task, commit.version))


def _plain_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return a schema without dictionaries, which Spark does not have."""
    import pyarrow

    text = pyarrow.string()
    types = [text if pyarrow.types.is_dictionary(field.type) else field.type for field in schema]
    return pyarrow.schema(list(zip(schema.names, types, strict=True)))


def _plain(batch: pyarrow.RecordBatch) -> Any:
    import pyarrow

    arrays = [
        column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column for column in batch.columns
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=_plain_schema(batch.schema))
