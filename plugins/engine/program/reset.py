"""Resetting an application: new positions, and no state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from penstock import Application, Assignment, ConfigError, Log, SystemClock, TopicPartition, World
from penstock.plugins.engine.task.epoch import begin_epoch
from penstock.plugins.engine.task.local_state.directories import remove_all
from penstock.plugins.engine.task.locations import Places, open_deltas
from penstock.plugins.engine.task.own_topics import topics_beside
from penstock.program.nodes import decorate
from penstock.support.names import changelog_topic, did_you_mean

from .check import waiting_records
from .checkpoint_files import delete_checkpoint, shown_checkpoint
from .cluster import forget_cluster
from .lag import start_positions
from .preparation import circular_topics
from .saved_program import saved_fingerprint

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class PositionMove:
    """The position of an application in a partition, before (`now`) and after (`then`).

    `then` None: no position; `offset_reset` decides. `asked`: the offset that was asked for, if the partition does not
    have it; `then` is the nearest one. `is_passed_over`: it goes to the end that the partition has when it is reset.
    """

    topic: str
    partition: int
    now: int | None
    then: int | None
    asked: int | None = None
    is_passed_over: bool = False


@dataclass(frozen=True)
class ResetPlan:
    """A plan of a reset.

    `passed_over`: intermediate topics, which the application writes and reads: it continues at their ends, because it
    writes what they have again. `circular`: inputs that may have results of the application, which it writes again.
    `topics`: internal topics to delete, each with the number of records that wait there and are dropped. `left_alone`:
    internal topics that may be another application's, whose id begins with this one's. `tasks`: the tasks with a
    changelog.
    """

    moves: tuple[PositionMove, ...]
    passed_over: frozenset[str]
    circular: tuple[str, ...]
    topics: Mapping[str, int]
    left_alone: tuple[str, ...]
    stores: tuple[str, ...]
    tasks: tuple[str, ...]
    changelog: str
    state: Path
    checkpoint: str | None


@dataclass(frozen=True)
class Known:
    """The choice of a `Destination`: partitions of source topics with their positions, starts and ends.

    A partition without a position has the one it would start from. `ends` also has partitions that move only if they
    are named. `none_such`: the error for other partitions; the known ones follow it.
    """

    log: Log
    positions: Offsets
    starts: Offsets
    ends: Offsets
    none_such: str = "the application reads no such partition; it reads"


Destination = Callable[[Known], Offsets]
"""Returns an offset for each partition that moves; the others stay."""


def to_earliest(known: Known) -> Offsets:
    """Go to the first offset that can still be read."""
    return known.starts


def to_latest(known: Known) -> Offsets:
    """Go to the end."""
    return {position: known.ends[position] for position in known.positions}


def to_time(timestamp_ms: int) -> Destination:
    """Go to the first record at or after a time."""
    return lambda known: known.log.offsets_for_time(list(known.positions), timestamp_ms)


def shift_by(number: int) -> Destination:
    """Go so many offsets forward, or back if it is negative."""
    return lambda known: {each: position + number for each, position in known.positions.items()}


def to_offsets(offsets: Offsets) -> Destination:
    """Go to given offsets. Raises ConfigError for a partition that the application does not read."""

    def choose(known: Known) -> Offsets:
        for offset in offsets:
            if offset not in known.ends:
                raise ConfigError(
                    f"{offset.topic}:{offset.partition}={offsets[offset]}: {known.none_such}: "
                    f"{', '.join(f'{topic}:{partition}' for topic, partition in known.ends)}"
                )
        return offsets

    return choose


def plan_reset(
    application: Application, log: Log, destination: Destination, topics: Sequence[str] | None = None
) -> ResetPlan:
    """Return the plan of a reset; changes nothing. With `topics`, positions in other topics stay.

    An intermediate topic that is not named is passed over to its end. Raises ConfigError for topics that the
    application does not read, TopologyError when one of its topics is missing.
    """
    infos = log.topics()
    # Without the internal topics: a reset must be possible where those do not fit the program any more.
    mine = {
        decorate(application.id, name, application.program.internal_topics)
        for name in application.program.internal_topics
    }
    counts = {name: info.partitions for name, info in infos.items() if not info.internal and name not in mine}
    assignment = application.program.resolve(counts, application.id)
    settings = application.settings
    saved = saved_fingerprint(application.id, log) or {}
    before = saved.get("subtopologies", {})
    stores = {*application.program.stores, *(store for each in before.values() for store in each.get("stores", ()))}
    changelogs = {changelog_topic(application.id, store) for store in stores}
    internal = _internal_topics(application.id, assignment, saved.get("internal_topics", ())) | changelogs
    own = [name for name in sorted(internal) if name in infos and (infos[name].internal or name in mine)]
    tasks = {str(task) for task in assignment.tasks if application.program.subtopology(task.subtopology).stores}
    for number, each in before.items():
        if each.get("stores"):
            tasks |= {f"{number}_{partition}" for partition in range(each.get("tasks") or 0)}
    intermediate = application.program.intermediate_topics(assignment.partitions(), settings.intermediate_topics)
    between = intermediate - {*(topics or ())}
    moves = tuple(_moves(application, assignment, log, destination, topics, between))
    return ResetPlan(
        moves,
        frozenset(each.topic for each in moves if each.is_passed_over),
        tuple(each for each in circular_topics(application, assignment) if each not in (topics or ())),
        {
            name: 0
            if name in changelogs or name in topics_beside(application.id)
            else waiting_records(application.id, name, infos[name].partitions, log)
            for name in own
        },
        tuple(
            name
            for name, info in sorted(infos.items())
            if info.internal and name.startswith(f"{application.id}-") and name not in internal
        ),
        tuple(sorted(stores)),
        tuple(sorted(tasks)),
        settings.shown("changelog"),
        Places.of(application).root,
        shown_checkpoint(settings, application.id),
    )


def reset(
    application: Application,
    log: Log,
    plan: ResetPlan,
    check_lease: Callable[[], None],
    world: World | None = None,
) -> list[str]:
    """Carry a plan out; return remarks about what could not be deleted. The caller holds the application's lease.

    `check_lease` raises when the lease was lost. It is called before each step: a process that was frozen must not
    delete its successor's data. `world`: the changelogs' files; None: the machine's.

    The log's `set_positions` is the reset, in one step. Killed before it, the application continues from its old
    positions; killed after it, it starts at the new ones, without state. Everything else may be half done:

    - Spark's checkpoint is deleted before it: later, the checkpoint would have commits that the log does not have, and
      a run would be refused. It has nothing that is not in the log.
    - State is deleted after it, since the old commits name its versions. New versions have other names, so what is left
      of the old state is never used. The changelog goes first, while all partitions have positions: a task that has a
      changelog and no positions counts as one whose commit was lost.
    - Internal topics are deleted after it, since they have records that are not processed yet. In the same step their
      positions move to their ends, so that a topic that is left is not read.
    """
    remarks = []
    check_lease()
    begin_epoch(application.id, log)
    remark = delete_checkpoint(application.settings, application.id)
    if remark is not None:
        remarks.append(remark)
    moves = {TopicPartition(each.topic, each.partition): each for each in plan.moves}
    passed = [each for each, move in moves.items() if move.is_passed_over]
    positions = {each: move.then for each, move in moves.items() if move.then is not None and each not in passed}
    infos = log.topics()
    own = [TopicPartition(name, number) for name in plan.topics for number in range(infos[name].partitions)]
    check_lease()
    log.set_positions(application.id, positions, [*own, *passed])
    positions |= {each: at for each, at in log.committed(application.id, passed).items() if at is not None}
    # The history in a log goes with its topics.
    for task in plan.tasks if application.settings.log_changelog is None else ():
        with closing(open_deltas(application.settings, application.id, task, world)) as changelog:
            check_lease()
            changelog.destroy()
    if own:
        for name in plan.topics:
            check_lease()
            log.delete_topic(name)
        # A log may keep positions of a deleted topic, and a task would start there when it is made again.
        check_lease()
        log.set_positions(application.id, positions)
    check_lease()
    forget_cluster(application, log)
    _, used = remove_all(plan.state)
    if used:
        remarks.append(
            f"local state of {', '.join(used)} in {plan.state} is in use by another process and stays; the next run "
            "does not take it"
        )
    return remarks


def _moves(
    application: Application,
    assignment: Assignment,
    log: Log,
    destination: Destination,
    topics: Sequence[str] | None,
    between: Collection[str],
) -> Iterable[PositionMove]:
    partitions = [each for read in assignment.tasks.values() for each in read if each.topic not in assignment.internal]
    named = partitions if topics is None else _of_topics(application, partitions, topics)
    moving = [each for each in named if each.topic not in between]
    committed = log.committed(application.id, partitions)
    starts, ends = log.start_offsets(partitions), log.end_offsets(partitions)
    fresh = start_positions(application, assignment, log, partitions, SystemClock().now_ms())
    positions = {each: fresh[each] if (now := committed[each]) is None else now for each in moving}
    asked = destination(
        Known(log, positions, {each: starts[each] for each in moving}, {each: ends[each] for each in named})
    )
    for partition in sorted(partitions):
        move = PositionMove(*partition, committed[partition], committed[partition])
        if partition in asked:
            nearest = min(max(asked[partition], starts[partition]), ends[partition])
            move = replace(move, then=nearest, asked=asked[partition] if nearest != asked[partition] else None)
        elif partition.topic in between:
            move = replace(move, then=ends[partition], is_passed_over=True)
        yield move


def _of_topics(
    application: Application, partitions: Sequence[TopicPartition], topics: Sequence[str]
) -> list[TopicPartition]:
    names = sorted({partition.topic for partition in partitions})
    for topic in topics:
        if topic not in names:
            advice = did_you_mean(topic, names) or f"it reads: {', '.join(names)}"
            raise ConfigError(f"application {application.id!r} has no source topic {topic!r}; {advice}")
    return [partition for partition in partitions if partition.topic in topics]


def _internal_topics(application_id: str, assignment: Assignment, before: Iterable[str]) -> set[str]:
    """Return the names of the internal topics that certainly belong to the application.

    A name that begins with its id is not enough: the id of another application may begin with this one's.
    """
    return {*assignment.internal, *(f"{application_id}-{name}" for name in before), *topics_beside(application_id)}
