"""A log in memory on which programs of the DSL start one after the other, as versions of one application."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock import Application
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.contracts.log_tests import read
from penstock.record import OutputBatch, TopicPartition
from tests.processes import opened_workers

Row = tuple[str, str, str | None, int]
"""Topic, key, value, timestamp (ms)."""
INPUTS, OUTPUTS = ("left", "right", "globals"), ("out", "late")
TICKS = (0, 1_000, 7_000, 15_000, 60_000)
"""After how many ms of the wall clock each start looks at what is due."""
START_MS = 100_000
"""How much time lies between two starts, in ms of the wall clock."""


class Restarts:
    """Starts programs; every start begins on a machine without a copy of the state."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.log = MemoryLog()
        for topic in (*INPUTS, *OUTPUTS):
            self.log.create_topic(topic, 1)
        self.settings = {
            "store_backend": "memory",
            "changelog": f"memory:{directory}",
            "data_dir": str(directory),
            "log": "memory:",
            "topology_optimization": "single_store_self_join",
            **settings,
        }
        self.now = 0
        self._seen = dict.fromkeys(OUTPUTS, 0)

    def start(self, program: Any, rows: Sequence[Row] = ()) -> list[tuple[Any, ...]]:
        """Run a program over more records, and for a minute; return what it sends. Raises what a start raises."""
        self.feed(rows)
        with opened_workers(self.application(program), self.log) as workers:
            for tick in TICKS:
                reports: list[Any] = [None]
                while any(each is None or each.records_in for each in reports):
                    reports = [
                        worker.run_batch(self.log.end_offsets(worker.partitions), self.now + tick) for worker in workers
                    ]
        self.now += START_MS
        return self._sent()

    def application(self, program: Any) -> Application:
        """Return the application that a program is."""
        return Application("app", program, **self.settings)

    def feed(self, rows: Sequence[Row]) -> None:
        """Produce records."""
        for topic, key, value, timestamp in rows:
            raw = None if value is None else value.encode()
            self.log.append(OutputBatch(topic, [key.encode()], [raw], [timestamp]))

    def _sent(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for topic in OUTPUTS:
            records = read(self.log, TopicPartition(topic, 0))[self._seen[topic] :]
            self._seen[topic] += len(records)
            found += [(topic, each.key, each.value, each.timestamp) for each in records]
        return found

    def saved(self) -> Mapping[str, Any]:
        """Return all that a refused start must not have changed."""
        partitions = [TopicPartition(topic, 0) for topic in self.log.topics()]
        return {
            "ends": self.log.end_offsets(partitions),
            "committed": self.log.committed("app", partitions),
            "program": self.log.get_meta("app", "program"),
        }


def phases(seed: int = 1) -> list[list[Row]]:
    """Return the records of four starts.

    Each later one begins with records that are late, goes on where the one before ended, and ends behind a gap.
    """
    chance = random.Random(seed)

    def some(count: int, first: int, last: int) -> list[Row]:
        times = sorted(chance.randint(first, last) + chance.choice([0, 0, -1_500]) for _ in range(count))
        return [
            (chance.choice(["left", "left", "right"]), chance.choice("abc"), f"v{chance.randint(0, 9)}", max(0, at))
            for at in times
        ]

    def late(*times: int) -> list[Row]:
        return [(topic, key, "late", at) for at in times for topic in ("left", "right") for key in "ab"]

    first: list[Row] = [("globals", each, f"g{each}", 0) for each in "abc"]
    return [
        [*first, *some(40, 0, 12_000)],
        [*late(1_000, 4_500), *some(20, 11_000, 16_000), *some(10, 40_000, 44_000)],
        [*late(15_000, 37_000), *some(20, 43_000, 50_000)],
        [*late(40_000), *some(10, 50_000, 52_000), *some(5, 120_000, 120_500)],
    ]
