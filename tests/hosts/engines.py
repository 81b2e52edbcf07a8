"""An engine for tests of hosts: it does what the request says."""

from __future__ import annotations

import gc
import itertools
import os
import time
from dataclasses import dataclass
from typing import Any

from penstock.plugins.engine.host.slot_engine import Cargo, HostEngine, HostInfo


class UnpicklableError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.file = open(os.devnull)  # noqa: SIM115


def compute_alone(seconds: float) -> None:
    """Compute for about so long without giving Python's lock away, as a call of a library in C may."""
    number, taken = 1_000_000, 0.0
    while taken < 0.05:
        number *= 2
        began = time.process_time()
        sum(itertools.repeat(1, number))
        taken = time.process_time() - began
    sum(itertools.repeat(1, int(number * seconds / taken)))


@dataclass(frozen=True)
class Obedient(Cargo):
    name: str = "a"

    def engine(self, host: HostInfo) -> HostEngine:
        return _Engine(self.name, host)


class _Engine(HostEngine):
    def __init__(self, name: str, host: HostInfo) -> None:
        self.name = name
        self.host = host

    def handle(self, request: Any) -> Any:
        verb, *rest = request
        if verb == "sleep":
            time.sleep(rest[0])
        elif verb == "compute":
            compute_alone(rest[0])
        elif verb == "exit":
            os._exit(3)
        elif verb == "raise":
            raise rest[0]
        elif verb == "raise unpicklable":
            raise UnpicklableError("it failed", "badly")
        elif verb == "collects garbage":
            return gc.isenabled()
        return os.getpid(), self.name, self.host.reason, self.host.status(0)

    def close(self) -> None:
        pass
