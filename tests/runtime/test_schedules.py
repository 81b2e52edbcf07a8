"""Schedules of a re-opened task: those made in `init`, in `process` and by punctuators go on as in a task that was kept
open."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Processor,
    Record,
    Topology,
    ValueTransformer,
    key_value_store,
)
from penstock.errors import ConfigError, ProcessingError
from penstock.log import ENGINE_STATE_BYTES
from penstock.plugins.testing import MockProcessorContext, TopologyTestDriver
from penstock.task.task import Task
from tests.core.tasks import batch, one_node, open_task, values

from ..rotation import examples

CLOCKS = {"stream": STREAM_TIME, "wall": WALL_CLOCK_TIME}


# ---------------------------------------------------------------------- random programs


@dataclass(frozen=True)
class Plan:
    """What to call `schedule` with. `site` is the callback: a method, or where `named` a function that init gives a
    name."""

    site: int
    clock: str
    interval: int
    start: int | None


@dataclass(frozen=True)
class Step:
    """One thing that a processor does: make a schedule, cancel what `init` made, or both ("again", by the same
    handle)."""

    does: str
    plan: Plan


METHODS, NAMES = 3, 2


class Acting(Processor):
    """Does what its program says: `in_init` a list of steps, each record the list that its value names, a callback's
    first ticks others.

    What it counts is in `ticks`, which outlasts a re-opening as a store does.
    """

    def __init__(
        self,
        in_init: list[Step],
        on_record: list[list[Step]],
        on_tick: dict[tuple[int, int], list[Step]],
        ticks: Counter[tuple[str, int]],
    ) -> None:
        self.in_init, self.on_record, self.on_tick, self.ticks = in_init, on_record, on_tick, ticks
        self.handles: dict[int, Any] = {}

    def init(self, context: Any) -> None:
        super().init(context)
        for site in range(METHODS, METHODS + NAMES):
            self.handles[site] = self.make(Plan(site, "wall", 7, None))
            self.handles[site].cancel()
        for step in self.in_init:
            self.handles[step.plan.site] = self.make(step.plan)
            if step.does == "cancel":
                self.handles[step.plan.site].cancel()

    def run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            site = step.plan.site
            if step.does in ("cancel", "again") and site in self.handles:
                self.handles[site].cancel()
            if step.does in ("make", "again"):
                made = self.make(step.plan)
                if step.does == "again" and site in self.handles:
                    self.handles[site] = made

    def make(self, plan: Plan) -> Any:
        """Call `schedule`."""
        callback: Any = getattr(self, f"tick{plan.site}", None) or partial(self.tick, plan.site)
        name = None if plan.site < METHODS else f"n{plan.site}"
        interval = timedelta(milliseconds=plan.interval)
        return self.context.schedule(interval, callback, CLOCKS[plan.clock], start=plan.start, name=name)

    def process(self, record: Record) -> None:
        self.context.forward(record)
        if "tick" not in record.value:
            self.run(self.on_record[int(record.value)])

    def tick(self, site: int, now: int) -> None:
        self.ticks[self.context.node, site] += 1
        number = self.ticks[self.context.node, site]
        self.context.forward(Record(None, f"tick {self.context.node}.{site} {number} at {now}", now))
        self.run(self.on_tick.get((site, number), ()))

    def tick0(self, now: int) -> None:
        self.tick(0, now)

    def tick1(self, now: int) -> None:
        self.tick(1, now)

    def tick2(self, now: int) -> None:
        self.tick(2, now)


def plans(sites: int) -> st.SearchStrategy[Plan]:
    starts = st.none() | st.integers(0, 40)
    return st.builds(Plan, st.integers(0, sites - 1), st.sampled_from(list(CLOCKS)), st.integers(1, 12), starts)


STEPS = st.lists(st.builds(Step, st.sampled_from(["make", "cancel", "again"]), plans(METHODS + NAMES)), max_size=3)
PROGRAMS = st.tuples(
    st.lists(
        st.builds(Step, st.sampled_from(["make", "make", "cancel"]), plans(METHODS)),
        max_size=METHODS,
        unique_by=lambda step: step.plan.site,
    ),
    st.lists(STEPS, min_size=3, max_size=3),
    st.dictionaries(st.tuples(st.integers(0, METHODS + NAMES - 1), st.integers(1, 2)), STEPS, max_size=3),
)
EVENTS = st.lists(
    st.tuples(st.tuples(st.integers(0, 2), st.integers(0, 40)) | st.integers(0, 15), st.booleans()),
    min_size=1,
    max_size=10,
)
"""A record (which list of steps, timestamp), or by how much the wall clock goes on; and whether the task is opened
again after it."""


def seen(programs: list[tuple[Any, Any, Any]], events: list[Any], reopen: bool) -> list[list[str]]:
    """What each event has a task send on."""
    topology, last = Topology().add_source("in", "in"), "in"
    ticks: Counter[tuple[str, int]] = Counter()
    for number, (in_init, on_record, on_tick) in enumerate(programs):
        name = f"p{number}"
        topology.add_processor(name, Acting, last, in_init=in_init, on_record=on_record, on_tick=on_tick, ticks=ticks)
        last = name
    topology.add_sink("out", "out", last)
    task, now, found = open_task(topology, wall_clock_ms=100), 100, []
    saved = task.engine_state()
    for offset, (happens, then_reopen) in enumerate(events):
        if isinstance(happens, int):
            now += happens
            task.plan({}, now)
            task.punctuate_wall_clock()
        else:
            task.feed(batch("in", (None, str(happens[0]), happens[1]), offset=offset))
            task.process(1)
        found.append(values(task))
        made = task.take_commit()
        if isinstance(happens, int) and not made.has_changed:
            assert json.loads(task.engine_state()).get("timers") == json.loads(saved).get("timers")
        saved = task.engine_state()
        if reopen and then_reopen:
            task.close()
            task = open_task(topology, wall_clock_ms=now, saved=saved)
            assert task.engine_state() == saved
    return found


@settings(max_examples=examples(100))
@given(st.lists(PROGRAMS, min_size=1, max_size=2), EVENTS)
def test_what_is_scheduled_and_cancelled_anywhere_is_the_same_in_a_task_that_is_opened_again(
    programs: list[tuple[Any, Any, Any]], events: list[Any]
) -> None:
    kept = seen(programs, events, reopen=False)
    event(f"ticks: {min(5, sum('tick' in each for step in kept for each in step))}")
    assert seen(programs, events, reopen=True) == kept


# ---------------------------------------------------------------------- through commits


class Restarting(Processor):
    """Each record starts the clock again, as a time-out does."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.handle = context.schedule("10ms", self.tick, WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        self.handle.cancel()
        self.handle = self.context.schedule("4ms", self.tick, WALL_CLOCK_TIME)

    def tick(self, now: int) -> None:
        self.context.forward(Record("tick", f"{self.context.task_id}@{now}", now))


@pytest.mark.parametrize("reopen", [False, True])
def test_cancel_and_schedule_in_process_ticks_the_same_in_every_task_however_often_it_is_opened(reopen: bool) -> None:
    with TopologyTestDriver(one_node(Restarting), partitions=2, reopen_tasks=reopen) as driver:
        for partition in (0, 1, 1):
            driver.pipe("in", "k", "v", partition=partition)
            driver.advance_wall_clock("2ms")
        for _ in range(9):
            driver.advance_wall_clock("2ms")
        found = sorted(record.value for record in driver.read_all("out"))
    first = [f"0_0@{time}" for time in (4, 8, 12, 16, 20, 24)]
    assert found == sorted([*first, *(f"0_1@{time}" for time in (8, 12, 16, 20, 24))])


def test_a_punctuator_that_schedules_itself_again_with_another_interval_fires_once_at_each_time() -> None:
    class Slower(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule("1ms", self.tick, STREAM_TIME, name="slower")

        def process(self, record: Record) -> None:
            pass

        def tick(self, now: int) -> None:
            self.context.forward(Record(None, f"{now}", now))
            self.context.schedule(f"{2 * now + 1}ms", self.tick, STREAM_TIME, name="slower")

    for reopen in (False, True):
        with TopologyTestDriver(one_node(Slower), reopen_tasks=reopen) as driver:
            for timestamp in range(12):
                driver.pipe("in", "k", "v", timestamp)
            assert [record.value for record in driver.read_all("out")] == ["0", "1", "3", "7"]


# ---------------------------------------------------------------------- what is refused


class Asking(Processor):
    """Schedules what a function says, at each record."""

    def __init__(self, ask: Callable[[Asking], Any]) -> None:
        self.ask = ask

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1h", lambda now: self.tick(now), WALL_CLOCK_TIME, name="known").cancel()

    def process(self, record: Record) -> None:
        self.ask(self)

    def tick(self, now: int) -> None:
        self.context.forward(Record(None, "tick", now))

    def __private(self, now: int) -> None:
        self.tick(now)

    private = __private


def ask(ask: Callable[[Asking], Any]) -> Task:
    """The task that has been asked, by one record."""
    task = open_task(one_node(Asking, ask=ask), wall_clock_ms=0)
    task.feed(batch("in", ("k", "v", 3)))
    task.process(1)
    return task


@pytest.mark.parametrize(
    "schedule",
    [
        lambda self: self.context.schedule("1ms", lambda now: None, WALL_CLOCK_TIME),
        lambda self: self.context.schedule("1ms", print, STREAM_TIME),
        lambda self: self.context.schedule("1ms", partial(self.tick), WALL_CLOCK_TIME),
        lambda self: self.context.schedule("1ms", Asking(print).tick, WALL_CLOCK_TIME),
        lambda self: self.context.schedule("1ms", lambda now: None, WALL_CLOCK_TIME, name="unknown"),
    ],
)
def test_what_a_reopened_task_could_not_find_is_refused_at_the_call(schedule: Any) -> None:
    with pytest.raises(
        ProcessingError, match="node 'p': schedules .* outside init.*could not find that function again"
    ) as error:
        ask(schedule)
    assert isinstance(error.value.__cause__, ConfigError)
    context = MockProcessorContext(node="p")
    processor = context.start(Asking(schedule))
    with pytest.raises(ConfigError, match="node 'p': schedules .* outside init.*could not find that function again"):
        processor.process(Record("k", "v", 3))


@pytest.mark.parametrize(
    "schedule",
    [
        lambda self: self.context.schedule("1ms", self.tick, WALL_CLOCK_TIME),
        lambda self: self.context.schedule("1ms", self._Asking__private, WALL_CLOCK_TIME),
        lambda self: self.context.schedule("1ms", lambda now: None, WALL_CLOCK_TIME, name="known"),
        lambda self: self.context.schedule("1ms", self.tick, WALL_CLOCK_TIME, name="new"),
    ],
)
def test_what_it_can_find_fires_before_and_after(schedule: Any) -> None:
    task = ask(schedule)
    again = open_task(one_node(Asking, ask=schedule), saved=task.engine_state())
    for each in (task, again):
        each.plan({}, 1)
        each.punctuate_wall_clock()
        assert values(each) == ["tick"]


@pytest.mark.parametrize("name", ["", ".tick", 7])
def test_a_name_is_text(name: Any) -> None:
    with pytest.raises(
        ProcessingError, match="node 'p': the name of a schedule is text that does not begin with a dot"
    ):
        ask(lambda self: self.context.schedule("1ms", self.tick, STREAM_TIME, name=name))


def test_a_name_is_one_schedule_of_a_node() -> None:
    class Twice(Processor):
        def init(self, context: Any) -> None:
            for _ in range(2):
                context.schedule("1ms", self.process, STREAM_TIME, name="n")

        def process(self, record: Any) -> None:
            pass

    with pytest.raises(ConfigError, match="node 'p': its init makes two schedules with the name 'n'"):
        open_task(one_node(Twice))


def test_too_many_are_an_error_at_the_call_and_what_was_there_goes_on() -> None:
    def fill(self: Asking) -> None:
        while True:
            self.context.schedule("1h", self.tick, WALL_CLOCK_TIME)

    with pytest.raises(ProcessingError, match=r"node 'p': one schedule too many. The \d+ of its task take \d+ bytes"):
        ask(fill)

    made = 0

    def fill_and_stop(self: Asking) -> None:
        nonlocal made
        with pytest.raises(ConfigError):
            while True:
                self.context.schedule("1h", self.tick, WALL_CLOCK_TIME, start=1_700_000_000_000)
                made += 1

    task = ask(fill_and_stop)
    assert made > 40
    saved = task.engine_state()
    assert len(saved) < ENGINE_STATE_BYTES
    again = open_task(one_node(Asking, ask=fill), saved=saved)
    again.plan({}, 1_700_000_000_000)
    again.punctuate_wall_clock()
    assert len(values(again)) == made

    context = MockProcessorContext(node="p")
    with pytest.raises(ConfigError, match="node 'p': one schedule too many"):
        context.start(Asking(fill)).process(Record("k", "v", 3))


def test_a_call_that_is_refused_leaves_the_schedule_that_it_would_have_replaced() -> None:
    def fill_and_replace(self: Asking) -> None:
        self.context.schedule("5ms", self.tick, WALL_CLOCK_TIME, name="first")
        with pytest.raises(ConfigError):
            while True:
                self.context.schedule("1h", self.tick, WALL_CLOCK_TIME)
        with pytest.raises(ConfigError):
            self.context.schedule("1000000h", self.tick, WALL_CLOCK_TIME, name="first")

    task = ask(fill_and_replace)
    assert task.next_wall_clock_punctuation() == 5


# ---------------------------------------------------------------------- another program, another release


class Ticking(Processor):
    """Makes in `init` and at each record the schedules it is told: (method, milliseconds) or (method, milliseconds,
    name)."""

    def __init__(self, in_init: Iterable[Any] = (), on_record: Iterable[Any] = ()) -> None:
        self.in_init, self.on_record = in_init, on_record

    def init(self, context: Any) -> None:
        super().init(context)
        for each in self.in_init:
            self.make(*each)

    def process(self, record: Record) -> None:
        for each in self.on_record:
            self.make(*each)

    def make(self, method: str, interval: int, name: str | None = None, clock: Any = WALL_CLOCK_TIME) -> None:
        self.context.schedule(timedelta(milliseconds=interval), getattr(self, method), clock, name=name)

    def one(self, now: int) -> None:
        self.context.forward(Record(None, f"one@{now}", now))


class TickingMore(Ticking):
    def two(self, now: int) -> None:
        self.context.forward(Record(None, f"two@{now}", now))


def changed(task: Task | None, kind: type[Processor] = Ticking, at: int = 0, **options: Any) -> Task:
    """A task with this program, which goes on from another's and has had one record."""
    saved = b"" if task is None else task.engine_state()
    made = open_task(one_node(kind, **options), wall_clock_ms=at, saved=saved)
    made.feed(batch("in", ("k", "v", 3)))
    made.process(1)
    return made


def fired(task: Task, now: int) -> list[str]:
    task.plan({}, now)
    task.punctuate_wall_clock()
    return values(task)


def test_another_order_in_init_and_one_more_keep_the_due_times() -> None:
    task = changed(None, TickingMore, in_init=[("one", 10), ("two", 100)])
    more = changed(task, TickingMore, at=5, in_init=[("two", 100), ("two", 20, "new"), ("one", 10)])
    assert [fired(more, now) for now in (10, 25, 100)] == [
        ["one@10"],
        ["one@25", "two@25"],
        ["one@100", "two@100", "two@100"],
    ]


def test_a_schedule_that_init_no_longer_makes_ends() -> None:
    task = changed(None, TickingMore, in_init=[("one", 10), ("two", 10)])
    assert fired(changed(task, TickingMore, in_init=[("one", 10)]), 10) == ["one@10"]


def test_what_process_made_and_init_makes_now_is_one_schedule() -> None:
    task = changed(None, on_record=[("one", 10)])
    assert fired(changed(task, in_init=[("one", 25)]), 10) == ["one@10"]


def test_another_clock_is_another_schedule() -> None:
    task = changed(None, in_init=[("one", 10, None, STREAM_TIME)])
    again = changed(task, at=50, in_init=[("one", 10)])
    values(again)
    assert [fired(again, now) for now in (59, 60)] == [[], ["one@60"]]


@pytest.mark.parametrize("name", [None, "named"])
def test_the_schedule_of_a_method_that_is_gone_is_kept_and_said_until_the_method_is_back(
    name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    task = changed(None, TickingMore, on_record=[("two", 10, name), ("one", 10)])
    with caplog.at_level(logging.WARNING, "penstock.task"):
        without = changed(task, in_init=[])
    assert "node 'p': the program no longer has a method 'two'" in caplog.text
    assert fired(without, 10) == ["one@10"]
    assert fired(changed(without, in_init=[]), 20) == ["one@20"], "kept twice"
    assert fired(changed(changed(without), TickingMore), 25) == ["two@25", "one@25"]


def test_so_is_that_of_a_node_that_is_gone_and_of_a_name(caplog: pytest.LogCaptureFixture) -> None:
    task = changed(None, Asking, ask=lambda self: self.context.schedule("7ms", print, WALL_CLOCK_TIME, name="known"))
    elsewhere = Topology().add_source("in", "in").add_processor("other", Ticking, "in").add_sink("out", "out", "other")
    without = open_task(elsewhere, saved=task.engine_state())
    also_without = changed(without)
    assert caplog.text.count("no longer has a callback that that node's init gives the name 'known'") == 2
    assert fired(changed(also_without, Asking, ask=repr), 7) == ["tick"]


def test_a_value_transformer_schedules_its_methods() -> None:
    class Watch(ValueTransformer):
        def transform(self, key: Any, value: Any) -> Any:
            if self.context.current_stream_time_ms() < 8:
                self.context.schedule("10ms", self.tick, STREAM_TIME, start=8, name="watch")
            return value

        def tick(self, now: int) -> None:
            self.context.get_store("times").put(str(now), now)

    times = key_value_store("times", value_serde="int")
    topology = Topology().add_source("in", "in").add_processor("p", Watch, "in", stores=[times])
    with TopologyTestDriver(topology, reopen_tasks=True) as driver:
        for timestamp in (3, 12, 13, 19):
            driver.pipe("in", "k", "v", timestamp)
        assert [time for _, time in driver.store("times").all()] == [12, 19]


def test_the_mock_context_shows_what_took_a_schedules_place() -> None:
    context = MockProcessorContext()
    processor = context.start(Restarting())
    processor.process(Record("k", "v", 3))
    first, second = context.punctuators
    assert (first.cancelled, second.cancelled) == (True, False)
    assert (first.interval_ms, second.interval_ms) == (10, 4)
    second.punctuator(7)
    assert context.values() == ["0_0@7"]
    second.cancel()
    assert second.cancelled
