"""Checks of a simulated cluster's log, stores and changelogs, and `settle`, after which everything is processed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from io import BytesIO
from pathlib import Path

from penstock import (
    Application,
    ChangelogError,
    DeltaChangelog,
    Log,
    PenstockError,
    TaskId,
    TopicPartition,
    version_counter,
)
from penstock.plugins.changelogs.file_format import DELTA, DamagedError, Reader
from penstock.plugins.engine.task.locations import Places, open_deltas
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.stores.memory import MemoryBackend

from .cluster import Cluster, freeing_stores, logged_stores
from .disk import Disk
from .host import with_state_in
from .host_world import HostWorld, Timeline
from .log import SimulatedLog

_LATER_MS = 24 * 3_600_000
_QUIET_ROUNDS, _PATIENT_ROUNDS, _MOST_ROUNDS = 16, 100, 2_000
"""Rounds without any progress after which a cluster has settled, and after which it has not where records wait, since
failed ones may be tried again; and rounds after which it never will."""


class Checks:
    """Each check raises SimulationFailure. `directory`: where the stores that are restored may be."""

    def __init__(
        self, cluster: Cluster, log: SimulatedLog, disk: Disk, outside: HostWorld, timeline: Timeline, directory: Path
    ) -> None:
        self._cluster, self._log, self._disk = cluster, log, disk
        self._outside, self._timeline, self._directory = outside, timeline, directory

    def progress(self) -> object:
        """Return the application's progress: ends of topics, and positions."""
        topics = self._log.topics().items()
        partitions = [TopicPartition(name, number) for name, info in topics for number in range(info.partitions)]
        return self._log.end_offsets(partitions, stable=False), self.positions()

    def positions(self) -> Mapping[TopicPartition, int | None]:
        """Return the committed positions of all tasks."""
        inputs = [partition for partitions in self._cluster.tasks.values() for partition in partitions]
        return self._log.committed(self._cluster.application.id, inputs)

    def positions_go_on(self) -> None:
        """No commit sets a position back."""
        if self._log.went_back:
            raise self._timeline.failure(self._log.went_back[0])

    def unread(self) -> list[str]:
        """Return for each partition whose records are not all processed and committed a sentence that names it."""
        positions = self.positions()
        ends = self._log.end_offsets(list(positions))
        return [
            f"{partition} is read up to {position or 0} of {ends[partition]} only"
            for partition, position in positions.items()
            if position is None or position < ends[partition]
        ]

    def state(self) -> None:
        """Each store of the last host of a task is as restored from the changelog or its topic alone."""
        for machine in range(self._cluster.machines):  # what counts does not go with them
            self._disk.lose(machine)
        fresh = with_state_in(self._cluster.application, self._directory / "fresh")
        for task, partitions in self._cluster.tasks.items():
            last = self._cluster.owners[task].application
            try:
                there, here = (_rows_of(each, task, partitions, self._log, self._outside) for each in (fresh, last))
            except PenstockError as error:
                raise self._timeline.failure(
                    f"task {task} cannot be opened: {type(error).__name__}: {error}"
                ) from error
            different = difference_of_rows(self._cluster.application, task, here, there)
            if different is not None:
                raise self._timeline.failure(different)
            self._files(task, partitions)

    def _files(self, task: str, partitions: Sequence[TopicPartition]) -> None:
        if self._cluster.application.settings.changelog.startswith("directory:") and self._disk.files():
            with closing(self._log.open_committer(self._cluster.application.id, task, partitions)) as committer:
                last = committer.committed
            assert last is not None, f"task {task} has state, and no commit"
            if left := self._left_for_ever(task, last.version):
                raise self._timeline.failure(f"files that nobody needs are left for ever: {', '.join(left)}")

    def _left_for_ever(self, task: str, version: str) -> list[str]:
        """Clean a task's changelog for its last version; return the files that stay and that no version needs.

        Orphans may stay until the task has passed their counters, and the newest snapshot until the next one.
        """
        application, disk = self._cluster.application, self._disk
        with closing(open_deltas(application.settings, application.id, task, self._outside.world)) as changelog:
            changelog.clean(version, 0, self._outside.now_ms() + _LATER_MS, lambda: True)
            place = application.settings.changelog.partition(":")[2].partition("?")[0]
            own = disk.files(f"/{place.rpartition('://')[2]}/{application.id}/{task}")
            newest = max((path for path in own if path.endswith(".snapshot")), key=os.path.basename, default=None)
            own = [path for path in own if path != newest and not _may_stay(path, version, disk)]
            return [path for path in own if _does_without(changelog, version, path, disk)]

    def settle(self) -> None:
        """Let everything be processed, as `SimulatedCluster.settle` says."""
        quiet = 0
        for host in self._cluster.processes():
            host.refusals = 0
        for _ in range(_MOST_ROUNDS):
            before = self.progress()
            self._cluster.complete()
            self._cluster.drive()
            for host in self._cluster.live():
                self._cluster.work(host)
                while host.world.calls and not host.is_frozen:
                    self._cluster.run_call(host, 0)
            self._log.write_markers()
            self.positions_go_on()
            quiet = 0 if self.progress() != before else quiet + 1
            self._timeline.pass_by(0.1 if quiet < _QUIET_ROUNDS // 2 else 30.0)
            if quiet < _QUIET_ROUNDS:
                continue
            if self._cluster.frozen():
                self._cluster.wake(self._cluster.frozen()[0])
                quiet = 0
            elif quiet >= _PATIENT_ROUNDS or not self.unread():
                for unread in self.unread():
                    raise self._timeline.failure(f"no fault strikes any more, and {unread}")
                self._let_replicas_catch_up()
                self._let_standbys_catch_up()
                return
        raise self._timeline.failure("it never comes to rest, though no fault strikes any more")

    def _let_replicas_catch_up(self) -> None:
        application = self._cluster.application
        for host in [follower for follower in self._cluster.followers if follower.can_act]:
            self._cluster.let(host, host.work)
            for task, partitions in self._cluster.tasks.items():
                commit = self._log.last_commit(application.id, task, partitions)
                has_stores = bool(application.program.subtopology(TaskId.parse(task).subtopology).stores)
                lacking = logged_stores(application, task) - host.stores(task)
                if commit is not None and has_stores and (host.version(task) != commit.version or lacking):
                    raise self._timeline.failure(
                        f"{host} shows version {host.version(task)} of task {task}, whose last commit is "
                        f"{commit.version}, and lacks the stores {sorted(lacking)}; no fault strikes any more"
                    )

    def _let_standbys_catch_up(self) -> None:
        for host in list(self._cluster.standbys):
            for _ in range(_QUIET_ROUNDS):
                self._timeline.pass_by(30.0)
                self._cluster.let(host, host.work)
            if left := host.unsettled():
                raise self._timeline.failure(f"{host} has not all copies, and no fault strikes any more: {left}")


def _may_stay(path: str, version: str, disk: Disk) -> bool:
    """Return whether a file has data of a version that is not before `version`."""
    counter, name = version_counter(version), os.path.basename(path)
    if not name[0].isdigit():
        return False
    if version_counter(name) >= counter:
        return not name.endswith(".tmp") or version_counter(name) > counter
    file, highest = BytesIO(disk.file(path).data), -1
    try:
        while path.endswith(".delta"):
            reader = Reader(file, DELTA)
            reader.skip()
            highest = version_counter(reader.version)
    except DamagedError:  # its end, too
        return highest >= counter
    return False


def _does_without(changelog: DeltaChangelog, version: str, path: str, disk: Disk) -> bool:
    """Return whether a version can be restored without a file."""
    directory, name = os.path.split(path)
    names = disk.directory(directory).names
    file = names.pop(name)
    try:
        for _ in changelog.restore(version, None).steps:
            pass
    except ChangelogError:
        return False
    finally:
        names[name] = file
    return True


Rows = dict[tuple[str, bytes], bytes]


def _rows_of(
    application: Application, task: str, partitions: Sequence[TopicPartition], log: Log, outside: HostWorld
) -> Rows:
    """Return the rows of a task's logged and read-only stores at its last commit, over the copy of `application`."""
    task_id = TaskId.parse(task)
    filled = {each.store.name for each in application.program.subtopology(task_id.subtopology).read_only_stores}
    with (
        closing(ProcessResources(outside.world)) as resources,
        closing(TaskWorker(application, task_id, partitions, log, resources=resources)) as worker,
    ):
        worker.prepare(outside.now_ms())
        worker.restore()
        rows = {(store, key): value for store, key, value in worker.rows()}
        directory = Places.of(application).task(task)
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


def _shown(value: bytes | None) -> str:
    return "nothing" if value is None else repr(value)
