"""LastSeen: the ages of a task's versions, as seen by a process that follows the task."""

from __future__ import annotations

from collections.abc import Callable

from penstock import Commit, World

_MOST_VERSIONS = 100
"""Maximum number of stored versions: the ones last recorded or asked for."""


class LastSeen:
    """When versions of one task were its last ones, for `LogChangelog.last_seen`; one thread at a time uses it.

    A version has one place in the history, so this holds whatever becomes of a copy at it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[str, tuple[float, int]] = {}

    def ask(self, last_commit: Callable[[], Commit | None]) -> Commit | None:
        """Return the last commit, as `last_commit` finds it in the log, and note its version.

        The time is that before the call: the process may be frozen behind the answer.
        """
        asked = self._world.seconds(), self._world.clock.now_ms()
        commit = last_commit()
        if commit is not None:
            self._seen.pop(commit.version, None)
            self._seen[commit.version] = asked
            if len(self._seen) > _MOST_VERSIONS:
                del self._seen[next(iter(self._seen))]
        return commit

    def seconds_ago(self, version: str) -> float | None:
        """Return the seconds since a version was certainly the last one; None if that was never seen.

        The stopwatch stops while the machine is suspended, and the clock may be set back: the longer time counts.
        """
        asked = self._seen.pop(version, None)
        if asked is None:
            return None
        self._seen[version] = asked
        seconds, now_ms = asked
        return max(self._world.seconds() - seconds, (self._world.clock.now_ms() - now_ms) / 1000)
