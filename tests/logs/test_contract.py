"""Both logs keep the published contract."""

from __future__ import annotations

from pathlib import Path

from penstock.clock import ManualClock
from penstock.log import Log
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.contracts.log import LogContract
from penstock.world import World


class TestMemoryLog(LogContract):
    examples = 20
    in_one_process = True

    def open_log(self, directory: Path, clock: ManualClock) -> Log:
        return MemoryLog(world=World(clock=clock))

    def reopen_log(self, log: Log, directory: Path, clock: ManualClock) -> Log:
        return log


class TestLocalLog(LogContract):
    examples = 8

    def open_log(self, directory: Path, clock: ManualClock) -> Log:
        return LocalLog(str(directory / "log"), clock=clock)
