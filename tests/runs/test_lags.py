"""Lags: whatever is asked for, the answer is as if everything were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Commit, OutputBatch, TopicPartition
from penstock.plugins.engine.run.planning import planner
from penstock.plugins.engine.run.planning.planner import Lags
from penstock.plugins.logs.memory import MemoryLog

PARTITIONS = [TopicPartition("in", number) for number in range(4)]


class SlowLog(MemoryLog):
    """A log that takes a tenth of a second for each partition, on a clock of its own, and counts requests."""

    seconds = 0.0

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        self.seconds += 0.1 * len(partitions)
        return super().end_offsets(partitions)


class Stage:
    def __init__(self) -> None:
        self.log = SlowLog()
        self.log.create_topic("in", len(PARTITIONS))
        self.lags = self.new()

    def new(self) -> Lags:
        return Lags(self.log, "app", PARTITIONS, [], {}, lambda: 0, lambda: self.log.seconds)

    def put(self, number: int) -> None:
        self.log.append(OutputBatch("in", [b"k"], [b"v"], [0], partitions=[[number]]))

    def process(self, number: int) -> None:
        partition = PARTITIONS[number]
        committer = self.log.open_committer("app", f"0_{number}", [partition])
        committer.commit(Commit({partition: self.log.end_offsets([partition])[partition]}, "000000000001-x"), [])
        committer.close()


@pytest.fixture(autouse=True)
def none_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_FEW", 0)


STEPS = st.lists(st.tuples(st.sampled_from(["put", "process", "look", "wait"]), st.integers(0, 3)), max_size=40)


@given(STEPS)
def test_looks_are_right_about_what_they_say_and_idle_only_when_all_are(steps: list[tuple[str, int]]) -> None:
    stage = Stage()
    for what, number in steps:
        if what == "put":
            stage.put(number)
        elif what == "process":
            stage.process(number)
        elif what == "wait":
            stage.log.seconds += number
        else:
            stage.lags.look(everything=False)
            truth = stage.new()
            truth.look(everything=True)
            assert stage.lags.behind.items() <= truth.behind.items()
            assert bool(stage.lags.behind) == bool(truth.behind)
            assert all(stage.lags.ends[each] == truth.ends[each] for each in stage.lags.behind)


def test_while_a_partition_is_behind_the_others_are_asked_for_now_and_then() -> None:
    stage = Stage()
    stage.put(0)
    stage.lags.look(everything=False)
    stage.put(1)
    began = stage.log.seconds
    stage.lags.look(everything=False)
    assert stage.lags.behind.keys() == {PARTITIONS[0]}
    assert stage.log.seconds - began == pytest.approx(0.1)
    stage.log.seconds += 20 * 0.4
    stage.lags.look(everything=False)
    assert stage.lags.behind.keys() == {PARTITIONS[0], PARTITIONS[1]}
