"""Spark's checkpoint as the commit point of a task: SparkCommitter, and StreamCommit, which it keeps of a task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import (
    Application,
    Assignment,
    Commit,
    ConfigError,
    IncompatibleStateError,
    OutputBatch,
    StateStore,
    StoreError,
    TaskCommitter,
    TaskId,
    TopologyError,
    World,
    check_compatible,
    version_counter,
)
from penstock.plugins.engine.program.plan import (
    BEGINS,
    CONTINUES,
    KEPT,
    NEW,
    UNUSED,
    Plan,
    PlannedStore,
    PlannedTopic,
    changes_of_store,
)
from penstock.plugins.engine.program.saved_program import SavedTask, written_forms
from penstock.plugins.engine.task.local_state.backends import Backends, Coverage
from penstock.plugins.engine.task.locations import open_deltas
from penstock.plugins.state.copies.contents import declared_store, store_over
from penstock.program.compatibility import saved_serdes
from penstock.program.layouts import Layouts, layout_of_fingerprint
from penstock.task.saved_schedules import left_schedules

from ..group_keys import SPREAD, group_key
from .records import check_application, check_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


STATE_SCHEMA = "version string, commit string"
_FORMAT = 2
_FORMATS = (1, 2)


@dataclass(frozen=True)
class StreamCommit:
    """A task after a batch, as the group's state in Spark's checkpoint.

    `attempt` is new for every attempt at a batch: an open task compares it to see whether its own attempt was
    committed. `read`: number of records processed so far, by topic. `anchors`: earlier versions, about as far apart as
    Spark keeps batches (see `oldest_needed`). `source_order`: see `SourceOrder`. `application`: the id with
    which the state was made. Commits of format 1 have neither.
    """

    attempt: str
    version: str
    engine_state: str = ""
    read: Mapping[str, int] = field(default_factory=dict)
    anchors: tuple[str, ...] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    source_order: tuple[str, ...] = ()
    application: str = ""

    def to_state(self) -> tuple[str, str]:
        """Return the row of `STATE_SCHEMA`; everything that a release of ours may change is in the JSON."""
        return self.version, json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_state(cls, state: tuple[str, str]) -> StreamCommit:
        """Return the commit that `to_state` made."""
        data = json.loads(state[1])
        if data.pop("format") not in _FORMATS:
            raise IncompatibleStateError(
                "Spark's checkpoint was written by another release of penstock, in a form that this one does not know: "
                "run that release, or start with a new checkpoint"
            )
        order = tuple(data.get("source_order", ()))
        return cls(**{**data, "anchors": tuple(data["anchors"]), "source_order": order})


@dataclass(frozen=True)
class SourceOrder:
    """The order of the DataFrames in Spark's plan, by topic; empty if there is only one.

    Spark's checkpoint has the offsets of sources by their places in the plan, without names. `is_given`: the user
    named the order, which then also counts for a commit without one.
    """

    topics: tuple[str, ...] = ()
    is_given: bool = False

    def problem(self, saved: tuple[str, ...]) -> str | None:
        """Return why a query cannot continue from a commit with the order `saved`, and what to do; None if it can."""
        if self.topics == saved or (self.is_given and not saved):
            return None
        now = ", ".join(map(repr, self.topics)) or "one source"
        if saved:
            before, order = f"in the order {', '.join(map(repr, saved))}", f"{list(saved)}"
        else:
            before = "in the order of the mapping that transform got, which that release of penstock did not save"
            order = "[...] with that order"
        return (
            f"Spark's checkpoint has the offsets of the DataFrames {before}. They are now in the order {now}, so each "
            f"would get the offsets of another: pass transform(..., source_order={order})"
        )


class SparkCommitter(TaskCommitter):
    """Spark's checkpoint as a commit point. There is no fence: the versions of store and changelog stand in for it.

    `commit` changes nothing yet: outputs and commit are the batch's rows and the group's state, and Spark makes both
    visible in one step. The task learns of that when the next batch begins with this commit.
    """

    def __init__(self, known: Commit | None) -> None:
        self._known = known

    @property
    def committed(self) -> Commit | None:
        """The commit that Spark has."""
        return self._known

    def is_current(self) -> bool:
        """Return True: Spark decides at the next batch which commit counts."""
        return True

    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        """Do nothing: Spark takes both when the batch ends."""

    def expires(self) -> bool:
        """Return whether Spark has no commit of the task, which every batch then offers."""
        return self._known is None

    def note(self, commit: Commit) -> None:
        """Record that Spark has a commit."""
        self._known = commit

    def close(self) -> None:
        """Do nothing: nothing is open."""


def next_anchors(anchors: tuple[str, ...], version: str, kept: int) -> tuple[str, ...]:
    """Return the anchors of a commit at `version`: at most three; the first is dropped once the second is old enough.

    A batch makes at most one version. So the states of the last `kept` batches, which Spark may roll back to, are among
    the last `kept` versions.
    """
    newest = version_counter(version)
    if not anchors or newest - version_counter(anchors[-1]) >= kept:
        anchors = (*anchors, version)
    while len(anchors) > 1 and newest - version_counter(anchors[1]) >= kept:
        anchors = anchors[1:]
    return anchors


def oldest_needed(anchors: tuple[str, ...], version: str, kept: int) -> str | None:
    """Return a version that is not newer than any that Spark may roll back to; None if there is none yet."""
    old_enough = anchors and version_counter(version) - version_counter(anchors[0]) >= kept
    return anchors[0] if old_enough else None


Stores = Mapping[str, Mapping[str, Any]]
"""The stores of a sub-topology in a fingerprint."""


def stores_in(fingerprint: Mapping[str, Any], subtopology: int) -> Stores:
    """Return the stores of a sub-topology; none where the program does not have it."""
    result: Stores = fingerprint["subtopologies"].get(str(subtopology), {}).get("stores", {})
    return result


def check_continues(
    application: Application, task: TaskId, query: str, known: StreamCommit, fingerprint: Mapping[str, Any]
) -> None:
    """Check that a task can continue from a commit of a query. `fingerprint`: that of the application's program.

    Raises IncompatibleStateError for another application id, or a program that does not fit the saved state.
    """
    where = f"application {application.id!r}, task {task}"
    if known.application not in ("", application.id):
        raise IncompatibleStateError(
            f"{where}: the checkpoint of Spark's query {query} was made with the application id "
            f"{known.application!r}, which its state is kept by: use that id, or start with a new checkpoint"
        )
    before = known.fingerprint
    if before == fingerprint:
        return
    reasons = [
        *check_compatible(before, fingerprint, serdes=saved_serdes(application.program, application.settings)),
        *changes_of_history(stores_in(before, task.subtopology), stores_in(fingerprint, task.subtopology)),
    ]
    if reasons:
        raise IncompatibleStateError(
            f"{where}: it does not fit what Spark's checkpoint has of it: {'; '.join(reasons)}. Undo the change (the "
            "number of tasks is what transform(..., partitions=...) says), or start with a new checkpoint"
        )


def changes_of_history(was: Stores, now: Stores) -> Iterator[str]:
    """Yield a reason for each change of a store that would need a separate commit of the task."""
    for name, new in now.items():
        old = was.get(name)
        if old is None:
            continue
        if old["logged"] != new["logged"]:
            yield (
                f"store {name!r} was {'' if old['logged'] else 'not '}in the changelog (logged) and now "
                f"is{' not' if old['logged'] else ''}"
            )
        if not new["logged"] and old["backend"] != new["backend"]:
            yield (
                f"store {name!r}, which is not logged, was on the backend {old['backend']!r} and now is on "
                f"{new['backend']!r}"
            )
        if _expires(old) and not _expires(new):
            yield (
                f"store {name!r} had a TTL and now has none, which would bring back what has expired: give it "
                "expires=True, with which new entries stay"
            )


def _expires(store: Mapping[str, Any]) -> bool:
    """Return whether entries of a store in a fingerprint may carry an expiry."""
    return store.get("ttl_ms") is not None or bool(store.get("expires"))


_OPERATOR = "applyInPandasWithState"


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint of a `transform` query at the end of a batch.

    `place`: its location. `query`: the id of the query. `batch`: the number of the batch. `commits`: the last commit of
    each task that has processed a row.
    """

    place: str
    query: str
    batch: int
    commits: Mapping[TaskId, StreamCommit]

    @property
    def partitions(self) -> int:
        """The number that `transform` was given; 1 without a commit."""
        counts = [max(commit.fingerprint["partitions"].values()) for commit in self.commits.values()]
        return max(counts, default=1)

    def check_application(self, application: Application) -> None:
        """Raise IncompatibleStateError if it was made with another application id, under which its state is."""
        for commit in self.commits.values():
            if commit.application not in ("", application.id):
                raise IncompatibleStateError(
                    f"checkpoint {self.place}, batch {self.batch}: it was made with the application id "
                    f"{commit.application!r}, which its state is kept by, and not with {application.id!r}: give the "
                    "application that `transform` was given"
                )

    def commits_of(self, application: Application, store: str) -> dict[str, StreamCommit]:
        """Return the commits of the tasks that have a store.

        Raises as `declared_store`, IncompatibleStateError as `check_application`, and StoreError if there is none.
        """
        number, _ = declared_store(application, store)
        self.check_application(application)
        found = {str(task): commit for task, commit in self.commits.items() if task.subtopology == number}
        if not found:
            raise StoreError(
                f"checkpoint {self.place}: no task of store {store!r} has a commit in it ({number}_0, ...; it has "
                f"{', '.join(map(str, self.commits)) or 'none'}): none has had a row yet, or this is not the program "
                "of the query"
            )
        return found

    def saved_task(self, task: TaskId) -> SavedTask:
        """Return a task as its local state is named and kept: each query has its own."""
        stores = stores_in(self.commits[task].fingerprint, task.subtopology)
        layouts = Layouts(layout_of_fingerprint(stores))
        return SavedTask(f"{task}.{self.query}", (), layouts, "", None, forms=written_forms(stores))


def read_checkpoint(spark: SparkSession, place: str, batch: int | None) -> Checkpoint:
    """Return what a checkpoint has as of a batch (None: the last one), read by Spark's `statestore` source.

    Raises StoreError for a checkpoint or a batch that cannot be read, IncompatibleStateError for one of another
    release, and ConfigError where no operator, or more than one, may be that of `transform`.
    """
    from pyspark.errors import PySparkException

    where = f"checkpoint {place}{'' if batch is None else f', batch {batch}'}"
    try:
        operator, last = _operator(spark, where, place)
        number = last if batch is None else batch  # named, because the query may run meanwhile
        reader = _session(spark, place, number).read.format("statestore")
        rows = _states(reader.option("operatorId", operator).option("batchId", number).load(place), where).collect()
        (metadata,) = spark.read.text(f"{place}/metadata").collect()
    except PySparkException as error:
        raise StoreError(
            f"{where}: Spark cannot read its state: {str(error).splitlines()[0]}. Without `batch` the last one is "
            "read; older ones are kept for spark.sql.streaming.minBatchesToRetain batches"
        ) from error
    tasks: dict[int, TaskId] = {}
    commits: dict[TaskId, StreamCommit] = {}
    for row in rows:
        commit = StreamCommit.from_state((row.version, row.commit))
        if row.group not in tasks:
            tasks.update(_by_group(commit.fingerprint))
        commits[tasks[row.group]] = commit
    return Checkpoint(place, json.loads(metadata.value)["id"], number, dict(sorted(commits.items())))


def _session(spark: SparkSession, place: str, batch: int) -> SparkSession:
    """Return a copy of a session that reads the state of a batch in the format of its checkpoint.

    Spark takes the formats from the checkpoint, whatever the session has, but for this one.
    """
    from pyspark.sql import SparkSession

    copy = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    version = copy.read.text(f"{place}/commits/{batch}").head()
    if version is not None:
        copy.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", version.value.removeprefix("v"))
    return copy


def _by_group(fingerprint: Mapping[str, Any]) -> dict[int, TaskId]:
    """Return the tasks of a program by their group keys; all its topics have equally many partitions."""
    partitions = max(fingerprint["partitions"].values())
    tasks = [TaskId(int(number), each) for number in fingerprint["subtopologies"] for each in range(partitions)]
    return {group_key(task, SPREAD): task for task in tasks}


def _operator(spark: SparkSession, where: str, checkpoint: str) -> tuple[int, int]:
    """Return the number of the operator of `transform`, and that of the last batch."""
    columns = ("operatorId", "operatorName", "maxBatchId")
    rows = spark.read.format("state-metadata").load(checkpoint).select(*columns).collect()
    found = [(row.operatorId, row.maxBatchId) for row in rows if row.operatorName == _OPERATOR]
    if len(found) != 1:
        names = ", ".join(f"{row.operatorId} ({row.operatorName})" for row in rows) or "none"
        raise ConfigError(f"{where}: expected one operator of `transform` ({_OPERATOR}); its operators: {names}")
    operator: tuple[int, int] = found[0]
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
    saved = stores_in(commit.fingerprint, number)
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


_Programs = Sequence[tuple[int, Mapping[str, Any]]]
"""The fingerprints of the programs that wrote the commits, each with the number of a sub-topology whose tasks did."""


def plan_of_checkpoint(application: Application, found: Checkpoint, partitions: int | None = None) -> Plan:
    """Return the plan of a start of `transform` with an application on a checkpoint; nothing is changed.

    `partitions`: the number that `transform` gets (None: that of the checkpoint). Checked by the start only: the
    DataFrames, `wall_clock`, and whether the changelog leads to the versions in the checkpoint.
    """
    commits = found.commits
    try:
        check_application(application)
        number = found.partitions if partitions is None else partitions
        check_count(number)
        topics = sorted(application.program.topics())
        assignment = application.program.resolve(dict.fromkeys(topics, number), application.id)
        now = application.program.fingerprint(assignment, application.settings)
        for task, commit in commits.items():
            check_continues(application, task, found.query, commit, now)
        order = _order(topics, next(iter(commits.values()), None))
    except (ConfigError, IncompatibleStateError, TopologyError) as error:
        return Plan(application.id, refusal=str(error))
    before: list[tuple[int, Mapping[str, Any]]] = []  # several, where some have had no row since
    for task, commit in commits.items():
        if (task.subtopology, commit.fingerprint) not in before:
            before.append((task.subtopology, commit.fingerprint))
    return Plan(
        application.id,
        is_first=not commits,
        tasks=len(assignment.tasks),
        stores=tuple(_stores(before, now)),
        inputs=tuple(_inputs(assignment, number, commits)),
        left_schedules=tuple(sorted(_left_schedules(application, assignment, commits))),
        rollback=tuple(dict.fromkeys(_rollback(before, now))),
        left_to_the_start=() if order is None else (order,),
    )


def _order(topics: list[str], commit: StreamCommit | None) -> str | None:
    """Return the `order` that the start must pass; None if any will do. Raises IncompatibleStateError."""
    if commit is None:
        return None
    problem = SourceOrder(tuple(topics) if len(topics) > 1 else ()).problem(commit.source_order)
    if problem is not None and commit.source_order and sorted(commit.source_order) != topics:
        raise IncompatibleStateError(f"it reads other topics than the query did: {problem}")
    return problem


def _stores(before: _Programs, now: Mapping[str, Any]) -> Iterator[PlannedStore]:
    for number in map(int, now["subtopologies"]):
        was = {
            name: kept
            for each, fingerprint in before
            for name, kept in layout_of_fingerprint(stores_in(fingerprint, number)).items()
            if each == number
        }
        for name, kept in sorted(layout_of_fingerprint(stores_in(now, number)).items()):
            earlier = was.get(name)
            if earlier is None:
                yield PlannedStore(name, number, NEW)
            else:
                yield PlannedStore(name, number, KEPT, tuple(changes_of_store(earlier, kept)))


def _inputs(assignment: Assignment, number: int, commits: Mapping[TaskId, StreamCommit]) -> Iterator[PlannedTopic]:
    """Yield the topics; Spark's sources have the offsets of their DataFrames."""
    were = {topic for commit in commits.values() for topic in commit.fingerprint["partitions"]}
    now = set(assignment.partitions())
    for topic in sorted(now | were):
        yield PlannedTopic(topic, number, UNUSED if topic not in now else CONTINUES if topic in were else BEGINS)


def _left_schedules(
    application: Application, assignment: Assignment, commits: Mapping[TaskId, StreamCommit]
) -> set[str]:
    found = set[str]()
    for task, commit in commits.items():
        if task in assignment.tasks and commit.engine_state:
            part = application.program.subtopology(task.subtopology)
            found |= left_schedules(commit.engine_state.encode(), part)
    return found


def _rollback(before: _Programs, now: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the program of the checkpoint could not come back after this one."""
    for number, was in before:
        yield from check_compatible(now, was)
        yield from changes_of_history(stores_in(now, number), stores_in(was, number))
