"""Punctuators: when they fire (KIP-138, KIP-1146), against a model of multiples passed, and that a re-opening changes
nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Processor, PunctuationType, Record, Topology, ValueTransformer, skip
from penstock.errors import ConfigError, ProcessingError
from penstock.task.saved_schedules import are_called
from penstock.task.schedule import first_due
from penstock.task.task import Task

from ..rotation import examples
from .tasks import batch, one_node, open_task, values

few = settings(max_examples=examples(50))


@dataclass(frozen=True)
class Plan:
    """One call of `schedule`."""

    name: str
    interval: int
    start: int | None
    clock: Any
    cancel_after: int | None = None


class Ticking(Processor):
    """Schedules what it is given, and forwards a record at each firing and each record."""

    def __init__(self, plans: list[Plan]) -> None:
        self.plans = plans

    def init(self, context: Any) -> None:
        super().init(context)
        for plan in self.plans:
            self.schedule(plan)

    def schedule(self, plan: Plan) -> None:
        fired = 0

        def fire(now: int) -> None:
            nonlocal fired
            fired += 1
            assert self.context.record_metadata is None
            self.context.forward(Record(None, f"{plan.name}@{now}", max(now, 0)))
            if fired == plan.cancel_after:
                handle.cancel()

        handle = self.context.schedule(timedelta(milliseconds=plan.interval), fire, plan.clock, start=plan.start)

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(f"record@{record.timestamp}"))


class MultiplesPassed:
    """The model: a punctuator fires when time stands at a multiple (from its start on) that it has not fired for."""

    def __init__(self, plan: Plan, first: int) -> None:
        self.plan = plan
        self.first = first
        self.fired_for = -1  # number of the last multiple

    def fires(self, now: int) -> bool:
        if now < self.first:
            return False
        multiple = (now - self.first) // self.plan.interval
        if multiple <= self.fired_for:
            return False
        self.fired_for = multiple
        return True

    def due(self) -> int:
        return self.first + (self.fired_for + 1) * self.plan.interval


def fired(models: list[MultiplesPassed], now: int) -> list[str]:
    """Those that are due, the longest overdue first; of equals, the one scheduled first."""
    order = sorted((model for model in models if model.due() <= now), key=lambda model: model.due())
    return [f"{model.plan.name}@{now}" for model in order if model.fires(now)]


INTERVALS = st.integers(1, 12)
STARTS = st.none() | st.integers(0, 30)


def plans(clock: Any) -> st.SearchStrategy[list[Plan]]:
    return st.lists(st.tuples(INTERVALS, STARTS), min_size=1, max_size=3).map(
        lambda drawn: [Plan(f"p{number}", interval, start, clock) for number, (interval, start) in enumerate(drawn)]
    )


def reopened(task: Task, make: Callable[..., Task], wall_clock_ms: int = 0) -> Task:
    saved = task.engine_state()
    task.close()
    return make(saved=saved, wall_clock_ms=wall_clock_ms)


@few
@given(plans(STREAM_TIME), st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=12))
def test_stream_time_fires_for_each_multiple_passed_and_once_when_late(
    given_plans: list[Plan], steps: list[tuple[int, bool]]
) -> None:
    topology = one_node(Ticking, plans=given_plans)

    def make(**options: Any) -> Task:
        return open_task(topology, **options)

    task = make()
    models = [MultiplesPassed(plan, plan.start or 0) for plan in given_plans]
    stream_time = -1
    for offset, (timestamp, reopen) in enumerate(steps):
        task.feed(batch("in", ("k", "v", timestamp), offset=offset))
        task.process(1)
        stream_time = max(stream_time, timestamp)
        assert values(task) == [f"record@{timestamp}", *fired(models, stream_time)]
        if reopen:
            task = reopened(task, make)


@few
@given(plans(STREAM_TIME), st.lists(st.integers(0, 40), max_size=12))
def test_records_in_one_go_or_one_by_one_are_no_difference(given_plans: list[Plan], times: list[int]) -> None:
    together, single = (open_task(one_node(Ticking, plans=given_plans)) for _ in range(2))
    together.feed(batch("in", *[("k", "v", time) for time in times]))
    together.process(100)
    for offset, time in enumerate(times):
        single.feed(batch("in", ("k", "v", time), offset=offset))
        single.process(1)
    assert values(together) == values(single)


@few
@given(plans(WALL_CLOCK_TIME), st.integers(0, 30), st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=12))
def test_the_wall_clock_fires_for_each_multiple_passed_and_once_when_late(
    given_plans: list[Plan], opened: int, steps: list[tuple[int, bool]]
) -> None:
    topology = one_node(Ticking, plans=given_plans)

    def make(**options: Any) -> Task:
        return open_task(topology, **options)

    task = make(wall_clock_ms=opened)
    assert task.take_commit().has_changed, "or a task that moves before its first record would count anew"
    models = []
    for plan in given_plans:
        if plan.start is None:
            first = opened + plan.interval
        else:
            times = range(plan.start, plan.start + opened + 99, plan.interval)
            first = plan.start if plan.start >= opened else next(time for time in times if time > opened)
        models.append(MultiplesPassed(plan, first))
    now = opened
    for step, reopen in steps:
        now += step
        if reopen:
            task = reopened(task, make, now)
        task.plan({}, now)
        assert task.next_wall_clock_punctuation() == min(model.due() for model in models)
        expected = fired(models, now)
        assert task.punctuate_wall_clock() == bool(expected)
        assert values(task) == expected
        assert task.punctuate_wall_clock() is False


def test_the_wall_clock_never_goes_back_even_over_a_reopening() -> None:
    def make(**options: Any) -> Task:
        return open_task(one_node(Ticking, plans=[Plan("p", 10, None, WALL_CLOCK_TIME)]), **options)

    task = make(wall_clock_ms=100)
    task.plan({}, 90)
    assert task.wall_clock == 100
    task = reopened(task, make, 50)
    assert task.wall_clock == 100
    assert task.next_wall_clock_call() == 110
    assert task.next_wall_clock_punctuation() == 70  # by the driver's clock: the task's goes half as fast


@few
@given(
    st.integers(1, 4), st.lists(st.booleans(), min_size=8, max_size=8), st.sampled_from([STREAM_TIME, WALL_CLOCK_TIME])
)
def test_what_was_cancelled_stays_so_and_leaves_the_others_alone(
    after: int, reopenings: list[bool], clock: Any
) -> None:
    # The count of firings is an attribute, so the task is opened again only after the cancelling.
    topology = one_node(Ticking, plans=[Plan("once", 1, 1, clock, after), Plan("ever", 1, 1, clock)])

    def make(**options: Any) -> Task:
        return open_task(topology, **options)

    task, seen = make(), []
    for now, reopen in enumerate(reopenings, 1):
        if clock is STREAM_TIME:
            task.feed(batch("in", ("k", "v", now), offset=now))
            task.process(1)
        else:
            task.plan({}, now)
            task.punctuate_wall_clock()
        seen += [value for value in values(task) if not value.startswith("record")]
        if reopen and now >= after:
            task = reopened(task, make, now)
    assert [value for value in seen if "once" in value] == [f"once@{now}" for now in range(1, after + 1)]
    assert [value for value in seen if "ever" in value] == [f"ever@{now}" for now in range(1, 9)]


def test_a_punctuator_may_cancel_another_that_is_due_too() -> None:
    class Killing(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            self.handles = [context.schedule("5ms", self.fire, STREAM_TIME) for _ in range(3)]

        def fire(self, now: int) -> None:
            self.context.forward(Record(None, "fired", now))
            for handle in self.handles:
                handle.cancel()

        def process(self, record: Record) -> None:
            pass

    task = open_task(one_node(Killing))
    task.feed(batch("in", ("k", "v", 7), ("k", "v", 700)))
    task.process(10)
    assert values(task) == ["fired"]


def test_a_schedule_made_while_processing_or_firing_is_seen_at_once() -> None:
    class Later(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record)
            self.context.schedule("10ms", self.fire, STREAM_TIME)

        def fire(self, now: int) -> None:
            self.context.forward(Record(None, f"fired@{now}", now))
            self.context.schedule("5ms", self.fire_nested, STREAM_TIME, start=8)

        def fire_nested(self, now: int) -> None:
            self.context.forward(Record(None, f"nested@{now}", now))

    task = open_task(one_node(Later))
    task.feed(batch("in", ("k", "v", 3)))
    task.process(1)
    assert values(task) == ["v", "fired@3"]
    task.feed(batch("in", ("k", "v", 9), offset=1))
    task.process(1)
    # The first one is due at 10 again; the second record's own is due at once, and what that makes at 13.
    assert values(task) == ["v", "fired@9", "nested@9"]


def test_a_firing_may_forward_to_one_child_and_ask_for_a_commit() -> None:
    class Committing(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(
                "1ms", lambda now: (context.forward(Record(None, "x", now), "b"), context.commit()), STREAM_TIME
            )

        def process(self, record: Record) -> None:
            pass

    topology = Topology().add_source("in", "in").add_processor("p", Committing, "in")
    task = open_task(topology.add_sink("a", "out-a", "p").add_sink("b", "out-b", "p"))
    task.feed(batch("in", ("k", "v", 3), ("k", "v", 3)))
    assert task.process(10) == 1
    assert task.commit_requested
    assert [(made.topic, made.values, made.timestamps) for made in task.take_outputs()] == [("out-b", [b"x"], [3])]


def test_a_value_transformer_may_schedule() -> None:
    times: list[int] = []

    class Watch(ValueTransformer):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule("10ms", times.append, STREAM_TIME)

        def transform(self, key: Any, value: Any) -> Any:
            return value

    task = open_task(Topology().add_source("in", "in").add_processor("p", Watch, "in"))
    task.feed(batch("in", ("k", "v", 3), ("k", "v", 12)))
    task.process(2)
    assert times == [3, 12]


def failing(clock: Any) -> Topology:
    class Failing(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule("10ms", self.fire, clock)

        def fire(self, now: int) -> None:
            raise ValueError(f"at {now}")

        def process(self, record: Record) -> None:
            self.context.forward(record)

    return one_node(Failing)


def test_a_punctuator_that_raises_is_named() -> None:
    task = open_task(failing(STREAM_TIME))
    task.feed(batch("in", ("k", "v", 3)))
    with pytest.raises(
        ProcessingError, match="application 'app', task 0_0, node 'p', in a punctuator: ValueError: at 3"
    ):
        task.process(1)


def test_a_punctuator_that_raises_may_be_skipped_and_fires_again() -> None:
    task = open_task(failing(WALL_CLOCK_TIME), processing_handler=skip)
    for now in (10, 20):
        task.plan({}, now)
        task.punctuate_wall_clock()
    assert task.metrics()["p"].dropped == {"skipped": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0ms", print, STREAM_TIME), "node 'p': a punctuation interval must be at least 1 ms, found 0 ms"),
        ((5, print, STREAM_TIME), "node 'p': punctuation interval: expected a timedelta or text"),
        (("1s", 7, STREAM_TIME), "node 'p': the punctuator 7 is not callable"),
        (
            ("1s", STREAM_TIME, print),
            r"not callable; Java gives the clock first: write schedule\(INTERVAL, PUNCTUATOR, ",
        ),
        (("1s", print, "stream"), "node 'p': clock must be STREAM_TIME or WALL_CLOCK_TIME, found 'stream'"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    class Wrong(Processor):
        def init(self, context: Any) -> None:
            context.schedule(*arguments)

        def process(self, record: Record) -> None:
            pass

    with pytest.raises(ConfigError, match=message):
        open_task(one_node(Wrong))


@pytest.mark.parametrize("start", [-1, "1s"])
def test_a_start_is_a_point_in_time(start: Any) -> None:
    with pytest.raises(ConfigError, match="node 'p': start is in ms since the epoch, at least 0"):
        open_task(one_node(Ticking, plans=[Plan("p", 1, start, STREAM_TIME)]))


@pytest.mark.parametrize("clock", [STREAM_TIME, WALL_CLOCK_TIME])
@pytest.mark.parametrize(("start", "due"), [(100, 100), (50, 50), (45, 55), (40, 60), (10, 60), (0, 60)])
def test_a_start_that_is_over_is_moved_on_to_the_next_aligned_time(
    clock: PunctuationType, start: int, due: int
) -> None:
    assert first_due(clock, 10, start, 50) == due


def test_without_a_start_stream_time_is_due_at_once_and_the_wall_clock_after_an_interval() -> None:
    assert (first_due(STREAM_TIME, 10, None, 50), first_due(WALL_CLOCK_TIME, 10, None, 50)) == (0, 60)


def test_what_is_due_by_the_clock_of_a_task_is_not_called_although_the_drivers_was_set_back() -> None:
    task = open_task(one_node(Ticking, plans=[Plan("p", 10_000, None, WALL_CLOCK_TIME)]), wall_clock_ms=1_000_000)
    task.plan({}, 500_000)
    state = task.engine_state()  # due at 1_010_000, which is 20 s from now by the driver's clock
    assert [are_called(state, at) for at in (499_999, 500_000, 519_999, 520_000)] == [True, True, True, False]
