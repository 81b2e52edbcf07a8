"""DeltaChangelog: the interface of a changelog in a place of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol

from ..log import Commit
from ..store import Changes
from .changelog import TaskChangelog


class DeltaChangelog(TaskChangelog):
    """A changelog that keeps deltas and snapshots in a place of its own, such as a directory.

    A delta is written before the commit that names its version. Every delta names the version that it follows, and the
    first one (usually without changes) follows None. `restore` starts at `have` wherever the deltas lead from there to
    the target, also if there is a snapshot in between. `penstock.testing.contracts` has the tests
    that any implementation must pass.

    One thread calls all methods. After opening, a second one may call `wants_snapshot`, `snapshot` and `clean`, with a
    version that the first one has appended and that was committed, while the first one calls `append`.
    """

    @abstractmethod
    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        """Make one delta durable; it counts only once the log's commit names `version`.

        `previous` is None for the first version of all. `commit` is kept beside the changes, for `kept`: the task's
        last commit, whose version is `previous`; for the first version of all the commit that will name it.

        Raises ChangelogError, naming the location, when it cannot; then nothing was committed.
        """

    @abstractmethod
    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        """Write the whole state at `version`, so that restore starts there; no delta need lead to `version`.

        `changes` are (store, key, value) in store and key order; each is read once, while the snapshot is written. If
        that raises, no snapshot was written, and the error is passed on. `commit`, the last one that named `version`,
        is kept beside them.
        """

    @abstractmethod
    def proven(self) -> set[str]:
        """Return the versions that a commit certainly named: those with a snapshot, and those that a delta follows.

        The newest delta is no proof: its commit may have failed. Neither is a delta whose predecessor is missing: a
        host that was frozen while `destroy` ran may append one afterwards.
        """

    @abstractmethod
    def beginnings(self) -> set[str]:
        """Return the versions that follow None; more than one where first commits failed."""

    @abstractmethod
    def kept(self, version: str) -> Commit | None:
        """Return the latest commit of `version` that `append` or `snapshot` stored; None if there is none.

        The latest commit has the highest positions: while a version lasts, positions only grow.
        """

    @abstractmethod
    def wants_snapshot(self) -> bool:
        """Return whether a snapshot is due: the deltas have outgrown the last one, or the chain has a gap."""

    @abstractmethod
    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        """Delete what `version` does not need: deltas and snapshots with a lower counter, once older than `grace_ms`.

        The process may freeze at any point of this call, also after `is_current` returned, while a successor commits,
        snapshots and cleans. So a delta or a snapshot whose counter is not lower stays, however old it is; only the
        delta to `version` may go, in one file with those before it. List the files, then call `is_current` (it may ask
        the log, and raises the log's errors), then delete listed files only; delete nothing if it returns False.
        """

    def sync(self) -> None:
        """Make all files durable against a crash of the machine, also files of a process that was killed."""

    @abstractmethod
    def destroy(self) -> None:
        """Delete everything that the task's changelog has; idempotent.

        Afterwards no version is known, and a new chain may begin. A process that is killed during the call leaves files
        that no later chain contains. Raises ChangelogError, naming the location, when it cannot.
        """

    def least_commit_interval(self) -> float:
        """Return the minimum seconds between two commits at which a task spends at most half of its time here.

        It may write to the changelog's place to measure that. By default there is no minimum. Raises ChangelogError.
        """
        return 0.0


class Changelog(Protocol):
    """Opens the changelog of a task in a place of its own: a class derived from `DeltaChangelog`, or a function."""

    def __call__(self, location: str, application_id: str, task_id: str) -> DeltaChangelog:
        """Open; `location` is what the application's `changelog` setting says after its name."""
        ...
