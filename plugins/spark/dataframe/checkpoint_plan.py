"""Plan for a checkpoint: what a start of a program of `transform` on it would do, by the checks of the start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock import (
    Application,
    Assignment,
    ConfigError,
    IncompatibleStateError,
    TaskId,
    TopologyError,
    check_compatible,
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
from penstock.program.layouts import layout_of_fingerprint
from penstock.task.saved_schedules import left_schedules

from .checkpoint_state import Checkpoint, changes_of_history, check_continues, stores_in
from .checks import check_application, check_count
from .stream_commit import SourceOrder, StreamCommit

_Programs = Sequence[tuple[int, Mapping[str, Any]]]
"""The fingerprints of the programs that wrote the commits, each with the number of a sub-topology whose tasks did."""


def plan_of_checkpoint(application: Application, found: Checkpoint, partitions: int | None = None) -> Plan:
    """Return what a start of `transform` with an application would do on a checkpoint; nothing is changed.

    `partitions`: the number that `transform` gets (None: that of the checkpoint). What is left to the start: the
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
    """Return what the start must say of the order of DataFrames; None where nothing. Raises IncompatibleStateError."""
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
