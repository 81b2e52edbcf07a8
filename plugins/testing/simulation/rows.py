"""The rows of a task's stores: of this machine's copy, from the changelog alone, and of all copies at one version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from penstock import Application, Log, TaskId, TopicPartition
from penstock.changelog import is_version
from penstock.plugins.engine.task.locations import Places
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.state.copies import Replica
from penstock.stores.memory import MemoryBackend

from .host_world import HostWorld
from .log import SimulatedLog

Rows = dict[tuple[str, bytes], bytes]


def rows_of(
    application: Application, task: str, partitions: Sequence[TopicPartition], log: Log, outside: HostWorld
) -> Rows:
    """Return the rows of a task's logged and read-only stores at its last commit, by store and key.

    `application` has the directory whose copy is opened; what that lacks is restored from the changelog, and filled
    from the topics of read-only stores.
    """
    with closing(ProcessResources(outside.world)) as resources:
        worker = TaskWorker(application, TaskId.parse(task), partitions, log, resources=resources)
        with closing(worker):
            worker.prepare(outside.now_ms())
            worker.restore()
            rows = {(store, key): value for store, key, value in worker.rows()}
            directory = Places.of(application).task(task)
            subtopology = application.program.subtopology(TaskId.parse(task).subtopology)
            filled = {each.store.name for each in subtopology.read_only_stores}
            for _, tables in MemoryBackend.saved(directory).values():
                for store in filled.intersection(tables):
                    rows |= {(store, key): value for key, value in tables[store].items()}
            return rows


def difference_of_rows(application: Application, task: str, here: Rows, there: Rows) -> str | None:
    """Return the first difference of the last host's copy (`here`) from what was restored; None if there is none.

    A store with an index frees old rows on its host only, so what is restored may have more. In a changelog in files,
    windows do so, too: deltas leave out rows that are freed. A snapshot lacks what the host that wrote it had freed, so
    a copy that went on by deltas may have more.
    """
    in_topics, frees = application.settings.log_changelog is not None, freeing_stores(application, task)
    for store, key in sorted(here.keys() | there.keys()):
        local, restored = here.get((store, key)), there.get((store, key))
        may_differ = store in frees and (local is None or (restored is None and not in_topics))
        if local != restored and not may_differ:
            return (
                f"task {task}, store {store!r}, key {key!r}: the host that had the task last has {_shown(local)}, and "
                f"what is restored from changelog and topics alone has {_shown(restored)}"
            )
    return None


def freeing_stores(application: Application, task: str) -> set[str]:
    """Return the stores of a task that free old rows on their host only."""
    in_topics = application.settings.log_changelog is not None
    return {
        store.name
        for store in application.program.subtopology(TaskId.parse(task).subtopology).stores
        if store.traits.has_index or (not in_topics and "bucket_ms" in store.traits.fixed_options)
    }


def _shown(value: bytes | None) -> str:
    return "nothing" if value is None else repr(value)


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
                    f"task {task}, store {store!r}, version {version}: {where} has {_shown_rows(tables[store])}, and "
                    f"{first} had {_shown_rows(rows)}"
                )

    def check(self, application: Application, task: str, replica: Replica, where: str) -> None:
        """Check what a replica shows: a committed version, with its content."""
        version = replica.version
        if version is not None and version not in self._log.versions:
            self.wrong.append(f"task {task}: {where} shows version {version}, which was not committed")
        if version is not None:
            tables = {store: dict(replica.backend(store).range(store)) for store in replica.layout}
            self.note(application, task, version, tables, where)


def _shown_rows(rows: Mapping[bytes, bytes]) -> str:
    return ", ".join(f"{key!r}: {value!r}" for key, value in sorted(rows.items())) or "nothing"
