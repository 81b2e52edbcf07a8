"""A driver whose tasks run in any order, in batches of any size, as those of a cluster do."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.plugins.testing import TopologyTestDriver


class InterleavingDriver(TopologyTestDriver):
    """Chooses at random which task goes on, with how many records, and which one is opened again.

    What `pipe` causes is processed later, by `step` or `finish`.
    """

    def __init__(self, program: Any, chance: random.Random, **options: Any) -> None:
        self.chance = chance
        super().__init__(program, **options)

    def __enter__(self) -> InterleavingDriver:
        return self

    def _drain(self) -> None:
        """Leave everything to `step`."""

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        return self._count(topic)

    def step(self) -> bool:
        """Process a few records in one task; return whether there were any."""
        heads = []
        for task, partitions in self._tasks.items():
            ends = self.log.end_offsets(partitions)
            for partition, position in self.log.committed(self.application.id, partitions).items():
                if position is not None and position < ends[partition]:
                    heads.append((task, partition, position, ends[partition]))
        if not heads:
            return False
        task, partition, position, end = self.chance.choice(heads)
        ends = {partition: self.chance.randint(position + 1, min(end, position + 4))}
        for other, each, start, last in heads:
            if other == task and each != partition and self.chance.random() < 0.5:
                ends[each] = self.chance.randint(start, last)
        self._run(task, ends)
        if self.chance.random() < 0.2:
            self._processes.running().worker(task, self._tasks[task], len(self._tasks)).close()
        return True

    def finish(self) -> None:
        """Process everything that is left."""
        while self.step():
            pass


def folded(records: Iterable[Sequence[Any]], rows: dict[Any, Any] | None = None) -> dict[Any, Any]:
    """Return the rows that a table's updates make."""
    rows = {} if rows is None else rows
    for key, value, *_ in records:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
    return rows
