"""The chain of versions: which deltas lead to a version, from the names of one listing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.log import Commit


class Delta(NamedTuple):
    """A delta of `size` bytes that leads from `previous` (None: the empty state) to `version`."""

    version: str
    previous: str | None
    size: int


class Route(NamedTuple):
    """The way to a version: from a copy or snapshot at `start` (None: the empty state) through `deltas`, in order.

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
    """Return the latest commit of `version`, None if there is none: positions only grow while a version lasts."""
    named = [commit for commit in commits if commit.version == version]
    return max(named, key=lambda commit: sum(commit.positions.values()), default=None)
