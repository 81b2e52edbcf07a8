"""Restores an application from a backup, into its log and its changelog, where it then continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from penstock import (
    Application,
    Commit,
    IncompatibleStateError,
    Log,
    PenstockError,
    TopicPartition,
    World,
    version_counter,
)
from penstock.plugins.engine.program.checkpoint_files import delete_checkpoint
from penstock.plugins.engine.program.committed import CommittedPartitions
from penstock.plugins.engine.program.preparation import changelog_config, repartition_config
from penstock.plugins.engine.program.saved_program import (
    ProgramNote,
    note_location,
    read_note,
    repartition_topics,
    saved_layouts,
    saved_subtopologies,
    task_partitions,
)
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.locations import open_deltas
from penstock.plugins.engine.task.refusals import check_note
from penstock.plugins.engine.task.topic_ids import without_ids
from penstock.plugins.state.copies.state_reader import Row, StateReader, rows_of
from penstock.program.layouts import id_of_version

from ..task_writer import task_writer
from .backup import batches_of, partition_name
from .catalog import IN_TRANSIT, Backup, Catalog, stores_of

RESTORE_MARK = "restore from backup "
"""How the note begins that an application has while it is restored."""


@dataclass(frozen=True)
class RestorePlan:
    """What `restore_backup` does: the backup, and the note of the program as the application has it afterwards."""

    backup: Backup
    catalog: Catalog
    note: ProgramNote
    is_repeated: bool
    """Whether a restore was cut short before: what it left is deleted first."""
    other_topics: bool = False
    """Whether topics that are not those of the backup have the same records at the same offsets."""

    def same_topics(self, log: Log) -> frozenset[str]:
        """Return the topics from outside that have the same records at the same offsets as at the backup."""
        saved = self.backup.topic_ids
        now = log.topic_ids(saved)
        return frozenset(each for each in saved if self.other_topics or not now.get(each) or now[each] == saved[each])


def plan_restore(
    application: Application,
    log: Log,
    location: str,
    *,
    name: str | None = None,
    of: str | None = None,
    other_topics: bool = False,
    world: World | None = None,
) -> RestorePlan:
    """Return how `application` is restored from a backup in `location`, the last one or `name`; changes nothing.

    `of`: the id of the application that was backed up, if it is another one. `other_topics`: other topics have the same
    records at the same offsets. Raises ConfigError where there is no such backup, IncompatibleStateError where the
    application has state or positions, or where the topics do not fit.
    """
    plan = plan_check(application, log, location, name=name, of=of, other_topics=other_topics, world=world)
    is_repeated = notes.RESTORING.read(application.id, log).startswith(RESTORE_MARK)
    if not is_repeated and read_note(application.id, log):
        raise IncompatibleStateError(
            f"application {application.id!r} has run in the log {application.settings.shown('log')}: what it has "
            "there is not replaced. Give up what it has (`penstock reset`), or restore under another id "
            "(--application-id)"
        )
    if not is_repeated:
        _check_empty(plan, application, log, world or World())
    return replace(plan, is_repeated=is_repeated)


def plan_check(
    application: Application,
    log: Log,
    location: str,
    *,
    name: str | None = None,
    of: str | None = None,
    other_topics: bool = False,
    world: World | None = None,
) -> RestorePlan:
    """Return what `verify_backup` reads, also where the application has state or positions; else as `plan_restore`."""
    catalog = Catalog(location, of or application.id, world)
    backup = catalog.read(name)
    check_note(backup.application_id, backup.note)
    note = _renamed(backup, application, world or World())
    plan = RestorePlan(backup, catalog, note, False, other_topics)
    _check_topics(plan, log)
    return plan


def verify_backup(plan: RestorePlan, say: Callable[[str], object] = lambda text: None) -> None:
    """Read all files of a backup. Raises ChangelogError that names the first damaged one."""
    for folder, version in plan.backup.versions.items():
        with closing(plan.catalog.changelog(folder)) as changelog:
            for _ in changelog.restore(version, None).steps:
                pass
        say(f"{folder} is whole")


# ---------------------------------------------------------------- names


def names_under(backup: Backup, application_id: str) -> dict[str, str]:
    """Return the repartition topics of a backup, with their names under another application id."""
    before = repartition_topics(backup.application_id, backup.note)
    return {each: application_id + each.removeprefix(backup.application_id) for each in before}


def _renamed(backup: Backup, application: Application, world: World) -> ProgramNote:
    """Return the note of the program as the application has it, in an incarnation of its own."""
    names, note = names_under(backup, application.id), deepcopy(backup.note)
    note["identity"] = world.token(8)
    note["changelog"] = application.settings.changelog.partition(":")[0]
    note["reads"] = {number: [names.get(each, each) for each in topics] for number, topics in note["reads"].items()}
    partitions = note["fingerprint"]["partitions"]
    note["fingerprint"]["partitions"] = {names.get(topic, topic): count for topic, count in partitions.items()}
    return note


def restored_note(plan: RestorePlan, application_id: str, positions: Mapping[TopicPartition, int]) -> ProgramNote:
    """Return the note of the application, whose `positions` are others now in these partitions of the backup."""
    backup, names, note = plan.backup, names_under(plan.backup, application_id), deepcopy(plan.note)
    read = backup.positions
    for parked in note.get("parked", {}).values():
        for topic, before in parked["positions"].items():
            each = [TopicPartition(topic, number) for number in range(len(before))]
            # What was processed before is not behind the new position: it is that one, or one that is never reached.
            parked["positions"][topic] = [
                at if one not in positions else positions[one] if read.get(one) == at else -1
                for one, at in zip(each, before, strict=True)
            ]
        parked["positions"] = {names.get(topic, topic): at for topic, at in parked["positions"].items()}
    return note


# ---------------------------------------------------------------- checks


def _check_topics(plan: RestorePlan, log: Log) -> None:
    """Raise IncompatibleStateError if the topics from outside are not as they were; intermediate ones may differ."""
    backup, topics = plan.backup, log.topics()
    internal = names_under(backup, "")
    between, same = {*internal, *backup.intermediate}, plan.same_topics(log)
    wrong = []
    for topic, count in backup.note["fingerprint"]["partitions"].items():
        if topic in internal:
            continue
        if topic not in topics:
            wrong.append(f"topic {topic!r} does not exist")
        elif topics[topic].partitions != count:
            wrong.append(f"topic {topic!r} has {topics[topic].partitions} partitions, and had {count}")
        elif topic in backup.topic_ids and topic not in same and topic not in between:
            wrong.append(
                f"topic {topic!r} is another one than that of the backup (--other-topics takes it, if it has the same "
                "records at the same offsets)"
            )
    if not wrong:
        outside = {**backup.positions, **backup.starts}
        positions = {each: at for each, at in outside.items() if each.topic not in between}
        starts, ends = log.start_offsets(list(positions)), log.end_offsets(list(positions))
        wrong = [
            f"{each} has offsets {starts[each]} to {ends[each]}, and the backup continues at {at}"
            for each, at in positions.items()
            if not starts[each] <= at <= ends[each]
        ]
    if wrong:
        raise IncompatibleStateError(
            f"backup {backup.name} of application {backup.application_id!r} does not fit the log: {'; '.join(wrong)}. "
            "Nothing was changed"
        )


def _check_empty(plan: RestorePlan, application: Application, log: Log, world: World) -> None:
    """Raise IncompatibleStateError if something has the places that the restore writes to."""
    topics = log.topics()
    made = [*names_under(plan.backup, application.id).values(), *changelog_topics(plan, application)]
    existing = [
        TopicPartition(name, number) for name in made if name in topics for number in range(topics[name].partitions)
    ]
    starts, ends = log.start_offsets(existing), log.end_offsets(existing)
    used = sorted({each.topic for each in existing if ends[each] > starts[each]})
    if used:
        raise IncompatibleStateError(
            f"the internal topics {', '.join(used)} have records already: `penstock reset` deletes them, or restore "
            "under another id (--application-id)"
        )
    if application.settings.log_changelog is None:
        for task in plan.backup.commits:
            with closing(open_deltas(application.settings, application.id, task, world)) as changelog:
                if changelog.proven() or changelog.beginnings():
                    raise IncompatibleStateError(
                        f"the changelog {application.settings.shown('changelog')} has a history of task {task} of "
                        f"application {application.id!r}: `penstock reset` deletes it; or name another changelog or "
                        "application id"
                    )


def changelog_topics(plan: RestorePlan, application: Application) -> dict[str, tuple[str, int]]:
    """Return the changelog topics, with the store and the number of tasks of each; none for another changelog."""
    changelog = application.settings.log_changelog
    if changelog is None:
        return {}
    return {
        changelog.topic_of(application.id, store): (store, each["tasks"])
        for number, each in saved_subtopologies(plan.note).items()
        for store, kept in saved_layouts(plan.note, number).now.items()
        if kept.logged
    }


def restore_backup(
    application: Application,
    log: Log,
    plan: RestorePlan,
    check_lease: Callable[[], None] = lambda: None,
    *,
    world: World | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> list[str]:
    """Carry a plan out under the application's lease; return remarks.

    Until the end the application refuses to start. After an error, what was written is deleted; after a kill, the next
    restore does that. Raises ChangelogError that names a damaged file or a place that cannot be written, and LogError.
    """
    restoring = _Restoring(application, log, plan, world or World(), say)
    check_lease()
    notes.RESTORING.write(application.id, log, restoring.mark)
    try:
        if plan.is_repeated:
            restoring.clear()
        remark = delete_checkpoint(application.settings, application.id)
        positions = restoring.write(check_lease)
        check_lease()
        restoring.commit(positions)
    except PenstockError:
        with suppress(PenstockError):
            check_lease()
            restoring.clear()
            notes.RESTORING.take_back(application.id, log)
        raise
    return [each for each in (remark, *restoring.remarks) if each is not None]


def _written_since(plan: RestorePlan, log: Log) -> Iterator[str]:
    """Yield remarks on topics that have more than at the time of the backup: outputs, and intermediate topics."""
    before, topics = plan.backup.outputs, log.topics()
    there = [each for each in before if each.topic in topics and each.partition < topics[each.topic].partitions]
    ends = log.end_offsets(there)
    more = {each: f"{each} from {before[each]} to {ends[each]}" for each in there if ends[each] > before[each]}
    if more:
        yield f"outputs of the time since the backup are produced again: {', '.join(more.values())}"
    passed = [text for each, text in more.items() if each.topic in plan.backup.intermediate]
    if passed:
        yield (
            "so the application does not read what was written meanwhile to topics that it writes and reads: "
            f"{', '.join(passed)}; if others write there, too, send those records of theirs again"
        )


class _Restoring:
    def __init__(
        self, application: Application, log: Log, plan: RestorePlan, world: World, say: Callable[[str], object]
    ) -> None:
        self._application, self._log, self._plan, self._world, self._say = application, log, plan, world, say
        self._backup = plan.backup
        self.mark = f"{RESTORE_MARK}{plan.backup.name}"
        self._names = names_under(plan.backup, application.id)
        self.remarks: list[str] = []

    def clear(self) -> None:
        """Delete a restore's data, except the note that it has begun."""
        topics = self._log.topics()
        for name in (*self._names.values(), *changelog_topics(self._plan, self._application)):
            if name in topics:
                self._log.delete_topic(name)
        if self._application.settings.log_changelog is None:
            for task in self._backup.commits:
                with closing(open_deltas(self._application.settings, self._application.id, task)) as changelog:
                    changelog.world = self._world
                    changelog.destroy()
        self._log.delete_commits(self._application.id)
        notes.RESTORING.write(self._application.id, self._log, self.mark)

    def write(self, check_lease: Callable[[], None]) -> Mapping[TopicPartition, int]:
        """Write records and state, and commit that; return where what waited begins now, by former names."""
        self.remarks = list(_written_since(self._plan, self._log))
        positions = self._write_records()
        self._make_topics()
        # A task without a commit has to begin there, too.
        new = {each for each in positions.keys() - self._backup.positions.keys() if each.topic not in self._names}
        if new:
            self._log.set_positions(self._application.id, {each: positions[each] for each in new})
            notes.RESTORING.write(self._application.id, self._log, self.mark)  # it was deleted with the commits
        for task, commit in self._backup.commits.items():
            if commit is not None:
                check_lease()
                moved = {self._here(each): positions.get(each, at) for each, at in commit.positions.items()}
                self._write_state(task, replace(commit, positions=moved, engine_state=self._state(commit)))
                self._say(f"task {task} is restored")
        return positions

    def _here(self, partition: TopicPartition) -> TopicPartition:
        """Return a partition of the backup under the name of its topic here."""
        return TopicPartition(self._names.get(partition.topic, partition.topic), partition.partition)

    def _state(self, commit: Commit) -> bytes:
        """Return an engine state with the names of this application's topics."""
        state: dict[str, Any] = json.loads(without_ids(commit.engine_state) or b"{}")
        if times := state.get("partitions"):
            split = {name: name.rpartition(":") for name in times}
            state["partitions"] = {
                f"{self._names.get(split[name][0], split[name][0])}:{split[name][2]}": at for name, at in times.items()
            }
        return json.dumps(state, separators=(",", ":")).encode() if state else b""

    def _write_records(self) -> Mapping[TopicPartition, int]:
        """Make the repartition topics and write the waiting records; return their start offsets, by former names."""
        counts = self._backup.note["fingerprint"]["partitions"]
        before = [TopicPartition(topic, number) for topic in self._names for number in range(counts[topic])]
        now = {each: self._here(each) for each in before}
        topics = self._log.topics()
        for topic in self._names.values():
            if topic not in topics:
                count = self._plan.note["fingerprint"]["partitions"][topic]
                config = repartition_config(self._application, topic)
                self._log.create_topic(topic, count, config, internal=True)
        now |= {each: each for each in self._moved()}
        ends = self._log.end_offsets(list(now.values())) if now else {}
        if self._backup.in_transit is not None:
            named = {partition_name(each): found for each, found in now.items()}
            with closing(self._plan.catalog.changelog(IN_TRANSIT)) as kept:
                plan = kept.restore(self._backup.in_transit, None)
                rows = ((name, key, value or b"") for name, key, value in rows_of(plan) if name in named)
                for batch in batches_of(rows, named):
                    self._log.append(batch)
        return {each: ends[found] for each, found in now.items()}

    def _moved(self) -> Iterator[TopicPartition]:
        """Yield partitions of intermediate topics whose records of later are passed over: they are produced again."""
        backup, same = self._backup, self._plan.same_topics(self._log)
        read = {**backup.starts, **backup.positions}
        positions = {each: at for each, at in read.items() if each.topic in backup.intermediate}
        starts, ends = self._log.start_offsets(list(positions)), self._log.end_offsets(list(positions))
        for each, at in positions.items():
            if each.topic not in same or ends[each] != backup.outputs[each] or starts[each] > at:
                yield each

    def _make_topics(self) -> None:
        changelog, topics = self._application.settings.log_changelog, self._log.topics()
        program = self._application.program
        builders = {store.name: store for each in program.subtopologies for store in each.stores}
        for name, (store, tasks) in changelog_topics(self._plan, self._application).items():
            if name not in topics:
                assert changelog is not None
                builder = builders.get(store)
                config = (
                    changelog.topic_config
                    if builder is None
                    else changelog_config(self._application, changelog, builder, name)
                )
                self._log.create_topic(name, tasks, config, internal=True)

    def _write_state(self, task: str, commit: Commit) -> None:
        """Write the state of a task to its changelog, and commit it."""
        note, partitions = self._plan.note, task_partitions(self._plan.note)[task]
        layout, stores = saved_layouts(note, task.partition("_")[0]).now, stores_of(note, task)
        own = [store for store, kept in layout.items() if kept.logged]
        in_log = self._application.settings.log_changelog is not None
        rows: Iterable[Row] = ()
        with ExitStack() as stack:
            writer = stack.enter_context(
                task_writer(self._application, task, partitions, self._log, layout if stores else None, self._world)
            )
            if stores:
                saved = stack.enter_context(closing(self._plan.catalog.changelog(task)))
                state = stack.enter_context(StateReader(saved, commit.version, stores))
                rows = (row for row in state.rows() if row[0] in own or not in_log)
            writer.begin(rows, commit, version_counter(commit.version), id_of_version(commit.version))

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write the notes with which the application may start. `positions`: as `write` returned them."""
        application, log = self._application, self._log
        note = restored_note(self._plan, application.id, positions)
        committed = {self._here(each) for each in self._backup.positions}
        identity = note["identity"]
        CommittedPartitions(log, application.id, identity).add(committed)
        if application.settings.log_changelog is None:
            note_location(application, log, identity)
        notes.PROGRAM.write(application.id, log, note)
        notes.RESTORING.take_back(application.id, log)
