"""Timers per key: when they fire, against a model, and that re-openings and restores change nothing."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Application,
    Processor,
    PunctuationType,
    Record,
    Topology,
    ValueTransformer,
    skip,
)
from penstock.errors import ConfigError, ProcessingError, TopologyError
from penstock.plugins.testing import MockProcessorContext, TopologyTestDriver
from penstock.support.names import is_topic_name, timer_store_name

from ..rotation import examples
from .tasks import one_node, open_task

CLOCKS = {"s": STREAM_TIME, "w": WALL_CLOCK_TIME}


class Told(Processor):
    """Does what the value of a record says: `s5` and `w5` set a timer of its key, `s-` and `w-` cancel it.

    A timer of key "twice" sets another one 3 ms later, once. One of key "raise" raises.
    """

    def process(self, record: Record) -> None:
        for word in record.value.split():
            clock = CLOCKS[word[0]]
            if word[1:] == "-":
                self.context.cancel_timer(record.key, clock)
            else:
                self.context.timer(record.key, int(word[1:]), clock)

    def on_timer(self, key: Any, at: int) -> None:
        assert self.context.record_metadata is None
        if key == "raise":
            raise ValueError("as asked")
        if key == "twice" and at % 2 == 0:
            self.context.timer(key, at + 3, STREAM_TIME)
        self.context.forward(Record(key, f"{key}@{at}", self.context.current_stream_time_ms()))


def topology(supplier: Any = Told, **options: Any) -> Topology:
    built = Topology().add_source("in", "in", key_serde="str", value_serde="str")
    return built.add_processor("p", supplier, "in", **options).add_sink(
        "out", "out", "p", key_serde="str", value_serde="str"
    )


def said(driver: TopologyTestDriver) -> list[str]:
    return [record.value for record in driver.read_all("out")]


@pytest.mark.parametrize("reopen", [False, True])
def test_a_timer_fires_once_after_the_record_that_moves_stream_time(reopen: bool) -> None:
    with TopologyTestDriver(topology(), reopen_tasks=reopen) as driver:
        driver.pipe("in", "b", "s20", 0)
        driver.pipe("in", "a", "s20", 0)
        driver.pipe("in", "c", "s5 s30", 0)  # the second one replaces the first
        driver.pipe("in", "d", "s7", 1)
        assert said(driver) == []
        driver.pipe("in", "x", "", 19)
        assert said(driver) == ["d@7"]
        driver.pipe("in", "x", "s40", 35)
        assert said(driver) == ["a@20", "b@20", "c@30"]
        driver.pipe("in", "x", "s-", 39)
        driver.pipe("in", "y", "s50", 50)  # the present time
        assert said(driver) == ["y@50"]
        driver.pipe("in", "late", "s12", 10)  # the past
        assert said(driver) == ["late@12"]
        driver.pipe("in", "x", "", 100)
        assert said(driver) == []


@pytest.mark.parametrize("reopen", [False, True])
def test_the_wall_clock_has_timers_of_its_own(reopen: bool) -> None:
    with TopologyTestDriver(topology(), reopen_tasks=reopen) as driver:
        driver.pipe("in", "a", "w20 s30", 0)
        driver.pipe("in", "b", "w10", 0)
        driver.advance_wall_clock("15ms")
        assert said(driver) == ["b@10"]
        driver.pipe("in", "x", "", 100)
        assert said(driver) == ["a@30"]
        driver.advance_wall_clock("1h")
        assert said(driver) == ["a@20"]


def test_a_timer_that_is_set_in_on_timer_fires_in_the_same_round() -> None:
    with TopologyTestDriver(topology()) as driver:
        driver.pipe("in", "twice", "s4", 0)
        driver.pipe("in", "z", "s6", 0)
        driver.pipe("in", "x", "", 50)
        assert said(driver) == ["twice@4", "z@6", "twice@7"]


def test_wrong_use_says_what_to_write() -> None:
    class Without(Processor):
        def process(self, record: Record) -> None:
            self.context.timer(record.key, record.timestamp + 5, STREAM_TIME)

    class Again(Told):
        def on_timer(self, key: Any, at: int) -> None:
            self.context.timer("other", at, STREAM_TIME)

    class Transformer(ValueTransformer):
        def transform(self, key: Any, value: Any) -> Any:
            return value

    def fails(supplier: Any, value: str, message: str, **options: Any) -> None:
        with TopologyTestDriver(topology(supplier, **options)) as driver, pytest.raises(ProcessingError, match=message):
            driver.pipe("in", "k", value, 10)
            driver.pipe("in", "k", "", 20)
            driver.pipe("in", "other", "", 60)

    fails(Told, "s-5", r"a timer's time is in ms since the epoch, found -5")
    fails(
        Again, "s20", r"on_timer was called for 20 and sets a timer of key 'other' for 20, which could go on for ever"
    )
    fails(Without, "", r"node 'p' has no timers: override on_timer .* write add_processor\('p', \.\.\., timers=True\)")
    fails(lambda: Told(), "s11", "node 'p' has no timers")
    fails(lambda: Without(), "", "Without sets a timer, and does not override on_timer", timers=True)
    with pytest.raises(TopologyError, match="processor 'p': timers=True, and Without does not override on_timer"):
        topology(Without, timers=True)
    with pytest.raises(TopologyError, match="processor 'p': timers=True, and Transformer is a ValueTransformer"):
        topology(Transformer, timers=True)
    with pytest.raises(TopologyError, match="timer_key_serde is given, and the node has no timers: override on_timer"):
        topology(Without, timer_key_serde="str")
    context = MockProcessorContext()
    told = context.start(Told())
    with pytest.raises(ConfigError, match="clock must be STREAM_TIME or WALL_CLOCK_TIME, found 'wall'"):
        told.context.timer("k", 5, "wall")


def test_a_factory_says_that_its_processor_has_timers() -> None:
    for supplier in (lambda: Told(), functools.partial(Told)):
        with TopologyTestDriver(topology(supplier, timers=True, timer_key_serde="str")) as driver:
            driver.pipe("in", "a", "s5", 0)
            driver.pipe("in", "a", "", 5)
            assert said(driver) == ["a@5"]


def test_an_error_in_on_timer_meets_the_processing_handler() -> None:
    application = Application("app", topology(), processing_handler=skip)
    with TopologyTestDriver(application) as driver:
        driver.pipe("in", "raise", "s5", 0)
        driver.pipe("in", "a", "s5", 0)
        driver.pipe("in", "a", "", 5)
        assert said(driver) == ["a@5"]


def test_the_store_is_the_nodes_and_part_of_the_program() -> None:
    program = topology().build()
    assert [store.name for store in program.subtopologies[0].stores] == ["p.timers"]
    names = [timer_store_name(node) for node in ("a b", "a-b", "a_b", "", "x" * 300, "x" * 301, "é")]
    assert len(set(names)) == len(names)
    assert all(map(is_topic_name, names))


def test_timers_of_one_processor_alone() -> None:
    context = MockProcessorContext()
    told = context.start(Told())
    context.stream_time = 10
    told.process(Record("b", "s20 w5", 10))
    told.process(Record("a", "s20 s-", 10))
    told.process(Record("c", "s12", 10))
    assert list(context.timers(STREAM_TIME)) == [("c", 12), ("b", 20)]
    assert list(context.timers(WALL_CLOCK_TIME)) == [("b", 5)]
    context.stream_time, context.wall_clock = 20, 5
    context.fire_timers()
    assert context.values() == ["c@12", "b@20", "b@5"]
    assert list(context.timers(STREAM_TIME)) == []


def test_the_task_says_when_the_next_one_is_due() -> None:
    class Setting(Told):
        def init(self, context: Any) -> None:
            super().init(context)
            context.timer("k", 700, WALL_CLOCK_TIME)

    task = open_task(one_node(Setting, sink=False), wall_clock_ms=5)
    assert task.next_wall_clock_punctuation() == 700
    assert task.wall_clock_nodes() == ["p"]
    task.plan({}, 700)
    assert task.punctuate_wall_clock()
    assert task.next_wall_clock_punctuation() is None


STEP = st.one_of(
    st.tuples(st.just("set"), st.sampled_from("abc"), st.sampled_from("sw"), st.integers(-9, 9)),
    st.tuples(st.just("cancel"), st.sampled_from("abc"), st.sampled_from("sw"), st.just(0)),
    st.tuples(st.just("stream"), st.just("x"), st.just("s"), st.integers(0, 9)),
    st.tuples(st.just("wall"), st.just("x"), st.just("w"), st.integers(0, 9)),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEP, max_size=30), st.booleans())
def test_any_history(steps: list[tuple[str, str, str, int]], reopen: bool) -> None:
    """A dict of times by clock and key, fired in order when a clock has reached them."""
    timers: dict[tuple[str, str], int] = {}
    now = {"s": 0, "w": 0}

    def due(clock: str) -> list[str]:
        fired = sorted((at, key) for (of, key), at in timers.items() if of == clock and at <= now[clock])
        for _, key in fired:
            del timers[clock, key]
        return [f"{key}@{at}" for at, key in fired]

    with TopologyTestDriver(topology(timer_key_serde="str"), reopen_tasks=reopen) as driver:
        driver.pipe("in", "x", "", 0)
        for what, key, clock, number in steps:
            expected = []
            if what == "wall":
                now["w"] += number
                driver.advance_wall_clock(f"{number}ms")
            elif what == "stream":
                now["s"] += number
                driver.pipe("in", key, "", now["s"])
            else:
                at = max(0, now[clock] + number)  # one in the past is due at once
                driver.pipe("in", key, f"{clock}{at if what == 'set' else '-'}", now["s"])
                timers.pop((clock, key), None)
                if what == "set":
                    timers[clock, key] = at
            expected = due("s") + due("w")
            if what != "wall":  # the wall clock's fire when the driver's next batch ends
                driver.advance_wall_clock("0ms")
            assert said(driver) == expected


@given(st.sampled_from(PunctuationType))
def test_none_is_kept_in_memory(clock: PunctuationType) -> None:
    context = MockProcessorContext()
    told = context.start(Told())
    for number in range(100):
        told.context.timer(f"{number}", number, clock)
    store: Any = context._timers._nodes["processor"].store
    assert not store._clocks[clock]._due
