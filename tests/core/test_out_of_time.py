"""A driver that has no more time: a task ends after the record or punctuator of now, and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Processor, Record, Topology
from penstock.program.nodes import SourceNode, TaskId
from penstock.record import RecordBatch, TopicPartition
from penstock.settings.settings import Settings
from penstock.task.input_queue import TaskInput
from penstock.task.task import Task

IN = TopicPartition("in", 0)


class Rings(Processor):
    """Notes each record, and each call of three punctuators of the stream time and two of the wall clock."""

    calls: list[str]
    end_soon: Callable[[], None]

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("5ms", self.first, STREAM_TIME)
        context.schedule("7ms", self.second, STREAM_TIME)
        context.schedule("5ms", self.third, STREAM_TIME)
        context.schedule("10ms", self.fourth, WALL_CLOCK_TIME)
        context.schedule("10ms", self.fifth, WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        self.note(f"record {record.timestamp}")

    def first(self, now: int) -> None:
        self.note(f"first {now}")

    def second(self, now: int) -> None:
        self.note(f"second {now}")

    def third(self, now: int) -> None:
        self.note(f"third {now}")

    def fourth(self, now: int) -> None:
        self.note(f"fourth {now}")

    def fifth(self, now: int) -> None:
        self.note(f"fifth {now}")

    def note(self, what: str) -> None:
        type(self).calls.append(what)
        type(self).end_soon()


def opened(position: int = 0, saved: bytes = b"") -> Task:
    program = Topology().add_source("in", "in").add_processor("rings", Rings, "in").build()
    [source] = [node for node in program.subtopology(0).nodes if isinstance(node, SourceNode)]
    return Task(
        TaskId(0, 0), program.subtopology(0), "app", Settings(), [TaskInput(IN, source, position)], {}, {}, saved=saved
    )


def feed(task: Task, timestamps: list[int], start: int = 0) -> None:
    """Feed the records from a position on."""
    rest, texts = timestamps[start:], list[bytes | None]([b"k"] * (len(timestamps) - start))
    offsets = list(range(start, len(timestamps)))
    task.feed(RecordBatch(*IN, offsets, texts, texts, rest, None, len(timestamps)))


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.data())
def test_what_is_called_and_in_which_order_does_not_depend_on_where_time_was_over(
    timestamps: list[int], data: st.DataObject
) -> None:
    Rings.calls, Rings.end_soon = [], staticmethod(lambda: None)
    whole = opened()
    feed(whole, timestamps)
    whole.plan({}, 0)
    assert whole.process(100) == len(timestamps)
    expected, Rings.calls = Rings.calls, []

    task = opened()
    feed(task, timestamps)

    def maybe() -> None:
        if data.draw(st.booleans()):
            task.progress.end_soon()

    Rings.end_soon = staticmethod(maybe)
    done = 0
    while done < len(timestamps) or task.progress.is_firing:
        before = len(Rings.calls)
        task.plan({}, 0)
        done += task.process(100)
        assert len(Rings.calls) > before, "each stretch gets somewhere"
        if data.draw(st.booleans()):
            commit = task.take_commit()
            saved = task.engine_state()
            task.close()
            task = opened(commit.positions[IN], saved)
            feed(task, timestamps, commit.positions[IN])
    assert Rings.calls == expected


def test_it_ends_after_one_record_or_punctuator() -> None:
    Rings.calls, Rings.end_soon = [], staticmethod(lambda: None)
    task = opened()
    feed(task, [1, 5, 6])
    Rings.end_soon = staticmethod(task.progress.end_soon)
    expected = ["record 1", "first 1", "second 1", "third 1", "record 5", "first 5", "third 5", "record 6"]
    for number in range(1, len(expected) + 1):
        task.plan({}, 0)
        assert task.process(100) == expected[number - 1].startswith("record")
        assert Rings.calls == expected[:number]


def test_punctuators_of_the_wall_clock_are_called_one_at_a_time() -> None:
    Rings.calls = []
    task = opened()
    Rings.end_soon = staticmethod(task.progress.end_soon)
    for name in ("fourth", "fifth"):
        task.plan({}, 10)
        assert task.next_wall_clock_punctuation() == 10
        assert task.punctuate_wall_clock()
        assert Rings.calls[-1] == f"{name} 10"
    assert len(Rings.calls) == 2 and task.next_wall_clock_punctuation() == 20


def test_a_request_for_a_commit_is_kept_when_a_stretch_begins() -> None:
    Rings.calls, Rings.end_soon = [], staticmethod(lambda: None)
    task = opened()
    feed(task, [1, 2])
    Rings.end_soon = staticmethod(task.progress.request_commit)
    task.plan({}, 0)
    assert task.process(100) == 1 and task.commit_requested
    task.plan({}, 0)
    assert task.process(100) == 0
    task.take_commit()
    assert task.process(100) == 1
