"""Where an application's changelog is: noted in its log, and the state of every task moved when it changes."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from penstock.changelog import Restore, TaskChangelog
from penstock.errors import ChangelogError, ConfigError, IncompatibleStateError
from penstock.log import Commit, Log
from penstock.plugins.runtime.coverage import Coverage
from penstock.plugins.runtime.locations import open_changelog, resolve
from penstock.plugins.runtime.lost_commits import in_log
from penstock.program.assignment import Assignment
from penstock.program.nodes import TaskId
from penstock.settings.application import Application
from penstock.settings.secret import hide
from penstock.settings.settings import Settings

_META = "changelog"
_THREADS = 8


@dataclass(frozen=True)
class Moved:
    """What `move_changelog` did: the tasks whose state it copied, and those whose state was there already."""

    copied: tuple[str, ...]
    there: tuple[str, ...]


def check_location(application: Application, assignment: Assignment, log: Log, identity: str) -> None:
    """Note where the changelog is. Raises IncompatibleStateError when that has changed and a task's state cannot be reached there.

    Whoever calls holds the application's lease: to learn which versions are committed, it takes the fences of all tasks.
    """
    stateful = _stateful(application, assignment)
    if not stateful or in_log(application.settings):
        return
    now, before = _location(application.settings), _noted(application, log, identity)
    if now == before:
        return
    if before is not None:
        with ThreadPoolExecutor(_THREADS, "changelog-location") as pool:
            found = pool.map(lambda task: _missing(application, assignment, log, task), stateful)
            missing = [f"task {task} (version {version})" for task, version in zip(stateful, found) if version]
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise IncompatibleStateError(
                f"application {application.id!r} keeps its state's history in {before!r}, and its setting 'changelog' means {now!r} now, where the "
                f"state of {', '.join(missing[:3])}{more} is not: go back to the other place (a relative one is under `data_dir`), or copy it with "
                f"`penstock changelog move MODULE:ATTR --from {quote(before)}`"
            )
    log.put_meta(application.id, f"{_META}-{identity}", now.encode())


def keeps_state(application: Application, task: TaskId) -> bool:
    """Return whether a task has a changelog: it has stores, if only some that the program does not name any more."""
    subtopology = application.program.subtopology(task.subtopology)
    return bool(subtopology.stores or (subtopology.layouts and subtopology.layouts.now))


def move_changelog(
    application: Application,
    assignment: Assignment,
    log: Log,
    identity: str,
    source: str,
    check_lease: Callable[[], None],
    on_task: Callable[[str], None] = lambda task: None,
    *,
    gone_stores: Sequence[str],
) -> Moved:
    """Copy the committed state of every task from the changelog `source` (NAME:LOCATION) to the one in the application's settings.

    Whoever calls holds the application's lease. A task's state appears as a whole, and what is there is not copied again, so a move
    that was killed is repeated. `on_task` is called with each task copied. Raises ConfigError for a `source` that is none,
    ChangelogError when a state is not there either, IncompatibleStateError when there are `gone_stores` (`Prepared.gone_stores`), which
    would stay behind; nothing is deleted.
    """
    name = application.settings.changelog.partition(":")[0]
    from_settings = replace(application.settings, changelog=source)
    if source.partition(":")[0] != name or in_log(application.settings):
        raise ConfigError(
            f"--from {hide('changelog', source)!r}: expected another location of the changelog in force, which is "
            f"{hide('changelog', application.settings.changelog)!r}; state moves between places of one kind, and one that lives in the log stays there"
        )
    if gone_stores:
        raise IncompatibleStateError(
            f"application {application.id!r} has parked stores in sub-topologies that the program does not have: {', '.join(gone_stores)}. No task "
            "would copy them: move with the program that names them, or give up their content first (`penstock stores drop`)"
        )
    copied, there = [], []
    for task in _stateful(application, assignment):
        check_lease()
        commit = _committed(application, assignment, log, task)
        if commit is None:
            continue
        with closing(open_changelog(application.settings, application.id, str(task))) as target:
            if _reaches(target, commit.version):
                there.append(str(task))
                continue
            with closing(open_changelog(from_settings, application.id, str(task))) as origin, _Sorted() as rows:
                rows.take(origin.restore(commit.version, None))
                target.snapshot(commit.version, rows, commit)
            target.restore(commit.version, None)
        copied.append(str(task))
        on_task(str(task))
    check_lease()
    log.put_meta(application.id, f"{_META}-{identity}", _location(application.settings).encode())
    return Moved(tuple(copied), tuple(there))


def _location(settings: Settings) -> str:
    """Return the changelog as it is noted: its place in full, without secrets."""
    name, _, location = settings.changelog.partition(":")
    place = resolve(settings, location)
    shown: str = hide("changelog", f"{name}:{place if '://' in place else os.path.abspath(place)}")
    return shown


def _noted(application: Application, log: Log, identity: str) -> str | None:
    saved = log.get_meta(application.id, f"{_META}-{identity}")
    return None if saved is None else saved.decode()


def _stateful(application: Application, assignment: Assignment) -> list[TaskId]:
    return [task for task in assignment.tasks if keeps_state(application, task)]


def _committed(application: Application, assignment: Assignment, log: Log, task: TaskId) -> Commit | None:
    """Return the task's commit, None if the changelog has nothing of it: there is none, or it is of a program without stores there."""
    with closing(log.open_committer(application.id, str(task), assignment.tasks[task])) as committer:
        commit = committer.committed
    layouts = application.program.subtopology(task.subtopology).layouts
    if commit is None or (layouts is not None and not Coverage(layouts, commit.version).had_changelog):
        return None
    return commit


def _missing(application: Application, assignment: Assignment, log: Log, task: TaskId) -> str | None:
    """Return the committed version of a task if it cannot be reached."""
    commit = _committed(application, assignment, log, task)
    if commit is None:
        return None
    with closing(open_changelog(application.settings, application.id, str(task))) as changelog:
        return None if _reaches(changelog, commit.version) else commit.version


def _reaches(changelog: TaskChangelog, version: str) -> bool:
    try:
        changelog.restore(version, None)
    except ChangelogError:
        return False
    return True


class _Sorted:
    """The rows of a state in store and key order, from the steps that lead to it; on disk, for a state need not fit into memory."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-move-")
        self._rows = sqlite3.connect(Path(self._directory.name) / "rows", isolation_level=None)
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute("PRAGMA synchronous = OFF")
        self._rows.execute(
            "CREATE TABLE entry (store BLOB, key BLOB, value BLOB, PRIMARY KEY (store, key)) WITHOUT ROWID"
        )

    def __enter__(self) -> _Sorted:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.close()
        self._directory.cleanup()

    def take(self, plan: Restore) -> None:
        for changes, _ in plan.steps:
            for store, rows in changes.items():
                name = store.encode()
                self._rows.execute("BEGIN")
                self._rows.executemany(
                    "INSERT OR REPLACE INTO entry VALUES (?, ?, ?)",
                    ((name, key, value) for key, value in rows if value is not None),
                )
                self._rows.executemany(
                    "DELETE FROM entry WHERE store = ? AND key = ?",
                    ((name, key) for key, value in rows if value is None),
                )
                self._rows.execute("COMMIT")

    def __iter__(self) -> Iterator[tuple[str, bytes, bytes]]:
        for store, key, value in self._rows.execute("SELECT store, key, value FROM entry ORDER BY store, key"):
            yield store.decode(), bytes(key), bytes(value)
