"""BackupHost and PruneHost: processes of a simulation that make a backup beside the application, or delete old ones."""

from __future__ import annotations

from random import Random

from penstock import Application
from penstock.plugins.backups import Catalog, back_up, prune

from .host_world import HostWorld
from .log import HostLog
from .tool_host import ToolHost

_PATIENCE_SECONDS = 20.0


class BackupHost(ToolHost):
    """Makes one backup in a catalog's place; `made` is its name."""

    def __init__(
        self, number: int, application: Application, log: HostLog, world: HostWorld, random: Random, place: str,
        named: str,
    ) -> None:  # fmt: skip
        super().__init__(number, application, log, world, random)
        self._place, self._named = place, named
        self.made = ""

    def __str__(self) -> str:
        return f"backup process {self.number}"

    def do(self) -> None:
        written = back_up(
            self.application, self.log, self._place, named=self._named, patience_seconds=_PATIENCE_SECONDS,
            world=self.own_world,
        )  # fmt: skip
        self.made = written.backup.name


class PruneHost(ToolHost):
    """Deletes all backups in a catalog's place but the last `keep`."""

    def __init__(
        self, number: int, application: Application, log: HostLog, world: HostWorld, random: Random, place: str,
        named: str, keep: int,
    ) -> None:  # fmt: skip
        super().__init__(number, application, log, world, random)
        self._place, self._named = place, named
        self._keep = keep

    def __str__(self) -> str:
        return f"prune process {self.number}"

    def do(self) -> None:
        prune(Catalog(self._place, self._named, self.own_world), self._keep)
