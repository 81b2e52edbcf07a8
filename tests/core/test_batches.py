"""Batches of a bare task: what lets records go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock import ProcessorContext, Topology
from penstock.operator import Operator, Run
from penstock.record import TopicPartition
from penstock.task.task import Task

from .tasks import batch, open_task, values

IN = TopicPartition("in", 0)


class Batching(Operator):
    def __init__(self, most: int) -> None:
        self.most = most

    def bind(self, context: ProcessorContext) -> Run:
        def compute(records: Sequence[Any]) -> list[int]:
            return [len(records)] * len(records)

        def emit(record: Any, size: int) -> None:
            context.send((record[0], f"{record[1]} of {size}", record[2], record[3]))

        return context.batched(compute, emit, self.most, "30ms")


def opened(most: int, saved: bytes = b"") -> Task:
    topology = (
        Topology().add_source("in", "in").add_processor("p", Batching, "in", most=most).add_sink("out", "out", "p")
    )
    return open_task(topology, saved=saved)


def test_records_go_when_there_are_enough_and_when_the_first_has_waited_long_enough() -> None:
    task = opened(3)
    task.plan({IN: 5}, 100)
    task.feed(batch("in", *(("k", str(number), 1) for number in range(5))))
    assert task.process(100) == 5
    assert values(task) == ["0 of 3", "1 of 3", "2 of 3"]
    assert task.next_wall_clock_punctuation() == task.next_wall_clock_call() == 130
    task.plan({IN: 5}, 129)
    assert not task.punctuate_wall_clock() and values(task) == []
    task.plan({IN: 5}, 130)
    assert task.is_wall_clock_due(130) and task.punctuate_wall_clock()
    assert values(task) == ["3 of 2", "4 of 2"] and task.next_wall_clock_punctuation() is None


def test_a_commit_has_the_records_of_its_positions() -> None:
    task = opened(100)
    task.plan({IN: 2}, 0)
    task.feed(batch("in", ("k", "a", 1), ("k", "b", 1)))
    task.process(100)
    commit = task.take_commit()
    assert commit.positions == {IN: 2}
    assert [value for each in commit.outputs for value in each.values] == [b"a of 2", b"b of 2"]
    assert task.next_wall_clock_punctuation() is None
