"""Stopwatch: times go to the part at work, also where parts fail, call themselves, or end out of order."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from penstock.plugins.testing.profiling.stopwatch import Part, Stopwatch

from .programs import busy

OUTER, INNER = Part("node", "outer"), Part("store", "inner", "get")


def test_the_time_of_a_part_is_without_what_it_calls() -> None:
    watch = Stopwatch()
    inner = watch.hook(INNER, lambda: busy(3_000))

    def run(record: Any) -> None:
        busy(1_000)
        inner()

    outer = watch.hook(OUTER, run)
    began = perf_counter()
    watch.begin()
    for _ in range(5):
        outer(None)
    root, first, second = watch.calls()
    seconds = perf_counter() - began
    assert (first.path, first.times, second.path, second.times) == ((OUTER,), 5, (INNER, OUTER), 5)
    assert first.seconds >= 0.005 and second.seconds >= 0.015 and first.seconds + second.seconds <= seconds
    assert root.path == () and second.inside() == ("outer", (INNER,)) and first.inside() == ("outer", ())


def test_a_part_is_a_place_of_its_own_below_each_caller() -> None:
    watch = Stopwatch()
    inner = watch.hook(INNER, lambda: None)
    watch.begin()
    inner()
    watch.hook(OUTER, lambda record: inner())(None)
    assert [each.path for each in watch.calls()[1:]] == [(INNER,), (OUTER,), (INNER, OUTER)]


def test_an_error_ends_the_time_of_a_part() -> None:
    watch = Stopwatch()

    def run(record: Any) -> None:
        raise ValueError("no")

    watch.begin()
    with pytest.raises(ValueError, match="no"):
        watch.hook(OUTER, run)(None)
    watch.enter(INNER)
    watch.leave()
    watch.leave()  # nothing has been entered
    assert [each.path for each in watch.calls()] == [(), (OUTER,), (INNER,)]


def test_what_hooks_cost_is_measured_and_taken_off() -> None:
    watch = Stopwatch()
    hook = watch.hook(OUTER, lambda record: None)
    watch.begin()
    for _ in range(20_000):
        hook(None)
    before = watch.calls()[1].seconds
    watch.calibrate()
    after = watch.calls()[1].seconds
    assert 0.0 <= after < before


def test_a_hook_has_the_name_of_its_part_and_passes_all_on() -> None:
    watch = Stopwatch()
    hook: Any = watch.hook(INNER, lambda *given, **named: (given, named))
    assert hook(1, two=2) == ((1,), {"two": 2})
    assert hook.__code__.co_name == "store inner.get" and watch.labels[id(hook.__code__)] == "store inner.get"
