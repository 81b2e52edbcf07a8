"""Faults: what strikes hosts in the middle of what they do, at their operations on the log and on the disk."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from penstock import LogError

from .failure import HostDied, SimulatedDiskError, SimulatedOutage, SimulationFailure
from .host import Host
from .timeline import Timeline

_FUSE = 120
"""The most operations from one fault to the next. One that changes the log counts as `_CHANGE` of them."""
_CHANGE = 8
_REFUSALS = (errno.ENOSPC, errno.EACCES, errno.EIO)
_REFUSED = (1, 1, 4, 20)
"""How many operations of a host one after the other its disk may refuse."""
_DEEPEST = 2
"""The most hosts that are frozen in the middle of something at a time."""
_LONGEST_FREEZE = 25
"""The most steps of other hosts while one is frozen."""

Fault = Callable[[Host, str, str], None]
"""Strikes a host "before" or "after" an operation."""


class Faults:
    """Dying, freezing and losing the log or the disk, before and after each operation of a host.

    `step` lets other hosts go on; `power_off` ends a machine, with all its hosts.

    A frozen host's call waits in the middle of the operation, while the steps of other hosts run inside it. So the one
    that froze last wakes first.
    """

    def __init__(
        self, random: Random, timeline: Timeline, step: Callable[[], None], power_off: Callable[[int], None]
    ) -> None:
        self._random = random
        self._timeline = timeline
        self._step = step
        self._power_off = power_off
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
        kinds = (self._freeze, self._die, self._lose_log) if changes else (self._freeze, self._die)
        return self._do(host, what, call, kinds, changes=changes, tells=changes)

    def disk_edge(self, host: Host, what: str, call: Callable[[], Any], changes: bool, tells: bool) -> Any:
        """Do an operation of a host on the disk, unless a fault strikes; `tells`: the story has a line of it.

        Raises HostDied where the host dies, and OSError where the disk refuses.
        """
        if host.refusals and self.strike:
            host.refusals -= 1
            raise self._refusal()
        kinds = (self._freeze, self._die, self._refuse, self._lose_power)
        return self._do(host, what, call, kinds, changes=changes, tells=tells)

    def _do(
        self, host: Host, what: str, call: Callable[[], Any], kinds: Sequence[Fault], *, changes: bool, tells: bool
    ) -> Any:
        if host.is_dead:
            raise HostDied(str(host))
        self._fuse -= _CHANGE if tells else 1
        strikes = self.strike and self._fuse <= 0
        if strikes:
            self._fuse = 1 + self._random.randrange(_FUSE)
            fault = self._random.choice(kinds)
            # Whoever freezes after it has read something goes on with what is no longer so.
            comes_after = (changes or fault == self._freeze) and self._random.randrange(2) == 1
            if not comes_after:
                self._strike(fault, host, "before", what)
        found = call()
        if tells or strikes:
            self._timeline.tell(f"{host} {what}")
        if strikes and comes_after:
            self._strike(fault, host, "after", what)
        return found

    def _strike(self, fault: Fault, host: Host, when: str, what: str) -> None:
        fault(host, when, what)
        if host.is_dead:  # its machine went down while it was frozen
            raise HostDied(str(host))

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

    def _lose_power(self, host: Host, when: str, what: str) -> None:
        self._tell(host, "loses power", when, what)
        host.is_dead = True
        self._power_off(host.machine)
        raise HostDied(str(host))

    def _refuse(self, host: Host, when: str, what: str) -> None:
        self._tell(host, "is refused by its disk", when, what)
        host.refusals = self._random.choice(_REFUSED) - 1
        raise self._refusal()

    def _refusal(self) -> OSError:
        code = self._random.choice(_REFUSALS)
        return SimulatedDiskError(code, os.strerror(code))

    def _tell(self, host: Host, fault: str, when: str, what: str) -> None:
        self.counts[f"{fault} {when} it {what.partition(' ')[0]}"] += 1
        self._timeline.tell(f"{host} {fault} {when} it {what}")
