"""The changelog interface: what a task's state was at each commit, kept where any host can read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..log import Commit
from ..record import OutputBatch
from ..store import Changes


def version_counter(version: str) -> int:
    """Return the counter that a version's name begins with: how many versions came before it in its chain."""
    return int(version.partition("-")[0])


@dataclass(frozen=True)
class Restore:
    """How to bring a copy of the state to a version.

    `base` is the version at which the copy must be before the first step (None: a fresh, empty store). `steps` are
    (changes, version after them), in order; the last one ends in the target. Each version on the way is one of the
    chain. Between the parts of a snapshot it is a name that no chain contains: a copy that crashed there is at no known
    version, and is restored afresh. Iterating over `steps` raises ChangelogError, naming the file, for a damaged one;
    the copy is then at the version of the step before. `total_bytes` is about how much `steps` will read.
    """

    base: str | None
    steps: Iterator[tuple[Changes, str]]
    total_bytes: int = 0


class TaskChangelog(ABC):
    """The changelog of one task. Called from one thread, but one that has been opened may be called from two.

    Then one thread calls `wants_snapshot`, `snapshot` and `clean`, with a version that the other one has appended and
    that was committed, and the other one goes on to call `version_suffix`, `append` and `records`.

    Versions form a chain: every delta names the version it follows, and the first one (usually without changes) follows
    None. A version's name is its counter (`version_counter`: one more than that of the version it follows), "-", and
    something random. A name is never written twice, so a delta of an attempt that failed is an orphan that no chain
    contains. `penstock.plugins.testing.contracts.changelog` holds the tests that any implementation must pass.
    """

    @abstractmethod
    def append(self, changes: Changes, previous: str | None, version: str, commit: Commit | None = None) -> None:
        """Make one delta durable; it counts only once the log's commit names `version`.

        `version` and `previous` are letters, digits, '-' and '_'; `previous` is None for the first version of all.
        `commit` is kept beside the changes, for `kept`: the task's last commit, whose version is `previous`; for the
        first version of all the commit that will name it.

        Raises ChangelogError, naming the location, when it cannot; then nothing was committed.
        """

    def version_suffix(self, previous: str | None) -> str:
        """Return the end of the name of the version after `previous`: "", or "-" and letters, digits, '-' and '_'."""
        return ""

    def records(self, changes: Changes) -> list[OutputBatch]:
        """Return records of the log that are part of the delta just appended, for the commit that names its version.

        For a changelog that is part of the log. The others return none.
        """
        return []

    @abstractmethod
    def restore(self, target: str, have: str | None) -> Restore:
        """Plan how to bring a copy that is at `have` to `target`.

        When `have` is not an ancestor of `target`, the plan starts afresh (base None). Raises ChangelogError that
        names the missing or damaged files when the chain to `target` is broken: never a partial plan.
        """

    @abstractmethod
    def snapshot(self, version: str, changes: Iterable[tuple[str, bytes, bytes]], commit: Commit | None = None) -> None:
        """Write the whole state at `version`, so that restore starts there; no delta need lead to `version`.

        `changes` are (store, key, value) in store and key order; each is read once, while the snapshot is written. If
        that raises, no snapshot was written, and the error is passed on. `commit`, the last one that named `version`,
        is kept beside them.
        """

    def begin(self, stores: Collection[str], entries: Iterable[tuple[str, bytes, bytes]]) -> list[OutputBatch]:
        """Return records of the log after which the history of `stores` is their content, `entries`, and nothing older.

        For a changelog that is part of the log, which may have entries of an earlier store of the same name. The others
        return none: their history of a store begins with a snapshot, or empty.
        """
        return []

    def proven(self) -> set[str]:
        """Return the versions that a commit certainly named: those that a delta follows, and those with a snapshot.

        The newest delta is no proof: its commit may have failed. Empty for a changelog that is part of the log.
        """
        return set()

    def beginnings(self) -> set[str]:
        """Return the versions that follow None; more than one where first commits failed."""
        return set()

    def kept(self, version: str) -> Commit | None:
        """Return the latest commit of `version` that `append` or `snapshot` kept; None if there is none."""
        return None

    @abstractmethod
    def wants_snapshot(self) -> bool:
        """Return whether the deltas have outgrown the last snapshot, or a snapshot would mend a gap in the chain."""

    @abstractmethod
    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        """Delete what `version` does not need: deltas and snapshots with a lower counter, once older than `grace_ms`.

        The process may freeze at any point of this call, also after `is_current` returned, while a successor commits,
        snapshots and cleans. So a delta or a snapshot whose counter is not lower stays, however old it is; only the
        delta to `version` may go, in one file with those before it. List the files, then call `is_current` (it may ask
        the log, and raises what that raises), then delete only what was listed; delete nothing if it returns False.
        """

    @abstractmethod
    def destroy(self) -> None:
        """Delete everything that the task's changelog has; idempotent.

        Afterwards no version is known, and a new chain may begin. A process that is killed during the call leaves files
        that no later chain contains. Raises ChangelogError, naming the location, when it cannot.
        """

    def check_commit_interval(self, seconds: float) -> None:
        """Raise ConfigError, with the reason, when commits cannot follow each other every `seconds` here.

        It may write to the changelog's place to measure that. For a changelog without this method nothing is too fast.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""


class Changelog(Protocol):
    """What the name of a changelog stands for: opens the changelog of a task at a location.

    One with an attribute `in_log` that is true is also given `log`, the application's log, and `stores`: the task's
    logged stores, as a `penstock.program.layouts.Layout`. It has `topic_of(application_id, store)`, which returns the
    name of a store's topic, and `topic_config`, the settings that these topics are created with.
    """

    def __call__(self, location: str, application_id: str, task_id: str) -> TaskChangelog:
        """Open; `location` is what the application's `changelog` setting says after its name."""
        ...
