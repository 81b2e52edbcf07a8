"""Helpers of all parts of `ChangelogContract`: opening a changelog, and restoring what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from penstock import Changelog, Commit, DeltaChangelog, SystemClock, TaskChangelog, TopicPartition

from . import changelog_children
from .child import CleanChildren, children_for
from .expectations import expect
from .histories import State, applied

_DAY_MS = 24 * 60 * 60 * 1000


class ChangelogTests:
    """The settings of `ChangelogContract`."""

    changelog: Changelog
    """Opens the changelog of a task: its class, or a `staticmethod`. Other processes import it."""
    in_one_process: ClassVar[bool] = False
    """Whether the changelog ends with the process; tests that need a second process are then skipped."""

    def location(self, directory: Path) -> str:
        """Return the location to open in a test that may use the empty `directory`; by default its path."""
        return str(directory)

    def open(self, directory: Path) -> DeltaChangelog:
        """Open the changelog of one task."""
        return type(self).changelog(self.location(directory), "application", "0_0")

    def children(self) -> CleanChildren:
        """Return what starts processes that have never used the changelog; skip the test where they do not see it."""
        if self.in_one_process:
            pytest.skip("this changelog has no other processes")
        return children_for(str(type(self).changelog.__module__), changelog_children.__name__)


def commit_of(version: str, position: int) -> Commit:
    """Return a commit of a version, with that position in one of two inputs."""
    return Commit({TopicPartition("in", 3): position, TopicPartition("other", 3): 7}, version, b"%d" % position)


def append_each(log: DeltaChangelog, previous: str | None, *versions: str) -> None:
    """Append a delta for each version, which sets one key to the version's name."""
    for version in versions:
        log.append({"s": [(b"key", version.encode())]}, previous, version)
        previous = version


def clean(
    log: DeltaChangelog,
    version: str,
    is_current: Callable[[], bool] = lambda: True,
    *,
    grace_ms: int = 60_000,
    days: Sequence[int] = (1, 2),
) -> None:
    """Clean so many days from now: files that one call finds useless may be deleted by the next only."""
    now_ms = SystemClock().now_ms()
    for each in days:
        log.clean(version, grace_ms, now_ms + each * _DAY_MS, is_current)


def failing(entries: Sequence[tuple[str, bytes, bytes]]) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield a store's entries until it fails."""
    yield from entries
    raise RuntimeError("the store went away")


def restored(log: TaskChangelog, target: str, have: str | None, known: Mapping[str, State]) -> State:
    """Return the state that `log` restores at `target` for a copy at `have`, whose state `known` has.

    Asserts what a plan must keep: where it starts, that it ends in `target`, that each step on the way is in key
    order and leads to the state that `known` has for its version, or to a version that `known` does not have.
    """
    plan = log.restore(target, have)
    assert plan.base in (None, have), f"a plan for a copy at {have!r} starts at {plan.base!r}"
    at = plan.base
    state: State = {} if at is None else known[at]
    for changes, version in plan.steps:
        for rows in changes.values():
            keys = [key for key, _ in rows]
            assert keys == sorted(set(keys)), "changes of a step must be in key order, each key once"
        state = applied(state, changes)
        assert version != at, "a step must lead to another version"
        at = version
        if version in known:
            expect(filled(state), filled(known[version]), f"the state at {version} on the way to {target} from {have}")
    expect(at, target, f"the version that the steps of a restore to {target} end in")
    return filled(state)


def filled(state: State) -> State:
    """Return a state without stores that have no entries."""
    return {store: rows for store, rows in state.items() if rows}
