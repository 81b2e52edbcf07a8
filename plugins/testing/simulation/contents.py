"""Contents: what the stores of each task have at each version, as those say that have the version."""

from __future__ import annotations

from collections.abc import Mapping

from penstock import Application, TaskId
from penstock.changelog import is_version
from penstock.plugins.replicas import Replica

from .log import SimulatedLog
from .rows import freeing_stores

Tables = Mapping[str, Mapping[bytes, bytes]]


class Contents:
    """Compares copies of a task's stores at the same version: those of hosts and those of replicas.

    A version is never made twice, so all copies with its name have the same content, or one of them is wrong. Stores
    that free old rows on their own host are left out.
    """

    def __init__(self, log: SimulatedLog) -> None:
        self._log = log
        self._found: dict[tuple[str, str, str], tuple[str, Mapping[bytes, bytes]]] = {}
        self.wrong: list[str] = []
        """What is wrong of a replica."""

    def note(self, application: Application, task: str, version: str | None, tables: Tables, where: str) -> None:
        """Note the rows that a copy has, by store, at a version (None: the copy shows none), and compare them."""
        if version is None or not is_version(version):
            return
        subtopology = TaskId.parse(task).subtopology
        logged = {each.name for each in application.program.subtopology(subtopology).stores if each.logged}
        for store in sorted(logged.intersection(tables) - freeing_stores(application, task)):
            first, rows = self._found.setdefault((task, version, store), (where, dict(tables[store])))
            if rows != tables[store]:
                self.wrong.append(
                    f"task {task}, store {store!r}, version {version}: {where} has {_shown(tables[store])}, and "
                    f"{first} had {_shown(rows)}"
                )

    def check(self, application: Application, task: str, replica: Replica, where: str) -> None:
        """Check what a replica shows: a committed version, with its content."""
        version = replica.version
        if version is not None and version not in self._log.versions:
            self.wrong.append(f"task {task}: {where} shows version {version}, which was not committed")
        if version is not None:
            tables = {store: dict(replica.backend(store).range(store)) for store in replica.layout}
            self.note(application, task, version, tables, where)


def _shown(rows: Mapping[bytes, bytes]) -> str:
    return ", ".join(f"{key!r}: {value!r}" for key, value in sorted(rows.items())) or "nothing"
