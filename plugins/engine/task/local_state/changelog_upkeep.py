"""ChangelogUpkeep: keeps one task's changelog of deltas short, by snapshots, and by deleting what they replace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from penstock import ChangelogError, Commit, DeltaChangelog, StaleStoreError, World

_AGAIN_SECONDS = 60.0
"""After so long upkeep that failed is tried again."""

_log = logging.getLogger("penstock.state")


class ChangelogUpkeep:
    """Writes snapshots and cleans. Any thread may call all methods. `deltas` None: the task has no such changelog.

    A snapshot that cannot be written, or files that cannot be deleted, are no reason to end the task: its state is in
    the deltas, and a commit that cannot write its delta fails by itself. So a ChangelogError is a warning here, and a
    minute passes until the next try.
    """

    def __init__(self, task_id: str, deltas: DeltaChangelog | None, world: World) -> None:
        self._task_id = task_id
        self._deltas = deltas
        self._world = world
        self._rests_until = 0.0

    def wants_snapshot(self, is_current: Callable[[], bool]) -> bool:
        """Return whether a snapshot is due and `is_current` returns True."""
        wanted = False
        if self._deltas is not None and self._world.seconds() >= self._rests_until:
            with self._failing_later("whether a snapshot is due is not known"):
                wanted = self._deltas.wants_snapshot() and is_current()
        return wanted

    def write_snapshot(self, version: str, rows: Iterable[tuple[str, bytes, bytes]], commit: Commit | None) -> bool:
        """Write a snapshot of `version`, which has these rows of (store, key, value); return whether it was written."""
        assert self._deltas is not None
        is_written = False
        with self._failing_later(f"a snapshot of version {version} cannot be written"):
            try:
                self._deltas.snapshot(version, rows, commit)
                is_written = True
            except StaleStoreError as error:
                _log.info("task %s: no snapshot: %s", self._task_id, error)
        return is_written

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        """Delete history that `version` and later versions do not need, while `is_current` returns True."""
        # Ask here as well: writing the snapshot may have taken long.
        if self._deltas is not None and is_current():
            with self._failing_later("history that is not needed cannot be deleted"):
                self._deltas.clean(version, grace_ms, now_ms, is_current)

    @contextmanager
    def _failing_later(self, what: str) -> Iterator[None]:
        try:
            yield
        except ChangelogError as error:
            self._rests_until = self._world.seconds() + _AGAIN_SECONDS
            _log.warning(
                "task %s: %s: %s. Nothing is lost, and the changelog grows; it is tried again in a minute",
                self._task_id, what, error,
            )  # fmt: skip
