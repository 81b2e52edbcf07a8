"""Rests: how long planner and runner wait while there is nothing to do; the longer it is quiet, the longer."""

from __future__ import annotations

from collections.abc import Callable

from .control import Orders

SHORTEST_REST, LONGEST_REST = 0.005, 1.0
_SHARE = 20
"""A rest is at most this part of the quiet time before it: what comes then is late by a twentieth of it."""
_WORK_SHARE = 50
"""A rest is at least so many times as long as a look at the log takes, so that looking costs 2 % of a core at most."""
_MOST_SECONDS = 2.0
_TURN_SECONDS, _TURNS = 0.05, 5
"""How long a rest waits between two looks at the control file at least, and how often a long rest looks at it."""


def rest_seconds(
    quiet: float, look: float = 0.0, shortest: float = SHORTEST_REST, longest: float = LONGEST_REST
) -> float:
    """Return for how long to rest after `quiet` seconds without work, where a look at the log takes `look` seconds."""
    return max(shortest, min(longest, quiet / _SHARE), min(_MOST_SECONDS, quiet / _SHARE, _WORK_SHARE * look))


class Rests:
    """The planner's rests. `wait` waits, and `seconds` is a clock that never goes back.

    `shortest`: the least length (seconds) of a rest. A change of the control file ends a rest early.
    """

    def __init__(
        self,
        control: Orders,
        wait: Callable[[float], object],
        seconds: Callable[[], float],
        shortest: float = SHORTEST_REST,
    ) -> None:
        self._control = control
        self._wait = wait
        self._seconds = seconds
        self._shortest = shortest
        self._quiet_since: float | None = None

    def rest(self, look: float, due_in_ms: int | None) -> None:
        """Wait, at most until the control file changes or `due_in_ms` is over. `look`: seconds that a look takes."""
        now = self._seconds()
        if self._quiet_since is None:
            self._quiet_since = now
        usual = rest_seconds(now - self._quiet_since, look)
        left = max(usual, self._shortest)
        if due_in_ms is not None:
            left = min(left, max(0.001, due_in_ms / 1000))
        turn = max(_TURN_SECONDS, min(usual, left) / _TURNS)
        while left > 0 and not self._control.has_changed():
            self._wait(min(left, turn))
            left -= turn

    def end(self) -> None:
        """Note that there is work."""
        self._quiet_since = None
