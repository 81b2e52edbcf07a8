"""The chain of versions: which deltas lead to a version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock import Commit


class Delta(NamedTuple):
    """A delta of `size` bytes that leads from `previous` (None: the empty state) to `version`.

    Or `length` of them that follow each other in one file, which is `size` bytes from byte `start` of `file`.
    """

    version: str
    previous: str | None
    size: int
    file: str = ""
    start: int = 0
    length: int = 1


class Route(NamedTuple):
    """The way to a version: from a copy or snapshot at `start` (None: the empty state) through `deltas`, in order.

    `missing` names the version for which there is neither delta nor snapshot; None when the path is complete.
    """

    start: str | None
    deltas: list[Delta]
    missing: str | None


def route_to(target: str, find: Callable[[str], Delta | None], stops: Iterable[str]) -> Route:
    """Walk back from `target` until one of `stops`, or the first version of all.

    `find` returns the delta or snapshot that leads to a version. It does not lead past any of `stops`.
    """
    ends = frozenset(stops)
    steps: list[Delta] = []
    at: str | None = target
    seen = set()
    while at is not None and at not in ends:
        delta = None if at in seen else find(at)
        if delta is None:
            return Route(None, steps[::-1], at)
        seen.add(at)
        steps.append(delta)
        at = delta.previous
    return Route(at, steps[::-1], None)


def latest_of(commits: Iterable[Commit], version: str) -> Commit | None:
    """Return the latest commit of `version`, None if there is none: positions only grow while a version lasts."""
    named = [commit for commit in commits if commit.version == version]
    return max(named, key=lambda commit: sum(commit.positions.values()), default=None)
