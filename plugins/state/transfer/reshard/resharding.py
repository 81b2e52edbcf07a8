"""Resharding an application: drain the old layout, write the new one beside it, and switch by one write to the log."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock import (
    Application,
    Assignment,
    Commit,
    IncompatibleStateError,
    Lease,
    Log,
    Settings,
    Subtopology,
    TaskId,
    TopicPartition,
    World,
)
from penstock.plugins.engine.program.committed import CommittedPartitions
from penstock.plugins.engine.program.own_topics import topics_beside
from penstock.plugins.engine.program.pausing import carrying_pause, check_not_paused
from penstock.plugins.engine.program.preparation import Prepared, make_changelog_topics, prepare
from penstock.plugins.engine.program.saved_program import read_note, repartition_topics, saved_subtopologies, write_note
from penstock.plugins.engine.program.saved_tasks import task_partitions
from penstock.plugins.engine.program.stored_id import (
    StoredAs,
    read_grown,
    read_note_beside,
    read_stored,
    write_grown,
    write_note_beside,
    write_stored,
)
from penstock.plugins.engine.program.visits import check_no_visits
from penstock.plugins.engine.task.epoch import begin_epoch, of_epoch
from penstock.plugins.engine.task.local_state.directories import remove_all
from penstock.plugins.engine.task.locations import making_state_directory, open_deltas, state_directory
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import LastingTaskWorker
from penstock.plugins.engine.task.topic_ids import without_ids
from penstock.support.names import changelog_topic

from .plan import ReshardPlan, moves, new_note
from .splitting import Workers, merged_state, partition_times, split_state, with_partition_times
from .writing import NewTask

_META = "resharding"

_log = logging.getLogger("penstock.reshard")


@dataclass(frozen=True)
class Resharded:
    """What a resharding did: the id that the log has the application under now, its tasks, and their rows."""

    id: str
    rows: Mapping[str, int] = field(default_factory=dict)


def reshard(
    plan: ReshardPlan,
    log: Log,
    lease: Lease,
    on_step: Callable[[str], None] = lambda text: None,
    *,
    world: World | None = None,
) -> Resharded:
    """Carry a plan out under the lease of the application.

    Until its last step, which is one write to the log, the application goes on under its old layout; after it, under
    the new one. A run that was killed is repeated: the ends that it noted stay, and what it wrote is written again. The
    old layout stays until `accept`. `on_step` gets what is done, as text.

    Raises IncompatibleStateError for state that is not divided by key, for records that were written or read beyond the
    ends, while a visit is not over, and while something is paused; FencedError when the lease was lost, and then
    nothing is switched; also what tasks raise, ChangelogError, StoreError and LogError.
    """
    world, check_lease = world or World(), lease.renew
    resharding = _begin(plan, log, world, lease)
    on_step("processing what was written before")
    with drained(plan, log, resharding.ends, check_lease, world) as workers, _work_directory(plan) as directory:
        rows: dict[str, int] = {}
        try:
            prepared = _prepare(plan, resharding.id, log)
            write_grown(resharding.id, lease, _grown(plan, log, resharding.ends))
            starts = _starts(plan, log, prepared.assignment, resharding.ends)
            for subtopology in prepared.application.program.subtopologies:
                check_lease()
                for task, count in _write(plan, prepared, subtopology, log, workers, starts, directory, world):
                    rows[str(task)] = count
                    on_step(f"task {task}: {count:,} row{'' if count == 1 else 's'}")
            _check_unchanged(plan, log, resharding.ends)
        except Exception:
            _delete_unused(plan, resharding.id, log, world, check_lease)
            raise
        with carrying_pause(plan.stored.id, resharding.id, log):
            write_stored(plan.id, lease, _stored(plan, resharding.id, starts))
    return Resharded(resharding.id, rows)


def accept(application: Application, log: Log, lease: Lease, *, world: World | None = None) -> bool:
    """Give the layout before up, under the lease, then delete what it has; return whether there was one.

    A call that was killed is repeated. Raises FencedError when the lease was lost.
    """
    stored = read_stored(application.id, log)
    if stored.before:
        # First: nobody goes back to it from now on, so a process that was frozen may delete it at any time.
        stored = replace(stored, before="", unused=stored.before)
        write_stored(application.id, lease, stored)
    if not stored.unused:
        return False
    delete_layout(application.settings, log, stored.unused, world or World(), lease.renew)
    write_stored(application.id, lease, replace(stored, unused=""))
    return True


def undo(application: Application, log: Log, lease: Lease, *, world: World | None = None) -> None:
    """Restore the previous layout by one write to the log under the lease; then delete the new layout's data.

    Before that, this begins an epoch of the new layout and takes the fences of its tasks, so no host of it commits any
    more. Raises IncompatibleStateError if there is no previous layout, if positions of either layout are gone, or if
    the application has processed records since, and FencedError when the lease was lost.
    """
    stored = read_stored(application.id, log)
    if not stored.before:
        raise IncompatibleStateError(f"application {application.id!r} keeps no layout before the present one")
    starts = {
        TopicPartition(topic, int(number)): at for topic, each in stored.starts.items() for number, at in each.items()
    }
    begin_epoch(stored.id, lease)
    for task, read in task_partitions(read_note(stored.id, log)).items():
        lease.renew()
        log.open_committer(stored.id, task, read).close()
    now = log.committed(stored.id, list(starts))
    gone = _without_position(log, stored.before) or [str(each) for each in sorted(starts) if now[each] is None]
    if gone:
        raise IncompatibleStateError(
            f"application {application.id!r} cannot go back to the layout before: committed positions in "
            f"{', '.join(gone[:5])} were deleted or have expired (offsets.retention.minutes). Nothing was changed; "
            "reshard it to the earlier number instead"
        )
    moved = sorted(str(each) for each, at in starts.items() if now[each] != at)
    if moved:
        raise IncompatibleStateError(
            f"application {application.id!r} has processed records since it was resharded ({', '.join(moved[:5])}): "
            "the layout before would process them again; reshard it to the earlier number instead"
        )
    with carrying_pause(stored.id, stored.before, log):
        write_stored(application.id, lease, StoredAs(stored.before, left=stored.left))
    delete_layout(application.settings, log, stored.id, world or World(), lease.renew)


def _without_position(log: Log, layout_id: str) -> list[str]:
    """Return the partitions in which a layout had a committed position that is gone."""
    note = read_note(layout_id, log)
    return list(map(str, CommittedPartitions(log, layout_id, note["identity"]).gone())) if note else ["all its topics"]


def _prepare(plan: ReshardPlan, layout_id: str, log: Log) -> Prepared:
    """Write the note of the new layout, and make its topics. The note is first: it says what may be there."""
    application, assignment = plan.under(layout_id, log)
    write_note(layout_id, log, new_note(plan, application, assignment, log))
    make_changelog_topics(application, assignment, log)
    return prepare(application, log)


def _delete_unused(plan: ReshardPlan, layout_id: str, log: Log, world: World, check_lease: Callable[[], None]) -> None:
    """Delete what was written for a layout that will not be used; what is left, the next resharding deletes."""
    try:
        delete_layout(plan.before.settings, log, layout_id, world, check_lease)
    except Exception as error:
        _log.warning("application %r: not all of its unused layout %s was deleted: %s", plan.id, layout_id, error)


@dataclass(frozen=True)
class _Begun:
    id: str
    ends: Ends


def _begin(plan: ReshardPlan, log: Log, world: World, lease: Lease) -> _Begun:
    """Note the ends up to which the old layout processes; those of an interrupted run of this plan stay.

    Deletes what interrupted commands have left of layouts that nobody uses.
    """
    check_no_visits(plan.before, log, plan.tasks.tasks)
    check_not_paused(plan.before, log)
    noted = read_note_beside(plan.id, log, _META)
    ends = _noted_ends(plan, log, noted) or fixed_ends(plan, log)
    for unused in {plan.stored.unused, noted.get("id", "")} - {"", plan.stored.id}:
        delete_layout(plan.before.settings, log, unused, world, lease.renew)
    number = noted["number"] + 1 if noted else 2
    while _is_taken(layout_id := f"{plan.id}-layout-{number}", log):
        number += 1
    begun = _Begun(layout_id, ends)
    note = {
        "number": number,
        "id": begun.id,
        **_what(plan),
        "ends": _by_topic(ends),
    }
    write_note_beside(plan.id, lease, _META, note)
    return begun


def _is_taken(layout_id: str, log: Log) -> bool:
    """Return whether another application has this id."""
    return bool(read_note(layout_id, log)) or any(each.startswith(f"{layout_id}-") for each in log.topics())


def _what(plan: ReshardPlan) -> dict[str, Any]:
    return {
        "before": plan.stored.id,
        "identity": plan.note["identity"],
        "partitions": plan.partitions,
        "sources": dict(plan.sources),
        "grown": dict(plan.grown),
    }


def _noted_ends(plan: ReshardPlan, log: Log, noted: Mapping[str, Any]) -> Ends | None:
    """Return the ends of an interrupted run, if it was of this plan and nothing was read or written beyond them."""
    if not noted or any(noted[name] != value for name, value in _what(plan).items()):
        return None
    ends = {
        TopicPartition(topic, int(number)): end for topic, each in noted["ends"].items() for number, end in each.items()
    }
    read = source_partitions(plan)
    if set(read) != set(ends):
        return None
    positions = log.committed(plan.stored.id, read)
    if any(at is not None and at > ends[each] for each, at in positions.items()):
        return None
    return None if _written_beyond(plan, log, ends) else ends


def _written_beyond(plan: ReshardPlan, log: Log, ends: Ends) -> list[str]:
    """Return the partitions of replaced topics that have records after their ends: nobody would process them."""
    replaced = [each for each in ends if each.topic in plan.sources]
    now = log.end_offsets(replaced, stable=False) if replaced else {}
    return [f"{each} ({ends[each]} to {end})" for each, end in sorted(now.items()) if end != ends[each]]


def _check_unchanged(plan: ReshardPlan, log: Log, ends: Ends) -> None:
    if written := _written_beyond(plan, log, ends):
        raise IncompatibleStateError(
            f"application {plan.id!r}: records were written to {', '.join(written)} meanwhile, and the new layout "
            "would not read them: let the writers write to the new topics, and run this again"
        )


def _stored(plan: ReshardPlan, new_id: str, starts: Ends) -> StoredAs:
    left = (*plan.stored.left, *plan.stored.sources)
    return StoredAs(new_id, plan.stored.id, dict(plan.sources), left, _by_topic(starts))


def _grown(plan: ReshardPlan, log: Log, ends: Ends) -> dict[str, Mapping[str, int]]:
    """Return the ends of topics that have grown, now or before an earlier resharding."""
    return {
        **read_grown(plan.stored, log),
        **_by_topic({each: end for each, end in ends.items() if each.topic in plan.grown}),
    }


def _by_topic(offsets: Ends) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def _starts(plan: ReshardPlan, log: Log, assignment: Assignment, ends: Ends) -> Ends:
    """Return where the new layout begins to read: at the ends of the old one, and at the start of what is new."""
    read = [each for partitions in assignment.tasks.values() for each in partitions]
    new = [each for each in read if each not in ends]
    return {**(log.start_offsets(new) if new else {}), **{each: ends[each] for each in read if each in ends}}


def _write(
    plan: ReshardPlan,
    prepared: Prepared,
    subtopology: Subtopology,
    log: Log,
    workers: Workers,
    starts: Ends,
    directory: Path,
    world: World,
) -> Iterator[tuple[TaskId, int]]:
    """Write and verify the tasks of one sub-topology; yield each with the number of its rows."""
    application, assignment = prepared.application, prepared.assignment
    tasks = [task for task in assignment.tasks if task.subtopology == subtopology.id]
    states = _engine_states(plan, assignment, subtopology, workers)
    before = plan.before.program.subtopology(subtopology.id)
    with split_state(plan, before, workers, assignment, directory / str(subtopology.id)) as split:
        for task in tasks:
            partitions = assignment.tasks[task]
            own = NewTask(application, task, partitions, log, directory / "unused" / str(task), world)
            own.write(Commit({each: starts[each] for each in partitions}, "", states[task.partition]), split)
            yield task, own.verify(split)


def _engine_states(
    plan: ReshardPlan, assignment: Assignment, subtopology: Subtopology, workers: Workers
) -> list[bytes]:
    """Return the engine state of each new task of a sub-topology."""
    own = {task.partition: worker for task, worker in workers.items() if task.subtopology == subtopology.id}
    states = {number: without_ids(worker.commit.engine_state) for number, worker in own.items() if worker.commit}
    times = partition_times(list(states.values()))
    made = []
    merged = None
    if moves(plan, assignment, subtopology.id):
        where = f"application {plan.id!r} cannot be resharded: sub-topology {subtopology.id}"
        merged = merged_state(where, list(states.values()), plan.dropped)
    for task in (each for each in assignment.tasks if each.subtopology == subtopology.id):
        state = merged
        if state is None:
            state = merged_state("", [states[task.partition]], plan.dropped)
        names = [f"{topic}:{number}" for topic, number in assignment.tasks[task]]
        made.append(with_partition_times(state, {name: times.get(name, -1) for name in names}))
    return made


@contextmanager
def _work_directory(plan: ReshardPlan) -> Iterator[Path]:
    """Return a directory of this machine for the state on its way; what a killed run left there is deleted."""
    directory = state_directory(plan.before.settings) / f"{plan.id}.resharding"
    shutil.rmtree(directory, ignore_errors=True)
    with making_state_directory(directory):
        directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def delete_layout(
    settings: Settings, log: Log, application_id: str, world: World, check_lease: Callable[[], None]
) -> None:
    """Delete what is stored under an id, its commits last; idempotent. Raises ChangelogError and LogError.

    The note of its program says what there is, and goes with the commits: a call that was killed can be repeated. The
    lease is checked before each deletion: a process that was frozen must not delete what its successor has made.
    """
    note = read_note(application_id, log)
    topics = repartition_topics(application_id, note) | topics_beside(application_id)
    for number, each in saved_subtopologies(note).items() if note else ():
        topics |= {changelog_topic(application_id, store) for store in each["stores"]}
        tasks = each["tasks"] or 0 if each["stores"] and settings.log_changelog is None else 0
        for partition in range(tasks):
            with closing(open_deltas(settings, application_id, f"{number}_{partition}", world)) as changelog:
                check_lease()
                changelog.destroy()
    there = log.topics()
    for topic in sorted(topics):
        if topic in there and there[topic].internal:
            check_lease()
            log.delete_topic(topic)
    check_lease()
    log.delete_commits(application_id)
    remove_all(state_directory(settings) / application_id)


Ends = Mapping[TopicPartition, int]
_LOOK_SECONDS, _PATIENCE_SECONDS = 0.02, 120.0


def fixed_ends(plan: ReshardPlan, log: Log) -> Ends:
    """Return the ends of the source topics of the old layout, as they are now.

    Raises IncompatibleStateError where that is no sharp line between records by the old and by the new number: a grown
    topic that has records in its new partitions, an open transaction.
    """
    read = source_partitions(plan)
    ends = log.end_offsets(read)
    high = log.end_offsets(read, stable=False)
    changing = {each for each in read if each.topic in plan.grown or each.topic in plan.sources}
    unsettled = sorted(str(each) for each in changing if high[each] != ends[each])
    if unsettled:
        raise IncompatibleStateError(
            f"application {plan.id!r}: records are being written to {', '.join(unsettled)}: stop the writers until the "
            "ends of the topics are noted, and run this again"
        )
    counts = log.topics()
    new = [
        TopicPartition(topic, number)
        for topic, count in plan.grown.items()
        for number in range(count, counts[topic].partitions)
    ]
    written = sorted(str(each) for each, end in log.end_offsets(new, stable=False).items() if end) if new else []
    if written:
        raise IncompatibleStateError(
            f"application {plan.id!r}: {', '.join(written)} has records, so it is unknown which records of the other "
            "partitions were written by the old number: a topic must be resharded between its growth and the first "
            "record after it. Copy its records into a new topic, and name that with --source OLD=NEW"
        )
    return ends


def source_partitions(plan: ReshardPlan) -> list[TopicPartition]:
    """Return the partitions of the topics from outside that the old layout reads."""
    read = {each for partitions in plan.tasks.tasks.values() for each in partitions}
    return sorted(each for each in read if each.topic not in plan.tasks.internal)


@contextmanager
def drained(
    plan: ReshardPlan, log: Log, ends: Ends, check_lease: Callable[[], None], world: World
) -> Iterator[Workers]:
    """Process every record up to `ends`, and all that this writes to repartition topics; return the open tasks.

    This begins an epoch and takes the fences of all tasks, so no host of the old layout opens one from now on. Each
    batch is a commit as in any run, so a killed process loses nothing; the last ones stay in the log until the old
    layout is given up, so that one can go back to it. Raises what tasks raise, and
    IncompatibleStateError for a task that is behind or beyond the ends afterwards.
    """
    resources = ProcessResources(world)
    application = of_epoch(plan.before, begin_epoch(plan.before.id, log))
    if application.settings.max_task_idle is not None:
        # No more records come: a task need not wait for any that the log does not have.
        application.settings = replace(application.settings, max_task_idle="0ms")
    committed = CommittedPartitions(log, application.id, plan.note["identity"])
    workers = {
        task: LastingTaskWorker(
            application, task, partitions, log, resources=resources, task_count=len(plan.tasks.tasks)
        )
        for task, partitions in plan.tasks.tasks.items()
    }
    try:
        positions: dict[TopicPartition, int] = {}
        internal = [each for read in plan.tasks.tasks.values() for each in read if each.topic in plan.tasks.internal]
        deadline = world.seconds() + _PATIENCE_SECONDS
        clock_ms = world.clock.now_ms()  # one time for all, or punctuators that write records would never end
        while True:
            check_lease()
            before = dict(positions)
            for worker in workers.values():
                own = [each for each in worker.partitions if each.topic in plan.tasks.internal]
                planned = {each: ends[each] for each in worker.partitions if each in ends}
                planned |= log.end_offsets(own) if own else {}
                report = worker.run_batch(planned, clock_ms)
                positions |= report.positions
                committed.add(report.positions)
            if positions != before:
                deadline = world.seconds() + _PATIENCE_SECONDS
            elif hidden := _hidden(log, internal):
                if world.seconds() > deadline:
                    raise IncompatibleStateError(
                        f"application {plan.id!r}: {', '.join(hidden)}: a transaction is open there, and hides what "
                        "follows it; end the program that writes there, and run this again"
                    )
                world.sleep(_LOOK_SECONDS)
            else:
                break
        _check(plan, log, ends, positions)
        yield workers
    finally:
        for worker in workers.values():
            worker.close()
        resources.close()


def _hidden(log: Log, partitions: Sequence[TopicPartition]) -> list[str]:
    """Return the partitions with records on their way: those of a commit can be read some moments after it."""
    ends, high = log.end_offsets(partitions), log.end_offsets(partitions, stable=False)
    return [str(each) for each in partitions if ends[each] != high[each]]


def _check(plan: ReshardPlan, log: Log, ends: Ends, positions: Mapping[TopicPartition, int]) -> None:
    internal = [each for each in positions if each.topic in plan.tasks.internal]
    wanted = {**ends, **(log.end_offsets(internal) if internal else {})}
    beyond = [f"{each} is read up to {at}" for each, at in sorted(positions.items()) if at > wanted[each]]
    if beyond:
        raise IncompatibleStateError(
            f"application {plan.id!r}: {', '.join(beyond)}, beyond the ends that were noted: the application has run "
            "since. Nothing was changed; run this again"
        )
    behind = [
        f"{each} is read up to {at} of {wanted[each]}" for each, at in sorted(positions.items()) if at < wanted[each]
    ]
    if behind:
        raise IncompatibleStateError(f"application {plan.id!r}: {', '.join(behind)}, and its task goes no further")
