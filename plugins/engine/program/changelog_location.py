"""Where an application's changelog is: noted in its log, and checked when the setting `changelog` has changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from shlex import quote

from penstock import (
    Application,
    Assignment,
    ChangelogError,
    Commit,
    IncompatibleStateError,
    Log,
    Settings,
    TaskChangelog,
    TaskId,
)
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.epoch import begin_epoch
from penstock.plugins.engine.task.local_state.backends import Coverage
from penstock.plugins.engine.task.locations import open_deltas, resolve
from penstock.program.layouts import Layouts
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
    """Return where the changelog was, and where it is now; None if that is the same, or nothing is noted."""
    if not stateful_tasks(application, assignment) or application.settings.log_changelog is not None:
        return None
    now, before = shown_location(application.settings), noted_location(application.id, log, identity)
    return None if before in (None, now) else (before, now)


def note_location(application: Application, log: Log, identity: str) -> None:
    """Note in the log where the changelog is now."""
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
    """Return the changelog as it is noted: the absolute location, without secrets."""
    name, _, location = settings.changelog.partition(":")
    place = resolve(settings, location)
    shown: str = hide("changelog", f"{name}:{place if '://' in place else os.path.abspath(place)}")
    return shown


def noted_location(application_id: str, log: Log, identity: str) -> str | None:
    """Return the changelog as it was noted last, without secrets; None if it never was, or is in the log."""
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
