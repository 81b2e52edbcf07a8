"""Faults: what strikes hosts in the middle of what they do, at their operations on the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from penstock import LogError

from .failure import HostDied, SimulatedOutage, SimulationFailure
from .host import Host
from .timeline import Timeline

_FUSE = 120
"""The most operations from one fault to the next. One that changes the log counts as `_CHANGE` of them."""
_CHANGE = 8
_DEEPEST = 2
"""The most hosts that are frozen in the middle of something at a time."""
_LONGEST_FREEZE = 25
"""The most steps of other hosts while one is frozen."""


class Faults:
    """Dying, freezing and losing the log, before and after each operation of a host; `step` lets other hosts go on.

    A frozen host's call waits in the middle of the operation, while the steps of other hosts run inside it. So the one
    that froze last wakes first.
    """

    def __init__(self, random: Random, timeline: Timeline, step: Callable[[], None]) -> None:
        self._random = random
        self._timeline = timeline
        self._step = step
        self._fuse = 1 + random.randrange(_FUSE)
        self._depth = 0
        self.strike = False
        """Whether faults strike now."""
        self.failure: SimulationFailure | None = None
        """What failed while a host was frozen."""
        self.counts = Counter[str]()
        """How often each fault struck, by what it is and where."""

    def edge(self, host: Host, what: str, call: Callable[[], Any], changes: bool) -> Any:
        """Do an operation (`call`) of a host on the log, unless a fault strikes; `changes`: it changes the log.

        Raises HostDied where the host dies, and LogError where it loses the log.
        """
        if host.is_dead:
            raise HostDied(str(host))
        self._fuse -= _CHANGE if changes else 1
        strikes = self.strike and self._fuse <= 0
        if strikes:
            self._fuse = 1 + self._random.randrange(_FUSE)
            kinds = (self._freeze, self._die, self._lose_log) if changes else (self._freeze, self._die)
            fault = self._random.choice(kinds)
            # Whoever freezes after it has read something goes on with what is no longer so.
            comes_after = (changes or fault == self._freeze) and self._random.randrange(2) == 1
            if not comes_after:
                fault(host, "before", what)
        found = call()
        if changes or strikes:
            self._timeline.tell(f"{host} {what}")
        if strikes and comes_after:
            fault(host, "after", what)
        return found

    def _freeze(self, host: Host, when: str, what: str) -> None:
        if self._depth == _DEEPEST:
            self._die(host, when, what)
        self._tell(host, "freezes", when, what)
        host.is_frozen = True
        self._depth += 1
        try:
            for _ in range(1 + self._random.randrange(_LONGEST_FREEZE)):
                self._step()
        except SimulationFailure as failure:
            # It must not be handled as an error of the host that is frozen.
            self.failure = failure
            host.is_dead = True
            raise HostDied(str(host)) from None
        finally:
            self._depth -= 1
            host.is_frozen = False
        self._timeline.tell(f"{host} wakes")

    def _die(self, host: Host, when: str, what: str) -> None:
        self._tell(host, "dies", when, what)
        host.is_dead = True
        raise HostDied(str(host))

    def _lose_log(self, host: Host, when: str, what: str) -> None:
        self._tell(host, "loses the log", when, what)
        raise LogError(f"the simulated log is away for {host}") from SimulatedOutage()

    def _tell(self, host: Host, fault: str, when: str, what: str) -> None:
        self.counts[f"{fault} {when} it {what.partition(' ')[0]}"] += 1
        self._timeline.tell(f"{host} {fault} {when} it {what}")
