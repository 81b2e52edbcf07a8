"""Attempts count until what failed is done and committed, in batches and in continuous mode alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

import penstock
from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Application,
    Failure,
    Processor,
    Record,
    Retry,
    RetryAfter,
    Topology,
    skip,
)
from penstock.dsl import StreamsBuilder, within
from penstock.log import Log
from penstock.plugins.engine.task.locations import open_log
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


class Tried:
    """Fails for the key "a" always, or as "b" the first time only, and counts how often each was tried."""

    times = Counter[str]()
    always = "a"

    @classmethod
    def reach(cls, key: str) -> str:
        cls.times[key] += 1
        if key == cls.always or (key != "z" and cls.times[key] == 1):
            raise ValueError(key)
        return key


class Forward(Processor):
    """Forwards each key when its timer fires, or all of them from punctuators. `fails`: where it is told to."""

    def __init__(self, by: str, fails: bool) -> None:
        self._by = by
        self._reach = Tried.reach if fails else str

    def init(self, context: Any) -> None:
        super().init(context)
        if self._by == "punctuators":
            context.schedule("100ms", self.of_a, STREAM_TIME)
            context.schedule("100ms", self.of_b, STREAM_TIME)

    def process(self, record: Record) -> None:
        if self._by == "timers" and record.key != "tick":
            self.context.timer(record.key, 50, STREAM_TIME)

    def on_timer(self, key: str, at: int) -> None:
        self.context.forward(Record(self._reach(key), "done", at))

    def of_a(self, now: int) -> None:
        if now >= 50:  # the first call is at the first record
            self.on_timer("a", now)

    def of_b(self, now: int) -> None:
        if now >= 50:  # the first call is at the first record
            self.on_timer("b", now)


class Reach(Processor):
    """Passes records on, or fails."""

    def __init__(self, fails: bool) -> None:
        self._reach = Tried.reach if fails else str

    def process(self, record: Record) -> None:
        self._reach(record.key)
        self.context.forward(record)


def of_timers(by: str, child: bool) -> Topology:
    return (
        Topology().add_source("in", "in").add_processor("first", lambda: Forward(by, not child), "in", timers=True)
        .add_processor("second", lambda: Reach(child), "first").add_sink("out", "out", "second")
    )  # fmt: skip


@pytest.mark.parametrize("always", ["a", ""])
@pytest.mark.parametrize("child", [False, True])
@pytest.mark.parametrize("by", ["timers", "punctuators"])
def test_each_timer_and_punctuator_has_its_own_attempts(by: str, child: bool, always: str, tmp_path: Path) -> None:
    """One that fails always, or did once, takes no attempt from those behind it."""
    Tried.times.clear()
    Tried.always = always
    assert finished(of_timers(by, child), tmp_path) == [key for key in ("a", "b") if key != always]


@pytest.mark.parametrize("always", ["xa", ""])
def test_each_record_that_waited_has_its_own_attempts(always: str, tmp_path: Path) -> None:
    """Also where two of one time are let go by one record."""
    Tried.times.clear()
    Tried.always = always

    def joined(left: str, right: str | None) -> str:
        return Tried.reach(left)

    builder = StreamsBuilder()
    window = within("3ms", grace="2ms")
    builder.stream("in").left_join(builder.stream("right"), joined, window, name="j").to("out")
    of = Application(
        "app", builder, engine="embedded", data_dir=str(tmp_path), processing_handler=Retry(2, "0ms", skip)
    )
    with closing(open_log(of.settings)) as log:
        for name in ("in", "right", "out"):
            log.create_topic(name, 1)
        log.append(OutputBatch("in", [b"a", b"b", b"z"], [b"xa", b"xb", b"z"], [5, 5, 100]))
    penstock.run(of)
    with closing(open_log(of.settings)) as log:
        assert read_all(log, "out") == [each for each in ("xa", "xb") if each != always]


def finished(topology: Topology, directory: Path) -> list[str]:
    log = MemoryLog()
    for name in ("in", "out"):
        log.create_topic(name, 1)
    log.append(OutputBatch("in", [b"a", b"b", b"tick"], [b"x"] * 3, [1, 1, 100]))
    of = Application(
        "app", topology, log="memory:", changelog="memory:", data_dir=str(directory),
        processing_handler=Retry(1 if Tried.always == "" else 2, "0ms", skip),
    )  # fmt: skip
    with in_batches(of, log) as run:
        for _ in range(9):
            run(3, 0)
    return read_all(log, "out", "keys")


def read_all(log: Log, topic: str, part: str = "values") -> list[str]:
    output = TopicPartition(topic, 0)
    batches = log.fetch(output, 0, log.end_offsets([output])[output], 1 << 20)
    return [each.decode() for batch in batches for each in getattr(batch, part)]
