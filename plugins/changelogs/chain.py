"""The chain of versions: which files lead to a version, found in one listing's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


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
