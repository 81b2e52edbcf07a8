"""The state of a `transform`, read from outside: what a query's checkpoint has of each task, and a store of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import (
    Application,
    Commit,
    ConfigError,
    IncompatibleStateError,
    StateStore,
    StoreError,
    TaskId,
    World,
)
from penstock.plugins.applications.saved_tasks import SavedTask, written_forms
from penstock.plugins.replicas.contents import declared_store, store_over
from penstock.plugins.runtime.local_state.backends import Backends
from penstock.plugins.runtime.locations import open_deltas
from penstock.plugins.upgrade.coverage import Coverage
from penstock.program.layouts import Layouts, layout_of_fingerprint

from ..placement.group_keys import SPREAD, group_key
from .stream_commit import StreamCommit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPERATOR = "applyInPandasWithState"


def read_commits(
    spark: SparkSession, application: Application, checkpoint: str, batch: int | None
) -> tuple[str, dict[str, StreamCommit]]:
    """Return the id of the query of a checkpoint, and the commit of each task as of a batch (None: the last one).

    Read by Spark's `statestore` source. Raises StoreError for a checkpoint or a batch that cannot be read,
    IncompatibleStateError for one of another application, and ConfigError where no operator, or more than one, may be
    that of `transform`.
    """
    from pyspark.errors import PySparkException

    where = f"checkpoint {checkpoint}{'' if batch is None else f', batch {batch}'}"
    try:
        operator = _operator(spark, where, checkpoint)
        reader = spark.read.format("statestore").option("operatorId", operator)
        if batch is not None:
            reader = reader.option("batchId", batch)
        rows = _states(reader.load(checkpoint), where).collect()
        (metadata,) = spark.read.text(f"{checkpoint}/metadata").collect()
    except PySparkException as error:
        raise StoreError(
            f"{where}: Spark cannot read its state: {str(error).splitlines()[0]}. Without `batch` the last one is "
            "read; older ones are kept for spark.sql.streaming.minBatchesToRetain batches"
        ) from error
    commits: dict[str, StreamCommit] = {}
    tasks: dict[int, TaskId] = {}
    for row in rows:
        commit = StreamCommit.from_state((row.version, row.commit))
        if commit.application not in ("", application.id):
            raise IncompatibleStateError(
                f"{where}: it was made with the application id {commit.application!r}, which its state is kept by, and "
                f"not with {application.id!r}: give the application that `transform` was given"
            )
        tasks = tasks or _by_group(application, max(commit.fingerprint["partitions"].values()))
        if (task := tasks.get(row.group)) is None:
            raise IncompatibleStateError(
                f"{where}: it is not of this program (group {row.group} is none of its tasks): give the application "
                "that `transform` was given"
            )
        commits[str(task)] = commit
    return json.loads(metadata.value)["id"], commits


def _by_group(application: Application, partitions: int) -> dict[int, TaskId]:
    """Return the tasks of a program by their group keys, where all its topics have so many partitions."""
    found = application.program.resolve(dict.fromkeys(application.program.topics(), partitions), application.id)
    return {group_key(each, SPREAD): each for each in found.tasks}


def _operator(spark: SparkSession, where: str, checkpoint: str) -> int:
    rows = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName").collect()
    found = [row.operatorId for row in rows if row.operatorName == _OPERATOR]
    if len(found) != 1:
        names = ", ".join(f"{row.operatorId} ({row.operatorName})" for row in rows) or "none"
        raise ConfigError(f"{where}: expected one operator of `transform` ({_OPERATOR}); its operators: {names}")
    operator: int = found[0]
    return operator


def _states(frame: DataFrame, where: str) -> DataFrame:
    if "groupState" not in frame.select("value.*").columns or "group" not in frame.select("key.*").columns:
        raise ConfigError(f"{where}: its state is not that of `transform`, but of another applyInPandasWithState")
    return frame.select("key.group", "value.groupState.version", "value.groupState.commit")


@contextmanager
def open_at(
    application: Application, store: str, task: str, query: str, commit: StreamCommit, directory: Path
) -> Iterator[StateStore]:
    """Open a store of a task as it was at a commit of a query, restored from the changelog into `directory`.

    Raises ChangelogError if the changelog does not lead there any more.
    """
    number, builder = declared_store(application, store)
    saved = commit.fingerprint["subtopologies"][str(number)]["stores"]
    if store not in saved:
        raise ConfigError(f"store {store!r} is none that task {task} had; it had: {', '.join(saved) or 'none'}")
    layouts = Layouts(layout_of_fingerprint(saved))
    world = World()
    changelog = open_deltas(application.settings, application.id, f"{task}.{query}", world)
    changelog.beside_writer = True
    where = f"application {application.id!r}, task {task} of query {query}"
    backends = Backends(directory, layouts, changelog, where, task, world)
    with closing(backends):
        backends.open_as_found(Coverage(layouts, ""))
        backends.bring_to(commit.version, Coverage(layouts, commit.version))
        at = Commit({}, commit.version, commit.engine_state.encode())
        kept, backend = layouts.now[store], backends.of(store)
        saved_task = SavedTask(task, (), layouts, "", None, forms=written_forms(saved))
        with closing(store_over(application, saved_task, builder, kept, backend, at)) as opened:
            yield opened
