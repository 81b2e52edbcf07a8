"""Checks: what has to be true of a simulated cluster's log, stores and changelogs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from penstock import TopicPartition

from .cluster import Cluster
from .disk import Disk
from .failure import SimulationFailure
from .host import with_state_in
from .host_world import HostWorld
from .leftovers import left_for_ever
from .log import SimulatedLog
from .rows import difference_of_rows, rows_of
from .timeline import Timeline


class Checks:
    """Each check raises SimulationFailure. `directory`: where the stores that are restored may be."""

    def __init__(
        self,
        cluster: Cluster,
        log: SimulatedLog,
        disk: Disk,
        outside: HostWorld,
        timeline: Timeline,
        directory: Path,
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._disk = disk
        self._outside = outside
        self._timeline = timeline
        self._directory = directory

    def _failure(self, what: str) -> SimulationFailure:
        return SimulationFailure(what, self._timeline.story, self._timeline.events)

    def progress(self) -> object:
        """Return what changes as long as the application gets on: ends of topics, and positions."""
        topics = self._log.topics().items()
        partitions = [TopicPartition(name, number) for name, info in topics for number in range(info.partitions)]
        return self._log.end_offsets(partitions, stable=False), self.positions()

    def positions(self) -> Mapping[TopicPartition, int | None]:
        """Return the committed positions of all tasks."""
        inputs = [each for partitions in self._cluster.tasks.values() for each in partitions]
        return self._log.committed(self._cluster.application.id, inputs)

    def positions_go_on(self) -> None:
        """No commit sets a position back."""
        if self._log.went_back:
            raise self._failure(self._log.went_back[0])

    def all_is_read(self) -> None:
        """Every record is processed and committed."""
        positions = self.positions()
        ends = self._log.end_offsets(list(positions))
        for partition, position in positions.items():
            if position is None or position < ends[partition]:
                read = f"{partition} is read up to {position or 0} of {ends[partition]} only"
                raise self._failure(f"no fault strikes any more, and {read}")

    def state(self) -> None:
        """Each store of the last host of a task is as restored from the changelog alone."""
        for machine in range(self._cluster.machines):  # what counts does not go with them
            self._disk.lose(machine)
        fresh = with_state_in(self._cluster.application, self._directory / "fresh")
        for task, partitions in self._cluster.tasks.items():
            last = self._cluster.owners[task].application
            there, here = (rows_of(each, task, partitions, self._log, self._outside) for each in (fresh, last))
            different = difference_of_rows(self._cluster.application, task, here, there)
            if different is not None:
                raise self._failure(different)
            self._files(task, partitions)

    def _files(self, task: str, partitions: Sequence[TopicPartition]) -> None:
        if self._disk.files():
            with closing(self._log.open_committer(self._cluster.application.id, task, partitions)) as committer:
                last = committer.committed
            assert last is not None
            left = left_for_ever(self._cluster.application, task, last.version, self._disk, self._outside)
            if left:
                raise self._failure(f"files that nobody needs are left for ever: {', '.join(left)}")
