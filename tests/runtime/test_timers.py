"""Timers are in the changelog: another host goes on with them, after whatever crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Application, Processor, Record, Topology
from penstock.plugins.engine.program.check import saved_stores
from penstock.plugins.testing.contracts.log_tests import read
from penstock.record import OutputBatch, TopicPartition

from ..processes import opened_workers
from ..upgrades.test_changed_programs import World


class Later(Processor):
    """Sends on each key 10 ms after it came, by both clocks."""

    def process(self, record: Record) -> None:
        self.context.timer(record.key, record.timestamp + 10, STREAM_TIME)
        self.context.timer(record.key, self.context.current_system_time_ms() + 10, WALL_CLOCK_TIME)

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, f"{key}@{at}", at))


class Never(Processor):
    """The same node without timers."""

    def process(self, record: Record) -> None:
        pass


class Timed(World):
    supplier: type[Processor] = Later

    def application(self, *stores: Any, **settings: Any) -> Application:
        topology = Topology().add_source("in", "in", key_serde="str", value_serde="str")
        topology.add_processor("later", self.supplier, "in").add_sink("out", "out", "later", value_serde="str")
        given = {"log": "memory:x", "changelog": self.changelog, "data_dir": str(self.directory)}
        return Application("app", topology, **{**given, **settings})

    def step(self, wall_clock: int, *records: tuple[str, int], **settings: Any) -> list[str]:
        """Start the program, process records of key and time, and return what is said at this time of the clock."""
        before = len(read(self.log, TopicPartition("out", 0)))
        keys: list[bytes | None] = [key.encode() for key, _ in records]
        self.log.append(OutputBatch("in", keys, list(keys), [at for _, at in records]))
        with opened_workers(self.application(**settings), self.log) as workers:
            for worker in workers:
                worker.run_batch(self.log.end_offsets(worker.partitions), wall_clock)
        return [(each.value or b"").decode() for each in read(self.log, TopicPartition("out", 0))[before:]]


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
@pytest.mark.parametrize("backend", ["lmdb", "memory"])
def test_another_host_goes_on_with_the_timers(tmp_path: Path, changelog: str, backend: str) -> None:
    world = Timed(tmp_path, changelog)
    assert world.step(1000, ("b", 0), ("a", 1), ("c", 5), store_backend=backend) == []
    world.lose_host()
    assert world.step(1009, ("d", 10), store_backend=backend) == ["b@10"]
    world.lose_host()
    assert world.step(1010, store_backend=backend) == ["a@1010", "b@1010", "c@1010"]
    assert world.step(1019, ("e", 15), store_backend=backend) == ["a@11", "c@15", "d@1019"]
    world.log.close()


def test_a_node_that_loses_its_timers_parks_them(tmp_path: Path) -> None:
    world = Timed(tmp_path, "directory:changelog")
    assert world.step(1000, ("a", 0)) == []
    world.supplier = Never
    assert world.step(1000) == []
    assert [(store.name, store.parked) for store in saved_stores("app", world.log)] == [("later.timers", True)]
    world.supplier = Later
    assert world.step(1010) == ["a@1010"]
    world.log.close()
