"""LogHistory: reads a changelog in topics of the log, while its task goes on writing there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from penstock import LogChangelog, Restore, TaskChangelog
from penstock.changelog import RESTORING
from penstock.store import Change, Changes
from penstock.store.backend import in_key_order

_BEHIND = "behind:"
"""How the name of a copy begins that has everything up to a version, and some of what came after it."""
_PORTION_BYTES = 16 * 1024 * 1024
"""So much of what was read is in memory at most, before it is written to the copy."""
_ROW_BYTES = 100
"""What a row takes in memory beside its key and value."""


class OvertakenError(Exception):
    """The task has committed while its changelog was read: read on to that commit."""


class _Kept(NamedTuple):
    """Rows that a copy at `have` lacks to be at `reached` or later; they were read, and are not written."""

    have: str | None
    reached: str
    rows: dict[str, dict[bytes, bytes | None]]


class LogHistory(TaskChangelog):
    """Brings copies to a version of a task that may commit meanwhile. A task reads its own topics behind its fence.

    The topics have the records of all versions, one after the other, and the log compacts them at any time. So a copy
    is at `target` only if the task has made no later commit by the time at which everything was read: `is_last` says
    so. Otherwise `steps` raises OvertakenError, and the next `restore` reads on from there. What was read stays in
    memory until then, and the copy as it is. If that gets too much, it is written, and the name of the copy begins with
    `_BEHIND`: it may be read on, and shows no version.
    """

    def __init__(self, below: LogChangelog, is_last: Callable[[str], bool]) -> None:
        self._below = below
        self._is_last = is_last
        self._kept: _Kept | None = None

    def restore(self, target: str, have: str | None) -> Restore:
        kept, self._kept = self._kept, None
        known = None if have is None else have.removeprefix(_BEHIND)
        if kept is not None and kept.have == have:
            plan = self._below.restore(target, kept.reached)
            if plan.base is not None:
                return Restore(have, self._steps(plan, target, have, kept.rows), plan.work)
        plan = self._below.restore(target, known)
        base = None if plan.base is None else have
        return Restore(base, self._steps(plan, target, base, {}), plan.work)

    def _steps(
        self, plan: Restore, target: str, base: str | None, rows: dict[str, dict[bytes, bytes | None]]
    ) -> Iterator[tuple[Changes, str]]:
        on_the_way = f"{RESTORING}{target}" if base is None else f"{_BEHIND}{base.removeprefix(_BEHIND)}"
        size, has_written = sum(_size(changed.items()) for changed in rows.values()), False
        for changes, _ in plan.steps:
            for store, changed in changes.items():
                rows.setdefault(store, {}).update(changed)
                size += _size(changed)
            if size >= _PORTION_BYTES:
                yield _sorted(rows), on_the_way
                rows, size, has_written = {}, 0, True
        if self._is_last(target):
            yield _sorted(rows), target
            return
        if has_written:
            yield _sorted(rows), f"{_BEHIND}{target}"
        else:
            self._kept = _Kept(base, target, rows)
        raise OvertakenError

    def close(self) -> None:
        self._below.close()


def _size(rows: Iterable[Change]) -> int:
    return sum(len(key) + len(value or b"") + _ROW_BYTES for key, value in rows)


def _sorted(rows: dict[str, dict[bytes, bytes | None]]) -> Changes:
    return {store: in_key_order(changed) for store, changed in rows.items()}
