"""RestorePlan: which backup an application is restored from, and whether its log and its changelog are ready for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace

from penstock import Application, IncompatibleStateError, Log, TopicPartition, World
from penstock.plugins.engine.program.saved_program import (
    ProgramNote,
    read_note,
    repartition_topics,
    saved_layouts,
    saved_subtopologies,
)
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.locations import open_deltas
from penstock.plugins.engine.task.refusals import check_note

from .catalog import Backup, Catalog

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

    `of`: the id of the application that was backed up, if it is another one. `other_topics`: topics that were made
    again, or are in another log, have the same records at the same offsets. Raises ConfigError where there is no such
    backup, IncompatibleStateError where the application has state or positions, or where the topics do not fit.
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
    read = {each: at for commit in backup.commits.values() if commit for each, at in commit.positions.items()}
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
    """Raise IncompatibleStateError if the topics that the tasks read from outside are not as they were.

    Intermediate ones may have other records: those that waited there are in the backup.
    """
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
        positions = {each: at for commit in backup.commits.values() if commit for each, at in commit.positions.items()}
        positions = {each: at for each, at in {**positions, **backup.starts}.items() if each.topic not in between}
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
