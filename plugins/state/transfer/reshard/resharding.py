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
    ChangelogError,
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
from penstock.plugins.engine.program.pausing import carrying_pause, check_not_paused
from penstock.plugins.engine.program.preparation import Prepared, make_changelog_topics, prepare
from penstock.plugins.engine.program.saved_program import (
    read_note,
    repartition_topics,
    saved_subtopologies,
    task_partitions,
)
from penstock.plugins.engine.program.stored_id import (
    StoredAs,
    read_grown,
    read_partitioned,
    read_stored,
    write_grown,
    write_stored,
)
from penstock.plugins.engine.program.visits import check_no_visits
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.epoch import begin_epoch, of_epoch
from penstock.plugins.engine.task.local_state.directories import remove_all
from penstock.plugins.engine.task.locations import (
    Places,
    making_state_directory,
    open_changelog,
    open_deltas,
)
from penstock.plugins.engine.task.own_topics import topics_beside
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import LastingTaskWorker
from penstock.plugins.engine.task.topic_ids import without_ids
from penstock.plugins.state.copies.state_reader import rows_of
from penstock.program.layouts import Layouts
from penstock.support.names import changelog_topic

from ..task_writer import task_writer
from .plan import ReshardPlan, moves, new_note
from .splitting import SplitState, Workers, merged_state, partition_times, split_state, with_partition_times

_LOOK_SECONDS, _PATIENCE_SECONDS = 0.02, 120.0
Ends = Mapping[TopicPartition, int]

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

    Until its last step, one write to the log, the application has its old layout. A run that was killed is repeated:
    the ends that it noted stay, the rest is written again. The old layout stays until `accept`. `on_step` gets what is
    done, as text.

    Raises IncompatibleStateError for state that is not divided by key, for records written or read beyond the ends,
    during a visit or a pause; FencedError when the lease was lost, and then nothing is switched; also what tasks raise,
    ChangelogError, StoreError and LogError.
    """
    return Resharding(plan, log, lease, world or World()).run(on_step)


def accept(application: Application, log: Log, lease: Lease, *, world: World | None = None) -> bool:
    """Give the layout before up, under the lease, then delete what it has; return whether there was one.

    A call that was killed is repeated. Raises FencedError when the lease was lost.
    """
    stored = read_stored(application.id, log)
    _delete_work(application)
    if stored.before:
        # First: nobody goes back to it from now on, so a process that was frozen may delete it at any time.
        stored = replace(stored, before="", unused=stored.before)
        write_stored(application.id, lease, stored)
    if not stored.unused:
        return False
    _delete_unused_layout(application, log, lease, stored, world)
    return True


def undo(application: Application, log: Log, lease: Lease, *, world: World | None = None) -> None:
    """Restore the previous layout by one write to the log under the lease; then delete the new layout's data.

    First it takes the fences of the new layout's tasks. A call that was killed is repeated. Raises
    IncompatibleStateError if there is no previous layout, if positions are gone, or if the application has processed
    records since, and FencedError when the lease was lost.
    """
    stored = read_stored(application.id, log)
    _delete_work(application)
    if stored.unused and stored.unused == notes.RESHARDING.read(application.id, log).get("id"):
        # The new layout was given up by a call that was killed; `accept` gives up the one before.
        _delete_unused_layout(application, log, lease, stored, world)
        return
    if not stored.before:
        raise IncompatibleStateError(f"application {application.id!r} keeps no layout before the present one")
    starts = _of_topics(stored.starts)
    begin_epoch(stored.id, lease)
    for task, read in task_partitions(read_note(stored.id, log)).items():
        lease.renew()
        log.open_committer(stored.id, task, read).close()
    now = log.committed(stored.id, list(starts))
    note, gone = read_note(stored.before, log), ["all its topics"]
    if note:
        gone = [str(each) for each in CommittedPartitions(log, stored.before, note["identity"]).gone()]
        gone = gone or [str(each) for each in sorted(starts) if now[each] is None]
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
    former = StoredAs(stored.before, sources=stored.replaced_before(), left=stored.left, unused=stored.id)
    with carrying_pause(stored.id, stored.before, log):
        write_stored(application.id, lease, former)
    _delete_unused_layout(application, log, lease, former, world)


class Resharding:
    """A plan that is carried out. `id`: that of the new layout. `ends`: those up to which the old one processes."""

    def __init__(self, plan: ReshardPlan, log: Log, lease: Lease, world: World) -> None:
        """Note the ends; those of an interrupted run of this plan stay.

        Deletes what interrupted commands have left of layouts that nobody uses.
        """
        self._plan, self._log, self._lease, self._world = plan, log, lease, world
        check_no_visits(plan.before, log, plan.tasks.tasks)
        check_not_paused(plan.before, log)
        noted = notes.RESHARDING.read(plan.id, log)
        self.ends = self._noted_ends(noted) or self._fixed_ends()
        for unused in {plan.stored.unused, noted.get("id", "")} - {"", plan.stored.id}:
            delete_layout(plan.before.settings, log, unused, world, lease.renew)
        number = noted["number"] + 1 if noted else 2
        while self._is_taken(f"{plan.id}-layout-{number}"):
            number += 1
        self.id = f"{plan.id}-layout-{number}"
        note = {"number": number, "id": self.id, **self._what(), "ends": _by_topic(self.ends)}
        notes.RESHARDING.write(plan.id, lease, note)

    def run(self, on_step: Callable[[str], None]) -> Resharded:
        """Write the new layout, and switch to it."""
        plan, log, lease = self._plan, self._log, self._lease
        on_step("processing what was written before")
        with self._drained() as workers, _work_directory(plan) as directory:
            rows: dict[str, int] = {}
            try:
                prepared = self._prepare()
                grown = {each: end for each, end in self.ends.items() if each.topic in plan.grown}
                write_grown(self.id, lease, {**read_grown(plan.stored, log), **_by_topic(grown)}, self._partitioned())
                starts = self._starts(prepared.assignment)
                for subtopology in prepared.application.program.subtopologies:
                    lease.renew()
                    for task, count in self._write(prepared, subtopology, workers, starts, directory):
                        rows[str(task)] = count
                        on_step(f"task {task}: {count:,} row{'' if count == 1 else 's'}")
                if written := self._written_beyond(self.ends):
                    raise IncompatibleStateError(
                        f"application {plan.id!r}: records were written to {', '.join(written)} meanwhile, and the new "
                        "layout would not read them: let the writers write to the new topics, and run this again"
                    )
            except Exception:
                self._delete_unused()
                raise
            left = list(dict.fromkeys((*plan.stored.left, *plan.stored.sources)))
            with carrying_pause(plan.stored.id, self.id, log):
                sources = plan.stored.replaced(plan.sources)
                write_stored(plan.id, lease, StoredAs(self.id, plan.stored.id, sources, left, _by_topic(starts)))
        return Resharded(self.id, rows)

    def _partitioned(self) -> set[str]:
        """Return the source topics of the new layout whose writers have a partitioner of their own."""
        plan = self._plan
        told = {*plan.grown, *plan.sources}  # of others an earlier resharding was told
        topics = {*plan.partitioners, *(read_partitioned(plan.stored, self._log) - told)}
        return {plan.sources.get(topic, topic) for topic in topics}

    # ------------------------------------------------------------------ the ends

    def _is_taken(self, layout_id: str) -> bool:
        """Return whether another application has this id."""
        return bool(read_note(layout_id, self._log)) or any(
            each.startswith(f"{layout_id}-") for each in self._log.topics()
        )

    def _what(self) -> dict[str, Any]:
        plan = self._plan
        return {
            "before": plan.stored.id,
            "identity": plan.note["identity"],
            "partitions": plan.partitions,
            "sources": dict(plan.sources),
            "grown": dict(plan.grown),
        }

    def _noted_ends(self, noted: Mapping[str, Any]) -> Ends | None:
        """Return the ends of an interrupted run, if it was of this plan and nothing was read or written beyond them."""
        if not noted or any(noted[name] != value for name, value in self._what().items()):
            return None
        ends = _of_topics(noted["ends"])
        read = self._source_partitions()
        if set(read) != set(ends):
            return None
        positions = self._log.committed(self._plan.stored.id, read)
        if any(at is not None and at > ends[each] for each, at in positions.items()):
            return None
        return None if self._written_beyond(ends) else ends

    def _fixed_ends(self) -> Ends:
        """Return the ends of the source topics of the old layout, as they are now.

        Raises IncompatibleStateError where records by the old and by the new number are not apart: a grown topic with
        records in its new partitions, an open transaction.
        """
        plan, log, read = self._plan, self._log, self._source_partitions()
        ends = log.end_offsets(read)
        high = log.end_offsets(read, stable=False)
        changing = {each for each in read if each.topic in plan.grown or each.topic in plan.sources}
        unsettled = sorted(str(each) for each in changing if high[each] != ends[each])
        if unsettled:
            raise IncompatibleStateError(
                f"application {plan.id!r}: records are being written to {', '.join(unsettled)}: stop the writers until "
                "the ends of the topics are noted, and run this again"
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
                f"application {plan.id!r}: {', '.join(written)} has records, so it is unknown which records of the "
                "other partitions were written by the old number: a topic must be resharded between its growth and the "
                "first record after it. Copy its records into a new topic, and name that with --source OLD=NEW"
            )
        return ends

    def _source_partitions(self) -> list[TopicPartition]:
        """Return the partitions of the topics from outside that the old layout reads."""
        tasks = self._plan.tasks
        return sorted({each for read in tasks.tasks.values() for each in read if each.topic not in tasks.internal})

    def _written_beyond(self, ends: Ends) -> list[str]:
        """Return the partitions of replaced topics that have records after their ends: nobody would process them."""
        replaced = [each for each in ends if each.topic in self._plan.sources]
        now = self._log.end_offsets(replaced, stable=False) if replaced else {}
        return [f"{each} ({ends[each]} to {end})" for each, end in sorted(now.items()) if end != ends[each]]

    # ------------------------------------------------------------------ the old layout

    @contextmanager
    def _drained(self) -> Iterator[Workers]:
        """Process every record up to the ends, and all that this writes to repartition topics; return the open tasks.

        A new epoch and the fences keep hosts of the old layout out. Each batch is a commit as in any run; the last ones
        stay in the log until the old layout is given up. Raises what tasks raise, and IncompatibleStateError for a task
        that is behind or beyond the ends.
        """
        plan, log, world = self._plan, self._log, self._world
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
            internal = [
                each for read in plan.tasks.tasks.values() for each in read if each.topic in plan.tasks.internal
            ]
            deadline = world.seconds() + _PATIENCE_SECONDS
            clock_ms = world.clock.now_ms()  # one time for all, or punctuators that write records would never end
            while True:
                self._lease.renew()
                previous = dict(positions)
                for worker in workers.values():
                    own = [each for each in worker.partitions if each.topic in plan.tasks.internal]
                    planned = {each: self.ends[each] for each in worker.partitions if each in self.ends}
                    planned |= log.end_offsets(own) if own else {}
                    report = worker.run_batch(planned, clock_ms)
                    positions |= report.positions
                    committed.add(report.positions)
                if positions != previous:
                    deadline = world.seconds() + _PATIENCE_SECONDS
                elif hidden := _hidden(log, internal):
                    if world.seconds() > deadline:
                        raise IncompatibleStateError(
                            f"application {plan.id!r}: {', '.join(hidden)}: a transaction is open there, and hides "
                            "what follows it; end the program that writes there, and run this again"
                        )
                    world.sleep(_LOOK_SECONDS)
                else:
                    break
            self._check_drained(positions)
            yield workers
        finally:
            for worker in workers.values():
                worker.close()
            resources.close()

    def _check_drained(self, positions: Mapping[TopicPartition, int]) -> None:
        plan = self._plan
        internal = [each for each in positions if each.topic in plan.tasks.internal]
        wanted = {**self.ends, **(self._log.end_offsets(internal) if internal else {})}
        beyond = [f"{each} is read up to {at}" for each, at in sorted(positions.items()) if at > wanted[each]]
        if beyond:
            raise IncompatibleStateError(
                f"application {plan.id!r}: {', '.join(beyond)}, beyond the ends that were noted: the application has "
                "run since. Nothing was changed; run this again"
            )
        behind = [
            f"{each} is read up to {at} of {wanted[each]}"
            for each, at in sorted(positions.items())
            if at < wanted[each]
        ]
        if behind:
            raise IncompatibleStateError(f"application {plan.id!r}: {', '.join(behind)}, and its task goes no further")

    # ------------------------------------------------------------------ the new layout

    def _prepare(self) -> Prepared:
        """Write the note of the new layout, and make its topics. The note is first: it says what may be there."""
        application, assignment = self._plan.under(self.id, self._log)
        notes.PROGRAM.write(self.id, self._log, new_note(self._plan, application, assignment, self._log))
        make_changelog_topics(application, assignment, self._log)
        return prepare(application, self._log)

    def _delete_unused(self) -> None:
        """Delete the data of a layout that will not be used; the next resharding deletes the rest."""
        try:
            delete_layout(self._plan.before.settings, self._log, self.id, self._world, self._lease.renew)
        except Exception as error:
            _log.warning(
                "application %r: not all of its unused layout %s was deleted: %s", self._plan.id, self.id, error
            )

    def _starts(self, assignment: Assignment) -> Ends:
        """Return the start offsets of the new layout: the old one's ends, and the starts of new partitions."""
        read, ends = [each for partitions in assignment.tasks.values() for each in partitions], self.ends
        new = [each for each in read if each not in ends]
        return {**(self._log.start_offsets(new) if new else {}), **{each: ends[each] for each in read if each in ends}}

    def _write(
        self, prepared: Prepared, subtopology: Subtopology, workers: Workers, starts: Ends, directory: Path
    ) -> Iterator[tuple[TaskId, int]]:
        """Write and verify the tasks of one sub-topology; yield each with the number of its rows."""
        assignment, layouts = prepared.assignment, subtopology.layouts
        assert layouts is not None
        states = self._engine_states(assignment, subtopology, workers)
        old = self._plan.before.program.subtopology(subtopology.id)
        with split_state(self._plan, old, workers, assignment, directory / str(subtopology.id)) as split:
            for task, state in states.items():
                commit = Commit({each: starts[each] for each in assignment.tasks[task]}, "", state)
                write_task(prepared.application, task, layouts, commit, self._log, split, self._world)
                yield task, self._verify(prepared.application, task, layouts, [*commit.positions], split)

    def _engine_states(
        self, assignment: Assignment, subtopology: Subtopology, workers: Workers
    ) -> Mapping[TaskId, bytes]:
        """Return the engine state of each new task of a sub-topology."""
        plan = self._plan
        own = {task.partition: worker for task, worker in workers.items() if task.subtopology == subtopology.id}
        states = {number: without_ids(worker.commit.engine_state) for number, worker in own.items() if worker.commit}
        times, merged = partition_times(list(states.values())), None
        if moves(plan, assignment, subtopology.id):
            where = f"application {plan.id!r} cannot be resharded: sub-topology {subtopology.id}"
            merged = merged_state(where, list(states.values()), plan.dropped)
        made = {}
        for task in (each for each in assignment.tasks if each.subtopology == subtopology.id):
            state = merged_state("", [states[task.partition]], plan.dropped) if merged is None else merged
            names = [f"{topic}:{number}" for topic, number in assignment.tasks[task]]
            made[task] = with_partition_times(state, {name: times.get(name, -1) for name in names})
        return made

    def _verify(
        self,
        application: Application,
        task: TaskId,
        layouts: Layouts,
        partitions: Sequence[TopicPartition],
        split: SplitState,
    ) -> int:
        """Compare a task's changelog with its state; return how many rows. Raises ChangelogError if they differ."""
        if not layouts.now:
            return 0
        where = f"application {application.id!r}, task {task}"
        commit = self._log.last_commit(application.id, str(task), partitions)
        if commit is None:
            raise ChangelogError(
                f"{where}: the commit that was written is gone: another process has deleted this layout, and goes on "
                "in place of this one"
            )
        changelog = open_changelog(application.settings, application.id, str(task), self._log, layouts.now)
        changelog.world, found = self._world, 0
        with closing(changelog):
            for store, row, data in rows_of(changelog.restore(commit.version, None)):
                found += 1
                if split.get(task.partition, store, row) != data:
                    raise ChangelogError(
                        f"{where}, store {store!r}: its changelog has another row {row[:40]!r} than was written: the "
                        "new layout is not used; run this again"
                    )
        if found != (count := sum(1 for _ in split.rows(task.partition))):
            raise ChangelogError(
                f"{where}: its changelog has {found} rows, and {count} were written: the new layout is not used; run "
                "this again"
            )
        return found


def write_task(
    application: Application,
    task: TaskId,
    layouts: Layouts,
    commit: Commit,
    log: Log,
    split: SplitState,
    world: World,
) -> None:
    """Write a task of the new layout, with positions and engine state of `commit`."""
    with task_writer(application, str(task), [*commit.positions], log, layouts.now or None, world) as writer:
        writer.begin(split.rows(task.partition), commit, 0, layouts.id)


def _hidden(log: Log, partitions: Sequence[TopicPartition]) -> list[str]:
    """Return the partitions with records on their way: those of a commit can be read some moments after it."""
    ends, high = log.end_offsets(partitions), log.end_offsets(partitions, stable=False)
    return [str(each) for each in partitions if ends[each] != high[each]]


def _by_topic(offsets: Ends) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def _of_topics(data: Mapping[str, Mapping[str, int]]) -> Ends:
    return {TopicPartition(topic, int(number)): at for topic, each in data.items() for number, at in each.items()}


@contextmanager
def _work_directory(plan: ReshardPlan) -> Iterator[Path]:
    """Return a directory of this machine for the state on its way; what a killed run left there is deleted."""
    directory = Places(plan.before.settings, plan.id).resharding
    shutil.rmtree(directory, ignore_errors=True)
    with making_state_directory(directory):
        directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _delete_work(application: Application) -> None:
    """Delete what a resharding left in its work directory that was killed behind its switch: it is not repeated."""
    shutil.rmtree(Places.of(application).resharding, ignore_errors=True)


def _delete_unused_layout(
    application: Application, log: Log, lease: Lease, stored: StoredAs, world: World | None
) -> None:
    """Delete what the layout has that was given up, and note that it is deleted."""
    delete_layout(application.settings, log, stored.unused, world or World(), lease.renew)
    write_stored(application.id, lease, replace(stored, unused=""))


def delete_layout(
    settings: Settings, log: Log, application_id: str, world: World, check_lease: Callable[[], None]
) -> None:
    """Delete what is stored under an id, its commits last; idempotent. Raises ChangelogError and LogError.

    The note of its program says what there is, and goes with the commits. The lease is checked before each deletion: a
    process that was frozen must not delete its successor's data.
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
    remove_all(Places(settings, application_id).root)
