"""Upkeep: keeps the changelog of an open task short, in another thread, while the task processes and commits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from penstock import Commit, TaskCommitter, World

from ..local_state.content import StateContent
from ..local_state.task_state import TaskState

_LOOK_SECONDS = 5.0
_ASKED = 3

_log = logging.getLogger("penstock.worker")


class Upkept(NamedTuple):
    """The result of a step: its seconds, and the commit of which it wrote a snapshot, if it did."""

    seconds: float = 0.0
    commit: Commit | None = None


class Upkeep:
    """Looks now and then whether a snapshot is due; writes it, and deletes what nobody needs after it.

    The task's thread calls `next_step`; another thread runs the step that it returns. There is never more than one.
    """

    def __init__(self, state: TaskState, committer: TaskCommitter, grace_ms: int, world: World) -> None:
        self._state = state
        self._committer = committer
        self._grace_ms = grace_ms
        self._world = world
        self._look_at = 0.0
        self._is_due = self._has_ended = False
        self._content: StateContent | None = None
        self.holds_stores = False
        """Whether a step uses the stores, until `end_step`: nobody else may."""
        self._left_stores: Future[None] = Future()

    def next_step(self, commit: Commit) -> Callable[[], Upkept] | None:
        """Return the next step, for another thread; None if there is none. `commit` is the task's last one.

        Where the stores have no views, it reads the stores themselves: the task rests while it `holds_stores`.
        """
        if self._is_due:
            self._is_due = False
            self._content = self._state.content(commit)
            if self._content is not None:
                return partial(self._run, partial(self._write, self._content))
            self.holds_stores = True
            self._left_stores = Future()
            return partial(self._run, partial(self._maintain, commit))
        now = self._world.seconds()
        if now < self._look_at or not self._state.keeps_commits:
            return None
        self._look_at = now + _LOOK_SECONDS
        return partial(self._run, self._look)

    def end_step(self) -> None:
        """Note that the last step is over."""
        self.holds_stores = False

    def end(self) -> None:
        """End the step that runs, as soon as it can; it raises nothing."""
        self._has_ended = True
        if self._content is not None:
            self._content.end()
        if self.holds_stores:
            self._world.wait([self._left_stores])  # they are closed next

    # ------------------------------------------------------------------ in the other thread

    def _run(self, step: Callable[[], Commit | None]) -> Upkept:
        began = self._world.seconds()
        try:
            commit = step()
        except Exception as error:
            if not self._has_ended:
                raise
            _log.debug("task %s was closed in the middle of its upkeep: %s", self._state.task_id, error)
            commit = None
        return Upkept(self._world.seconds() - began, commit)

    def _look(self) -> None:
        self._is_due = not self._has_ended and self._state.upkeep.wants_snapshot(self._is_current)

    def _write(self, content: StateContent) -> Commit | None:
        version = content.commit.version
        try:
            if not self._state.upkeep.write_snapshot(version, content.rows(), content.commit):
                return None
        finally:
            content.close()
        self._state.upkeep.clean(version, self._grace_ms, self._world.clock.now_ms(), self._is_current)
        return content.commit

    def _maintain(self, commit: Commit) -> Commit | None:
        try:
            written = self._state.maintain_changelog(
                self._grace_ms, self._world.clock.now_ms(), commit, self._is_current
            )
            return commit if written else None
        finally:
            self._left_stores.set_result(None)

    def _is_current(self) -> bool:
        # While a commit of the task's own is being written, its committer may say no once.
        return any(not self._has_ended and self._committer.is_current() for _ in range(_ASKED))
