"""The chain of versions: which files lead to a version, found in one listing's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.log import Commit


class Delta(NamedTuple):
    """A delta: leads from `previous` (None: from nothing) to `version`, in `size` bytes."""

    version: str
    previous: str | None
    size: int


class Route(NamedTuple):
    """How to reach a version: from a copy or snapshot at `start` (None: from nothing) through `deltas`, in order.

    `missing` names the version for which there is neither delta nor snapshot; None when the path is complete.
    """

    start: str | None
    deltas: list[Delta]
    missing: str | None


def route_to(target: str, deltas: Mapping[str, Delta], stops: Iterable[str]) -> Route:
    """Walk back from `target` until one of `stops`, or the first version of all."""
    ends = frozenset(stops)
    steps: list[Delta] = []
    at: str | None = target
    seen = set()
    while at is not None and at not in ends:
        delta = deltas.get(at)
        if delta is None or at in seen:
            return Route(None, steps[::-1], at)
        seen.add(at)
        steps.append(delta)
        at = delta.previous
    return Route(at, steps[::-1], None)


def proven(deltas: Iterable[Delta], snapshots: Iterable[str]) -> set[str]:
    """Return the versions that a commit named: those that a delta follows, and those with a snapshot."""
    return {each.previous for each in deltas if each.previous is not None} | set(snapshots)


def latest_of(commits: Iterable[Commit], version: str) -> Commit | None:
    """Return the last made of those commits that name `version`; None if none does. Positions only grow while a version lasts."""
    named = [commit for commit in commits if commit.version == version]
    return max(named, key=lambda commit: sum(commit.positions.values()), default=None)
