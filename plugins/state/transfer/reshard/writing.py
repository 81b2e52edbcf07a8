"""Writes the tasks of a new layout: their history in the changelog, and their first commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from penstock import (
    Application,
    ChangelogError,
    Commit,
    DeltaChangelog,
    Log,
    LogChangelog,
    TaskId,
    TopicPartition,
    World,
)
from penstock.plugins.engine.task.local_state.task_state import TaskState
from penstock.plugins.engine.task.locations import open_changelog
from penstock.program.layouts import Layouts
from penstock.store import Change

from .splitting import SplitState

_Row = tuple[str, bytes, bytes]
_PORTION_BYTES = 4 * 1024 * 1024
_ROW_BYTES = 100


class NewTask:
    """One task of the new layout, before its application runs: its state and its commit are written and verified."""

    def __init__(
        self,
        application: Application,
        task: TaskId,
        partitions: Sequence[TopicPartition],
        log: Log,
        directory: Path,
        world: World,
    ) -> None:
        self._application = application
        self._task = task
        self._partitions = partitions
        self._log = log
        self._directory = directory
        self._world = world
        layouts = application.program.subtopology(task.subtopology).layouts
        assert layouts is not None
        self._layouts: Layouts = layouts

    def write(self, first: Commit, split: SplitState) -> None:
        """Make the commits that lead from the empty state to its own, with positions and engine state of `first`.

        Raises ChangelogError and LogError; what is written then counts for nothing, for the application is not there.
        """
        log, application = self._log, self._application
        changelog = None
        if self._layouts.now:
            changelog = open_changelog(application.settings, application.id, str(self._task), log, self._layouts.now)
        with closing(log.open_lasting_committer(application.id, str(self._task), self._partitions)) as committer:
            state = TaskState(application, self._task, self._directory, changelog, self._layouts, world=self._world)
            with closing(state):
                version = state.new_version(None)
                state.append_delta({}, version, _at(first, version))
                committer.commit(_at(first, version), [])
                if isinstance(changelog, DeltaChangelog):
                    version = state.new_version(version)
                    changelog.snapshot(version, split.rows(self._task.partition), _at(first, version))
                    committer.commit(_at(first, version), [])
                elif isinstance(changelog, LogChangelog):
                    for portion in _portions(split.rows(self._task.partition)):  # a transaction has a time-out
                        version = state.new_version(version)
                        committer.commit(_at(first, version), changelog.records(portion))

    def verify(self, split: SplitState) -> int:
        """Restore the task from its changelog, and compare it with its state; return how many rows it has.

        Raises ChangelogError for a row that is missing, wrong or too many.
        """
        if not self._layouts.now:
            return 0
        log, application = self._log, self._application
        commit = log.last_commit(application.id, str(self._task), self._partitions)
        if commit is None:
            raise ChangelogError(
                f"application {application.id!r}, task {self._task}: the commit that was written is gone: another "
                "process has deleted this layout, and goes on in place of this one"
            )
        changelog = open_changelog(application.settings, application.id, str(self._task), log, self._layouts.now)
        changelog.world = self._world
        with closing(changelog):
            found = 0
            for changes, _ in changelog.restore(commit.version, None).steps:
                for store, entries in changes.items():
                    for row, data in entries:
                        found += 1
                        if split.get(self._task.partition, store, row) != data:
                            raise self._wrong(store, row)
        wanted = sum(1 for _ in split.rows(self._task.partition))
        if found != wanted:
            raise ChangelogError(
                f"application {application.id!r}, task {self._task}: its changelog has {found} rows, and {wanted} were "
                "written: the new layout is not used; run this again"
            )
        return found

    def _wrong(self, store: str, row: bytes) -> ChangelogError:
        return ChangelogError(
            f"application {self._application.id!r}, task {self._task}, store {store!r}: its changelog has another row "
            f"{row[:40]!r} than was written: the new layout is not used; run this again"
        )


def _at(commit: Commit, version: str) -> Commit:
    return Commit(commit.positions, version, commit.engine_state)


def _portions(rows: Iterable[_Row]) -> Iterator[dict[str, list[Change]]]:
    portion: dict[str, list[Change]] = {}
    size = 0
    for store, row, data in rows:
        portion.setdefault(store, []).append((row, data))
        size += len(row) + len(data) + _ROW_BYTES
        if size >= _PORTION_BYTES:
            yield portion
            portion, size = {}, 0
    if portion:
        yield portion
