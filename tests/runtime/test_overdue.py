"""What is overdue by the wall clock when a task is opened, in the continuous mode: it waits for records that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import add
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from penstock import (
    WALL_CLOCK_TIME,
    Application,
    OutputBatch,
    Processor,
    Record,
    TaskId,
    TopicPartition,
    Topology,
    key_value_store,
)
from penstock.dsl import StreamsBuilder, tumbling
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.task.progress import Front
from penstock.task.saved_schedules import are_called

from .faults import produced

DAY_MS = 86_400_000
AGAIN = "app-again-repartition"
TASKS = {"0_0": (TopicPartition("in", 0),), "1_0": (TopicPartition(AGAIN, 0),)}


def sums_of_counts(idle: str) -> StreamsBuilder:
    """Counts of each key in windows of 10 s; behind a repartition topic, their sums in windows of 10 s."""
    builder = StreamsBuilder()
    keys = builder.stream("in").group_by_key()
    counts = keys.windowed_by(tumbling("10s", grace="0s"), emit="on_close", idle=idle).count("counts").to_stream()
    again = counts.group_by(lambda key, n: "all", with_key=True, key_serde="str", value_serde="int", name="again")
    sums = again.windowed_by(tumbling("10s", grace="0s"), emit="on_close", idle=idle).reduce(add, "sums")
    texts = sums.to_stream(lambda window, n: f"{window.start}", with_key=True).map_values(str)
    texts.to("out", key_serde="str", value_serde="str")
    return builder


class Stage:
    """An application that is stopped and started again, each time in new processes."""

    def __init__(
        self,
        program: StreamsBuilder | Topology,
        directory: Path,
        log: MemoryLog | None = None,
        *,
        partitions: int = 1,
        **given: Any,
    ) -> None:
        self.log = log or MemoryLog()
        for topic in "in", AGAIN, "out":
            self.log.create_topic(topic, partitions if topic == "in" else 1, internal=topic == AGAIN)
        self.application = Application(
            "app", program, log="memory:", changelog="memory:", data_dir=str(directory), **given
        )
        self.wall = 1_000_000
        inputs = {f"0_{number}": (TopicPartition("in", number),) for number in range(partitions)} | TASKS
        self.tasks = {
            name: of for name, of in inputs.items() if len(self.application.program.subtopologies) > int(name[0])
        }

    def put(self, timestamp: int, count: int) -> None:
        """Let a record arrive of so many keys."""
        keys: list[bytes | None] = [b"%d" % each for each in range(count)]
        self.log.append(OutputBatch("in", keys, [b"x"] * count, [timestamp] * count, None, [[0]] * count))

    @contextmanager
    def started(self, processes: int = 1, names: Sequence[str] = ()) -> Iterator[list[TaskLoop]]:
        """Start the application in one process, or in one for each task; only tasks of some names, if given."""
        shares: list[Sequence[str]] = [names or [*self.tasks]] if processes == 1 else [[name] for name in self.tasks]
        with ExitStack() as stack:
            loops = []
            for share in shares:
                resources = ProcessResources()
                stack.callback(resources.close)
                loop = TaskLoop(self.application, self.tasks, self.log, resources, lambda: self.wall)
                stack.callback(loop.close)
                loop.run(share, {})
                loops.append(loop)
            yield loops

    def turn(self, loops: list[TaskLoop], condition: Callable[[], bool]) -> None:
        """Let all processes work until a condition is true."""
        deadline = monotonic() + 120
        while not condition():
            assert monotonic() < deadline, "it did not come to that"
            for loop in loops:
                loop.turn(0.001)
                assert loop.take_failures() == []

    def run(self, processes: int = 1) -> None:
        """Run until all that is due by the wall clock has been called and committed."""
        with self.started(processes) as loops:
            self.turn(loops, self._is_done)

    def has_read_all(self, *partitions: TopicPartition) -> bool:
        """Return whether all that is in the topics, or in some partitions, has been read, and that is committed."""
        inputs = partitions or [each for of in self.tasks.values() for each in of]
        return self.log.committed("app", inputs) == self.log.end_offsets(inputs)

    def _is_done(self) -> bool:
        states = [self.log.last_commit("app", name, of) for name, of in self.tasks.items()]
        has_called = all(
            each is not None and b'"timers"' in each.engine_state and are_called(each.engine_state, self.wall)
            for each in states
        )
        return has_called and self.has_read_all()


@pytest.mark.parametrize("processes", [1, 2])
def test_windows_wait_for_the_records_that_arrived_while_the_application_was_stopped(
    tmp_path: Path, processes: int
) -> None:
    """And a window behind another one for its results, which are made only now; in whatever process."""
    stage = Stage(sums_of_counts("20s"), tmp_path, key_serde="str")
    stage.put(1_000, 30)
    stage.put(12_000, 30)
    stage.run(processes)
    stage.put(13_000, 30)
    for _ in range(3):  # the first one reads what waits, closes, and then the second one does
        stage.wall += DAY_MS
        stage.run(processes)
    stage.wall += DAY_MS
    stage.run(processes)
    assert [each[:2] for each in produced(stage.log)] == [("0", "30"), ("10000", "60")]


class Silence(Processor):
    """Says when nothing has arrived for a minute."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.seen = context.get_store("seen")
        context.schedule("1m", self.look, WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        self.seen.put("last", self.context.current_system_time_ms())
        self.context.timer("k", self.context.current_system_time_ms() + 60_000, WALL_CLOCK_TIME)

    def look(self, now: int) -> None:
        is_silent = now - (self.seen.get("last") or 0) >= 60_000
        self.context.forward(Record("silent" if is_silent else "busy", "x", 1))

    def on_timer(self, key: str, at: int) -> None:
        self.context.forward(Record("timer", "x", 1))


def silence() -> Topology:
    stores = [key_value_store("seen", value_serde="int")]
    made = Topology().add_source("in", "in").add_processor("silence", Silence, "in", stores=stores)
    return made.add_sink("out", "out", "silence")


def test_schedules_and_timers_that_are_overdue_wait_for_the_records_that_waited(tmp_path: Path) -> None:
    stage = Stage(silence(), tmp_path, key_serde="str", value_serde="str")
    stage.put(1_000, 5)
    stage.run()
    stage.put(2_000, 5_000)
    stage.wall += DAY_MS
    stage.run()
    assert [each[0] for each in produced(stage.log)] == ["busy"]  # and the timer was set again


class Overdue(Processor):
    """Has a schedule of five minutes, and each record sets a timer of an hour."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("5m", self.look, WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        self.context.timer("k", self.context.current_system_time_ms() + 3_600_000, WALL_CLOCK_TIME)

    def look(self, now: int) -> None:
        self.context.forward(Record("schedule", "x", 1))

    def on_timer(self, key: str, at: int) -> None:
        self.context.forward(Record("timer", "x", 1))


@pytest.mark.parametrize("batches", [False, True])
def test_a_schedule_waits_for_one_interval_at_most_and_timers_for_a_minute(tmp_path: Path, batches: bool) -> None:
    """For records that are there, and cannot be read."""
    program = (
        Topology().add_source("in", "in").add_processor("overdue", Overdue, "in").add_sink("out", "out", "overdue")
    )
    stage = Stage(program, tmp_path, key_serde="str", value_serde="str", max_task_idle="1d")
    stage.put(1_000, 5)
    stage.run()
    stage.put(2_000, 10)
    stage.wall += DAY_MS
    opened = stage.wall
    with ExitStack() as stack:
        work = (_batches if batches else _loop_without_leader)(stage, stack)
        found = []
        for passed in 0, 59_000, 60_100, 299_000, 300_100:
            stage.wall = opened + passed
            work()
            found.append([each[0] for each in produced(stage.log)])
    assert found == [[], [], ["timer"], ["timer"], ["timer", "schedule"]]


def _loop_without_leader(stage: Stage, stack: ExitStack) -> Callable[[], None]:
    loops, patch = stack.enter_context(stage.started()), stack.enter_context(pytest.MonkeyPatch.context())
    patch.setattr(loops[0]._follower, "ends", lambda: {TASKS["0_0"][0]: None})
    patch.setattr(loops[0]._follower, "poll", lambda seconds, most: [])
    stage.turn(loops, lambda: loops[0].open_tasks == 1)

    def work() -> None:
        for _ in range(3):
            loops[0].turn(0.001)
        loops[0].commit_all()

    return work


def _batches(stage: Stage, stack: ExitStack) -> Callable[[], None]:
    """Batches in which others have the whole limit of records."""
    resources = ProcessResources()
    stack.callback(resources.close)
    worker = TaskWorker(stage.application, TaskId(0, 0), TASKS["0_0"], stage.log, resources=resources)
    stack.callback(worker.close)

    def work() -> None:
        worker.run_batch({TASKS["0_0"][0]: 5}, stage.wall, front=Front(-1))

    return work


def closed_windows() -> StreamsBuilder:
    """The starts of windows of 10 s that have closed."""
    builder = StreamsBuilder()
    windows = builder.stream("in").group_by_key().windowed_by(tumbling("10s", grace="0s"), emit="on_close", idle="20s")
    starts = windows.count("counts").to_stream(lambda window, n: f"{window.start}", with_key=True).map_values(str)
    starts.to("out", key_serde="str", value_serde="str")
    return builder


@pytest.mark.parametrize("program", [closed_windows(), sums_of_counts("20s")])
@pytest.mark.parametrize("reopens", [False, True])
def test_windows_close_in_silence_after_the_clock_was_set_back(
    tmp_path: Path, program: StreamsBuilder, reopens: bool
) -> None:
    """The task's own clock goes half as fast then, and silence counts by that one."""
    stage = Stage(program, tmp_path, key_serde="str")
    stage.wall = 2 * DAY_MS
    stage.put(1_000, 1)
    stage.put(12_000, 1)
    with stage.started() as loops:
        stage.turn(loops, stage.has_read_all)
        stage.wall -= DAY_MS
        if not reopens:
            _go_on(stage, loops)
    if reopens:
        with stage.started() as loops:
            _go_on(stage, loops)


def _go_on(stage: Stage, loops: list[TaskLoop]) -> None:
    def is_closed() -> bool:
        stage.wall += 50
        return {each[0] for each in produced(stage.log)} == {"0", "10000"}

    began = stage.wall
    stage.turn(loops, is_closed)
    assert 40_000 < stage.wall - began < DAY_MS // 2
