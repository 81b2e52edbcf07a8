"""Attempts count until what failed is done and committed, in batches and in continuous mode alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Application, Processor, Record, RetryAfter, Topology
from penstock.handlers import Failure
from penstock.log import Log
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition
from penstock.task.failures import RetryRequested

from ..waiting import wait_until

INPUT = TopicPartition("in", 0)


class Failing(Processor):
    """Fails where it is told to: at a record's value, or in a punctuator of a clock."""

    at: str | None = None

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("10ms", lambda now: self.reach("stream"), STREAM_TIME)
        context.schedule("10ms", lambda now: self.reach("wall"), WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        self.reach(record.value)

    def reach(self, what: str) -> None:
        if what == Failing.at:
            raise ValueError(what)


class Attempts(list[int]):
    """A handler that notes which attempt it was asked about."""

    def __call__(self, failure: Failure) -> RetryAfter:
        self.append(failure.attempt)
        return RetryAfter("0ms")


@pytest.fixture
def attempts() -> Iterator[Attempts]:
    yield Attempts()
    Failing.at = None


Run = Callable[[int, int], None]
"""Runs to an offset and a wall clock (ms), once."""


@contextmanager
def in_batches(of: Application, log: Log) -> Iterator[Run]:
    worker = TaskWorker(of, TaskId(0, 0), [INPUT], log, resources=ProcessResources())

    def run(end: int, wall: int) -> None:
        try:
            worker.try_batch({INPUT: end}, wall)
        except RetryRequested:
            pass

    yield run
    worker.close()


@contextmanager
def continuously(of: Application, log: Log) -> Iterator[Run]:
    wall = 0
    resources = ProcessResources()
    loop = TaskLoop(of, {"0_0": [INPUT]}, log, resources, lambda: wall)
    loop.run(["0_0"], {})

    def run(end: int, now: int) -> None:
        nonlocal wall
        wall = now
        task = loop._tasks["0_0"]
        before = dict(task._retries._failed)
        loop._follower = Bounded(log, end, loop._follower)  # type: ignore[assignment]

        def is_over() -> bool:
            loop.turn(0.0)
            is_idle = task.is_open and not loop._writing and not task.has_records()
            is_there = is_idle and task._commits is not None and task._commits.last.positions[INPUT] == end
            return before != task._retries._failed or (is_there and task.commit_due() > perf_counter())

        wait_until(is_over)
        loop._follower = loop._follower.inner  # type: ignore[attr-defined]
        assert not loop.take_failures()

    yield run
    loop.close(commit=False)
    resources.close()


class Bounded:
    """A follower that shows nothing from an offset on."""

    def __init__(self, log: Log, end: int, inner: Any) -> None:
        self.inner, self._log, self._end = inner, log, end

    def poll(self, seconds: float, most: int) -> list[Any]:
        position = self.inner._positions.get(INPUT)
        if position is None or position >= self._end:
            return []
        self.inner._positions[INPUT] = self._end
        return self._log.fetch(INPUT, position, self._end, 1 << 20)

    def ends(self) -> dict[TopicPartition, int]:
        return {INPUT: self._end}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("where", ["stream", "wall", "record 8"])
@pytest.mark.parametrize("mode", [in_batches, continuously])
def test_attempts_count_until_what_failed_is_done(tmp_path: Path, attempts: Attempts, mode: Any, where: str) -> None:
    log = MemoryLog()
    log.create_topic("in", 1)
    numbers = range(30)
    log.append(
        OutputBatch("in", [b"k"] * 30, [b"record %d" % each for each in numbers], [each + 1 for each in numbers])
    )
    of = Application(
        "app", Topology().add_source("in", "in", value_serde="str").add_processor("fail", Failing, "in"),
        log="memory:", changelog="memory:", data_dir=str(tmp_path), processing_handler=attempts, commit_interval="0ms",
    )  # fmt: skip
    with mode(of, log) as run:
        run(1, 0)
        Failing.at = where
        wall = 10 if where == "wall" else 0
        run(10, wall)
        assert attempts == [1]
        if where != "wall":
            # What comes before it is done and committed: that says nothing of it.
            run(5, 0)
            run(7, 0)
        run(10, wall)
        run(10, wall)
        assert attempts == [1, 2, 3]
        Failing.at = None
        run(12, 10)
        # It is done; another time it begins anew.
        Failing.at = "record 15" if where.startswith("record") else where
        run(29, 20)
        run(29, 20)
        assert attempts == [1, 2, 3, 1, 2]
