"""Notes in the log about the program that ran last under an id: its tasks, and where its changelog is."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from penstock import (
    Application,
    Assignment,
    ChangelogError,
    Commit,
    IncompatibleStateError,
    Log,
    Serde,
    Settings,
    TaskChangelog,
    TaskId,
    TopicPartition,
)
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.epoch import begin_epoch
from penstock.plugins.engine.task.local_state.backends import Coverage
from penstock.plugins.engine.task.locations import open_deltas, resolve
from penstock.plugins.engine.task.refusals import check_note
from penstock.program.layouts import Layouts, layout_from_data
from penstock.settings.secret import hide

_THREADS = 8


def check_location(application: Application, assignment: Assignment, log: Log, identity: str) -> None:
    """Note where the changelog is, and check that it has every task's state if that has changed.

    The caller holds the application's lease. The check takes the fences of all tasks, to see which versions are
    committed. Raises IncompatibleStateError for a state that is not there.
    """
    stateful = stateful_tasks(application, assignment)
    if not stateful or application.settings.log_changelog is not None:
        return
    before, now = noted_location(application.id, log, identity), shown_location(application.settings)
    if before == now:
        return
    if before is not None:
        begin_epoch(application.id, log)  # hosts that have the other place open no task from now on
        found = unreachable(application, assignment, log, stateful)
        if missing := [f"task {task} (version {version})" for task, version, _ in found]:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise IncompatibleStateError(
                f"application {application.id!r} keeps its state's history in {before!r}, and its setting 'changelog' "
                f"means {now!r} now, where the state of {', '.join(missing[:3])}{more} is not: go back to the other "
                "place (a relative one is under `data_dir`), or copy it with `penstock changelog move MODULE:ATTR "
                f"--from {quote(before)}`"
            )
    note_location(application, log, identity)


def moved_location(application: Application, assignment: Assignment, log: Log, identity: str) -> tuple[str, str] | None:
    """Return the recorded and the present location of the changelog; None if they are the same, or none is recorded."""
    if not stateful_tasks(application, assignment) or application.settings.log_changelog is not None:
        return None
    now, before = shown_location(application.settings), noted_location(application.id, log, identity)
    return None if before in (None, now) else (before, now)


def note_location(application: Application, log: Log, identity: str) -> None:
    """Record the changelog's location in the log."""
    notes.CHANGELOG.of(identity).write(application.id, log, shown_location(application.settings))


def keeps_state(application: Application, task: TaskId) -> bool:
    """Return whether a task has a changelog: it has stores, or parked ones that the program does not name any more."""
    subtopology = application.program.subtopology(task.subtopology)
    return bool(subtopology.stores or (subtopology.layouts and subtopology.layouts.now))


def stores_of(application: Application, task: TaskId) -> list[str]:
    """Return the names of the stores that a task's changelog may have, earlier ones included."""
    subtopology = application.program.subtopology(task.subtopology)
    layouts = subtopology.layouts or Layouts.of_program(subtopology.stores, application.settings.store_backend)
    return sorted({store for layout in (layouts.now, *layouts.earlier.values()) for store in layout})


def shown_location(settings: Settings) -> str:
    """Return the location of the changelog as recorded: absolute, without secrets."""
    name, _, location = settings.changelog.partition(":")
    place = resolve(settings, location)
    shown: str = hide("changelog", f"{name}:{place if '://' in place else os.path.abspath(place)}")
    return shown


def noted_location(application_id: str, log: Log, identity: str) -> str | None:
    """Return the last recorded location of the changelog; None if there is none, or the changelog is in the log."""
    return notes.CHANGELOG.of(identity).read(application_id, log) or None


def stateful_tasks(application: Application, assignment: Assignment) -> list[TaskId]:
    """Return the tasks that have a changelog."""
    return [task for task in assignment.tasks if keeps_state(application, task)]


def last_commit(application: Application, assignment: Assignment, log: Log, task: TaskId) -> Commit | None:
    """Return the task's last commit. It can be read by the process that has the task's fence, so this takes it."""
    with closing(log.open_committer(application.id, str(task), assignment.tasks[task])) as committer:
        return committer.committed


def committed_state(application: Application, assignment: Assignment, log: Log, task: TaskId) -> Commit | None:
    """Return the task's last commit if the changelog has its state, else None."""
    commit = last_commit(application, assignment, log, task)
    layouts = application.program.subtopology(task.subtopology).layouts
    if commit is None or (layouts is not None and not Coverage(layouts, commit.version).had_changelog):
        return None
    return commit


def unreachable(
    application: Application, assignment: Assignment, log: Log, tasks: Sequence[TaskId]
) -> list[tuple[TaskId, str, ChangelogError]]:
    """Return the tasks to whose committed versions the changelog does not lead, with these versions, and why."""

    def of(task: TaskId) -> tuple[TaskId, str, ChangelogError] | None:
        commit = committed_state(application, assignment, log, task)
        if commit is not None:
            with closing(open_deltas(application.settings, application.id, str(task))) as changelog:
                try:
                    changelog.restore(commit.version, None)
                except ChangelogError as error:
                    return task, commit.version, error
        return None

    with ThreadPoolExecutor(_THREADS, "changelog-location") as pool:
        return [each for each in pool.map(of, tasks) if each is not None]


def reaches(changelog: TaskChangelog, version: str) -> bool:
    """Return whether the changelog leads to a version."""
    try:
        changelog.restore(version, None)
    except ChangelogError:
        return False
    return True


ProgramNote = dict[str, Any]
"""The note of the program that ran last.

`identity`: the application's incarnation. `fingerprint`; `changelog`. `reads`: the topics of each sub-topology by their
names in the log. `layouts` by sub-topology. `parked`: parked stores. `gone`: sub-topologies of which only parked stores
are left. `lives`: how often each store was dropped.
"""


def saved_fingerprint(application_id: str, log: Log) -> Mapping[str, Any] | None:
    """Return the fingerprint of the program that ran last under this id, parked stores included; None if none did.

    Also that of an older version of penstock, so that it can be reset.
    """
    note: ProgramNote = notes.PROGRAM.read(application_id, log)
    return {**note["fingerprint"], "subtopologies": saved_subtopologies(note)} if note else None


def read_note(application_id: str, log: Log) -> ProgramNote:
    """Return the note of the program that ran last under this id; empty if none did.

    Raises IncompatibleStateError if another version of penstock saved it in a form that this one does not read.
    """
    note: ProgramNote = notes.PROGRAM.read(application_id, log)
    if note:
        check_note(application_id, note)
    return note


def is_same_program(note: ProgramNote, other: ProgramNote) -> bool:
    """Return whether two notes are of one program and incarnation; its second start writes some fields more."""
    return _compared(note) == _compared(other)


def _compared(note: ProgramNote) -> ProgramNote:
    layouts = {
        number: {**each, "earlier": {name: old for name, old in each["earlier"].items() if old != each["now"]}}
        for number, each in note.get("layouts", {}).items()
    }
    return {"parked": {}, "gone": {}, "whole_keys": [], **note, "layouts": layouts}


def saved_subtopologies(note: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the saved sub-topologies by number, with gone sub-topologies and parked stores."""
    found = deepcopy({**note.get("gone", {}), **note["fingerprint"]["subtopologies"]})
    for name, each in note.get("parked", {}).items():
        found[each["subtopology"]]["stores"][name] = each["store"]
    return found


def repartition_topics(application_id: str, note: ProgramNote) -> set[str]:
    """Return the internal topics of the saved program as the log names them; none if no program was saved."""
    return {f"{application_id}-{each}" for each in note["fingerprint"]["internal_topics"]} if note else set()


def gone_stores(note: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parked stores of sub-topologies that are gone."""
    gone = note.get("gone", {})
    return tuple(sorted(name for name, each in note.get("parked", {}).items() if each["subtopology"] in gone))


def drop_store(note: ProgramNote, number: str, name: str) -> None:
    """Change a note so that a store of this name starts afresh in the next program."""
    note.setdefault("lives", {})[name] = note.get("lives", {}).get(name, 0) + 1
    if note.get("parked", {}).pop(name, None) is None:
        del note["fingerprint"]["subtopologies"][number]["stores"][name]
    if not any(each["subtopology"] == number for each in note.get("parked", {}).values()):
        note.get("gone", {}).pop(number, None)


@dataclass(frozen=True)
class SavedTask:
    """A task with stores.

    `partitions`: its input partitions. `layouts`: the present and earlier layouts of its stores. `identity`: the
    application's incarnation in the log. `changelog`: where the history was when the application started last, without
    secrets; None if it is in the log. `count`: number of tasks of its sub-topology, which share the keys. `forms`: by
    store and field, the written forms of its serdes. `dropped`: stores that start empty with the next run.
    """

    id: str
    partitions: tuple[TopicPartition, ...]
    layouts: Layouts
    identity: str
    changelog: str | None
    count: int = 1
    forms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()

    def check_serdes(self, store: str, serdes: Mapping[str, Serde[Any]]) -> None:
        """Raise IncompatibleStateError where a program's serdes of a store do not fit what is saved, as a start does.

        They cannot read it, or write keys with other bytes, by which no row is found. `serdes` by field: `key_serde`
        and `value_serde`.
        """
        for name, form in self.forms.get(store, {}).items():
            if name not in serdes:
                continue
            if why := serdes[name].unreadable(form):
                raise IncompatibleStateError(
                    f"store {store!r} was written with {name} {why}: give the program that ran last"
                )
            if name == "key_serde" and (why := serdes[name].unfindable(form)):
                raise IncompatibleStateError(
                    f"store {store!r} was written with {name} {why}: its rows would not be found by their keys; give "
                    "the program that ran last"
                )


def saved_tasks(application_id: str, log: Log) -> Mapping[str, SavedTask]:
    """Return the tasks with stores of an application that has run, by id; none if it has not.

    Raises IncompatibleStateError if another version of penstock saved them in a form that this one does not read.
    """
    note = read_note(application_id, log)
    if not note:
        return {}
    changelog = noted_location(application_id, log, note["identity"])
    found, partitions = {}, task_partitions(note)
    counts = Counter(task.partition("_")[0] for task in partitions)
    for task, read in partitions.items():
        number = task.partition("_")[0]
        layouts = saved_layouts(note, number)
        if layouts.now:
            forms = written_forms(note["fingerprint"]["subtopologies"].get(number, {}).get("stores", {}))
            lives = note.get("lives", {})
            dropped = frozenset(name for name, kept in layouts.now.items() if kept.generation < lives.get(name, 0))
            found[task] = SavedTask(task, read, layouts, note["identity"], changelog, counts[number], forms, dropped)
    return found


def written_forms(stores: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """Return the written forms of the serdes of stores, from the fingerprint of their program."""
    fields = "key_serde", "value_serde"
    return {
        store: {name: each[name] for name in fields if each.get(name) is not None} for store, each in stores.items()
    }


def task_partitions(note: ProgramNote) -> Mapping[str, tuple[TopicPartition, ...]]:
    """Return the partitions that each task of the saved program reads, also those of tasks without stores."""
    found = {}
    for number, topics in sorted(note["reads"].items(), key=lambda each: int(each[0])):
        counts = {topic: note["fingerprint"]["partitions"][topic] for topic in topics}
        for partition in range(max(counts.values(), default=0)):
            read = tuple(TopicPartition(topic, partition) for topic in topics if partition < counts[topic])
            found[f"{number}_{partition}"] = read
    return found


def saved_layouts(note: ProgramNote, number: str) -> Layouts:
    """Return the present and earlier layouts of a sub-topology's stores."""
    saved = note["layouts"].get(number, {"now": {}, "earlier": {}})
    earlier = {name: layout_from_data(layout) for name, layout in saved["earlier"].items()}
    return Layouts(layout_from_data(saved["now"]), earlier)
