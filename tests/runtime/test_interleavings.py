"""A task loop whose threads and clock do what they do in any order: every result once, and state that says so."""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Processor, Record, Topology, key_value_store
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.record import OutputBatch, TopicPartition

from ..rotation import examples
from .faults import produced
from .hand_world import HandWorld
from .test_turns import LoopByHand, world

PARTITIONS = 2
OUT = TopicPartition("out", 0)
END = 10**6
"""A timestamp after all others, which moves stream time past every timer."""


class Reminds(Processor):
    """Counts records. After each comes a timer of the stream time, and after that one of the wall clock.

    A record and its timers take as many ms as its value says.
    """

    time: HandWorld

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        self._tell(f"record {self._count('record')}", int(record.value))
        if record.timestamp < END:
            self.context.timer(f"{record.timestamp} {record.value}", record.timestamp + 1, STREAM_TIME)

    def on_timer(self, key: str, at: int) -> None:
        takes = key.split()[1]
        if key.endswith("wall"):
            self._tell(f"wall {self._count('wall')}", int(takes))
        else:
            self._tell(f"stream {key}", int(takes))
            self.context.timer(f"{key} wall", self.context.current_system_time_ms() + 20, WALL_CLOCK_TIME)

    def _count(self, name: str) -> int:
        count = (self.counts.get(name) or 0) + 1
        self.counts.put(name, count)
        return int(count)

    def _tell(self, what: str, takes_ms: int) -> None:
        Reminds.time.pass_by(takes_ms / 1000)
        self.context.forward(Record(self.context.task_id, what, 1))


def reminds() -> Topology:
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("reminds", Reminds, "in", stores=["counts"])
        .add_store(key_value_store("counts", key_serde="str", value_serde="int"))
        .add_sink("out", "out", "reminds")
    )


class Sent:
    """Appends records, each later than the one before, and counts the results that must come of them."""

    def __init__(self, each: LoopByHand) -> None:
        self._log = each.log
        self._records: list[int] = [0] * PARTITIONS
        self._timestamp = 0
        self.expected = Counter[tuple[str, str]]()

    def append(self, partition: int, takes_ms: list[int]) -> None:
        for takes in takes_ms:
            self._timestamp += 1
            self._put(partition, takes, self._timestamp)
            task, nth = f"0_{partition}", self._records[partition]
            self.expected.update([(task, f"stream {self._timestamp} {takes}"), (task, f"wall {nth}")])

    def end(self) -> None:
        for partition in range(PARTITIONS):
            self._put(partition, 0, END)

    def _put(self, partition: int, takes: int, timestamp: int) -> None:
        self._records[partition] += 1
        self.expected[f"0_{partition}", f"record {self._records[partition]}"] += 1
        self._log.append(OutputBatch("in", [b"k"], [b"%d" % takes], [timestamp], None, [[partition]]))


QUIET_SECONDS = 5.0
SLOW_TIMERS = [(0, [1_200, 1_200]), (1, [1_200, 1_200])]
DUE_TOGETHER = [
    (0, [0, 0]),
    ("turn", 2),
    ("threads", "all"),
    ("turn", 1),
    (0, [0]),
    ("turn", 1),
    ("pass", 50),
    ("turn", 1),
]
"""Then the first timer of the wall clock, which may take long, is due, and a commit of its own task."""
STEP = st.one_of(
    st.tuples(st.just("turn"), st.integers(1, 4)),
    st.tuples(st.just("pass"), st.sampled_from([1, 20, 50, 1_500])),
    st.tuples(st.just("threads"), st.sampled_from(["penstock-commits", "penstock-rest", "all"])),
    st.tuples(st.integers(0, PARTITIONS - 1), st.lists(st.sampled_from([0, 0, 1, 30, 1_200]), min_size=1, max_size=5)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@example(DUE_TOGETHER, "20ms")
@example(SLOW_TIMERS, "0ms")
@given(st.lists(STEP, max_size=40), st.sampled_from(["0ms", "20ms", "1s"]))
def test_each_result_comes_once_in_any_order_of_threads_and_time(
    tmp_path: Path, steps: list[tuple[Any, Any]], interval: str
) -> None:
    directory = tmp_path / secrets.token_hex(4)
    with world(directory, reminds(), PARTITIONS, commit_interval=interval) as each:
        Reminds.time = each.time
        sent = Sent(each)
        each.open_all()
        for what, how in steps:
            if what == "turn":
                for _ in range(how):
                    each.loop.turn(0)
            elif what == "pass":
                each.time.pass_by(how / 1000)
            elif what == "threads":
                each.time.run_threads("" if how == "all" else how)
            else:
                sent.append(what, how)
        sent.end()
        finish(each)
        assert not each.loop.take_failures()
        check(each, sent)
        each.loop.close(commit=False)
        again(each, directory / "other")
        check(each, sent)


def finish(each: LoopByHand) -> None:
    """Let everything come and be committed: some seconds without a result, for slow timers of all tasks take 2.4."""
    until = each.time.now + QUIET_SECONDS
    while each.time.now < until:
        before = each.log.end_offsets([OUT])
        each.loop.turn(0)
        each.time.run_threads()
        each.time.pass_by(0.02)
        if each.log.end_offsets([OUT]) != before:
            until = each.time.now + QUIET_SECONDS


def again(each: LoopByHand, directory: Path) -> None:
    """Run the application again, with state from its changelog alone."""
    each.application = each.application.with_settings(state_dir=str(directory))
    each.resources.close()
    each.resources = ProcessResources(each.time.world)
    each.make_loop()
    each.open_all()
    finish(each)


def check(each: LoopByHand, sent: Sent) -> None:
    found = Counter((key or "", value or "") for key, value, _ in produced(each.log))
    assert found == sent.expected, f"too many: {dict(found - sent.expected)}; too few: {dict(sent.expected - found)}"
