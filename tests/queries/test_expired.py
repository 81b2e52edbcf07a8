"""What has expired is found by no query, also in a task that has no more records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    Clock,
    OutputBatch,
    Processor,
    PunctuationType,
    Record,
    TopicPartition,
    Topology,
    key_value_store,
)
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.queries.local_copies import LocalCopies
from penstock.plugins.state.queries.queries import Queries
from penstock.world import World

IN = TopicPartition("in", 0)
MINUTE = 60_000


class Remember(Processor):
    """Puts each record with a value in both stores."""

    def process(self, record: Record) -> None:
        if record.value is not None:
            for name in ("by-stream-time", "by-wall-clock"):
                self.context.get_store(name).put(record.key, record.value)


class Bench(Clock):
    """A task, and queries of its stores; it is the clock of both, and `seconds` the stopwatch of queries."""

    def __init__(self, directory: Path) -> None:
        self.log, self.now, self.seconds = MemoryLog(), 0, 0.0
        self.log.create_topic("in", 1)
        stores = [
            key_value_store("by-stream-time", ttl="10m", key_serde="str"),
            key_value_store("by-wall-clock", ttl="10m", ttl_clock=PunctuationType.WALL_CLOCK_TIME, key_serde="str"),
        ]
        topology = Topology().add_source("in", "in", key_serde="str", value_serde="str")
        topology = topology.add_processor("remember", Remember, "in", stores=stores)
        settings: dict[str, Any] = {"log": "memory:x", "changelog": "topic:", "data_dir": str(directory)}
        prepared = prepare(Application("app", topology, **settings), self.log)
        self.resources = ProcessResources()
        [(task, inputs)] = prepared.assignment.tasks.items()
        self.worker = TaskWorker(prepared.application, task, inputs, self.log, resources=self.resources)
        world = World(clock=self, seconds=lambda: self.seconds)
        self.queries = Queries(prepared.application, self.log, lambda stored: LocalCopies(stored, self.log, world))

    def now_ms(self) -> int:
        return self.now

    def send(self, value: bytes | None, timestamp: int) -> None:
        self.log.append(OutputBatch("in", [b"k"], [value], [timestamp]))
        self.worker.run_batch(self.log.end_offsets([IN]), self.now)
        self.seconds += 3  # a query asks the log again


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.queries.close()
    made.worker.close()
    made.resources.close()


Look = Callable[[Any], bool]
LOOKS: dict[str, Look] = {
    "get": lambda store: store.get("k") is not None,
    "all": lambda store: len(list(store.all())) == 1,
    "range": lambda store: len(list(store.range("a", "z"))) == 1,
}


@pytest.mark.parametrize("finds", LOOKS.values(), ids=LOOKS.keys())
def test_what_expires_by_the_wall_clock_in_an_idle_task(bench: Bench, finds: Look) -> None:
    bench.send(b"x", 0)
    store = bench.queries.store("by-wall-clock")
    for bench.now, found in ((0, True), (10 * MINUTE - 1, True), (10 * MINUTE, False), (60 * MINUTE, False)):
        assert finds(store) is found, bench.now


@pytest.mark.parametrize("finds", LOOKS.values(), ids=LOOKS.keys())
def test_what_expires_by_stream_time_while_nothing_is_put(bench: Bench, finds: Look) -> None:
    bench.send(b"x", 0)
    store = bench.queries.store("by-stream-time")
    bench.now = 60 * MINUTE
    assert finds(store)
    bench.send(None, 10 * MINUTE)
    assert not finds(store)


def test_a_clock_that_is_behind_the_task_shows_nothing_that_had_expired_there(bench: Bench) -> None:
    bench.send(b"x", 0)
    bench.now = 10 * MINUTE
    bench.send(None, 1)
    bench.now = 0
    assert bench.queries.store("by-wall-clock").get("k") is None
