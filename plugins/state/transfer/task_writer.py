"""TaskWriter: writes a task's committed state into a new history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from penstock import (
    Application,
    Commit,
    DeltaChangelog,
    Log,
    LogChangelog,
    TaskChangelog,
    TaskCommitter,
    TopicPartition,
    World,
    version_counter,
    version_name,
)
from penstock.plugins.engine.task.locations import open_changelog
from penstock.plugins.state.copies.state_reader import Portion, Row, portions
from penstock.store.kept_store import Layout

_DELTA_BYTES = 16 * 1024 * 1024
_TRANSACTION_BYTES = 4 * 1024 * 1024


class TaskWriter:
    """Writes a task's committed state to a changelog that its task does not use yet, or to that of a backup.

    Where `committer` is given, the commits that name the versions are made, too. Methods raise ChangelogError that
    names the place, StoreError, and LogError.
    """

    def __init__(self, changelog: TaskChangelog | None, world: World, committer: TaskCommitter | None = None) -> None:
        self._changelog, self._world, self._committer = changelog, world, committer
        if changelog is not None:
            changelog.world = world

    def write(self, rows: Iterable[Row], commit: Commit) -> None:
        """Write the whole state at the version of `commit`, as a snapshot; see that the changelog leads there."""
        changelog = self._deltas
        changelog.snapshot(commit.version, rows, commit)
        changelog.restore(commit.version, None)

    def append(self, rows: Iterable[tuple[str, bytes, bytes | None]], previous: str, commit: Commit) -> None:
        """Append the changes from the version `previous` to that of `commit`; a value of None deletes a row.

        Large changes are several deltas, under counters between the two versions, as far as there are some.
        """
        changelog, portion = self._deltas, Portion(_DELTA_BYTES)
        at, counter, last = previous, version_counter(previous) + 1, version_counter(commit.version)
        for store, key, value in rows:
            if portion.is_full and counter < last:
                # A name of its own: a file is named after its first delta, and another backup may follow on the same.
                reached = f"{counter:012d}-{self._world.token(8)}"
                changelog.append(portion.take(), at, reached)
                at, counter = reached, counter + 1
            portion.add(store, ((key, value),))
        changelog.append(portion.take(), at, commit.version, commit)
        changelog.restore(commit.version, None)

    def begin(self, rows: Iterable[Row], commit: Commit, counter: int, layout: str | None) -> Commit:
        """Write the whole state as the beginning of a history, and commit it; return the last commit.

        Its versions are of a new incarnation, with counters from `counter` on, and name the layout with this id.
        """
        committer, changelog, version = self._committer, self._changelog, None
        assert committer is not None
        if not isinstance(changelog, LogChangelog):
            commit = replace(commit, version=self._name(counter, None, layout))
            if changelog is not None:
                self.write(rows, commit)
            committer.commit(commit, [])
            return commit
        for number, changes in enumerate(portions(rows, _TRANSACTION_BYTES), counter):  # a transaction has a time-out
            version = self._name(number, version, layout) + changelog.version_suffix(version)
            commit = replace(commit, version=version)
            committer.commit(commit, changelog.records(changes))
        return commit

    def _name(self, counter: int, previous: str | None, layout: str | None) -> str:
        return version_name(counter, previous, self._world.token) + ("" if layout is None else f"_{layout}")

    @property
    def _deltas(self) -> DeltaChangelog:
        assert isinstance(self._changelog, DeltaChangelog)
        return self._changelog


@contextmanager
def task_writer(
    application: Application,
    task: str,
    partitions: Sequence[TopicPartition],
    log: Log,
    layout: Layout | None,
    world: World,
) -> Iterator[TaskWriter]:
    """Return the writer of a task's own changelog and commits, which has the task's fence during the block.

    `layout`: its stores; None for a task without a changelog.
    """
    with closing(log.open_lasting_committer(application.id, task, partitions)) as committer, ExitStack() as stack:
        changelog = None
        if layout is not None:
            changelog = open_changelog(application.settings, application.id, task, log, layout)
            stack.enter_context(closing(changelog))
        yield TaskWriter(changelog, world, committer)
