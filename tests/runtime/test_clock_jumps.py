"""The machine's clock jumps while tasks of the continuous mode run: schedules neither storm nor rest for long."""

from __future__ import annotations

import tempfile
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import WALL_CLOCK_TIME, Application, Processor, Record, Topology
from penstock.plugins.logs.memory import MemoryLog
from penstock.record import TopicPartition

from .faults import produced
from .test_task_loop import looping, put, turn_until

HOUR, INTERVAL = 3_600_000, 10_000


class Ticks(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("10s", lambda now: context.forward(Record("tick", str(now), now)), WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        self.context.timer(record.key, self.context.current_system_time_ms() + 60_000, WALL_CLOCK_TIME)

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, f"timer {at}", at))


def ticks(log: MemoryLog) -> list[int]:
    return [int(value or "") for key, value, _ in produced(log) if key == "tick"]


JUMPS = st.sampled_from([HOUR, -HOUR, -700, 1_300, -3 * HOUR]) | st.integers(-2 * HOUR, 2 * HOUR)


@settings(max_examples=10)
@example(jumps=[(HOUR, False), (-HOUR, False)])
@example(jumps=[(HOUR, False), (-HOUR, True)])
@given(st.lists(st.tuples(JUMPS, st.booleans()), min_size=1, max_size=4))
def test_schedules_neither_storm_nor_rest(jumps: list[tuple[int, bool]]) -> None:
    """Between two jumps half a minute passes; with some of them another host takes the task over."""
    log, now = MemoryLog(), 1_000 * HOUR
    log.create_topic("in", 1)
    log.create_topic("out", 1)
    topology = Topology().add_source("in", "in").add_processor("ticks", Ticks, "in").add_sink("out", "out", "ticks")
    with tempfile.TemporaryDirectory() as directory:
        of = Application("app", topology, log="memory:", changelog="memory:", data_dir=directory, commit_interval="0ms")
        tasks: dict[str, tuple[TopicPartition, ...]] = {"0_0": (TopicPartition("in", 0),)}
        left = [(0, False), *jumps]
        put(log, 0, "one", "two")
        while left:
            with looping(of, log, tasks, lambda: now) as loop:  # noqa: B023
                turn_until(loop, lambda: loop.open_tasks == 1)
                while left:
                    jump, moves = left.pop(0)
                    now += jump
                    before = len(ticks(log))
                    for _ in range(35):
                        now += 1_000
                        loop.turn(0.0)
                        loop.commit_all()
                    assert 1 <= len(ticks(log)) - before <= 5
                    assert not loop.take_failures()
                    if moves:
                        break
        times = ticks(log)
        assert times == sorted(set(times))
        timers = [value for _, value, _ in produced(log) if value and value.startswith("timer")]
        assert len(timers) == len(set(timers)) <= 1
