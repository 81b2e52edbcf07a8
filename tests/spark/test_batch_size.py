"""BatchSize: batches of limited time, on a clock of the test's own, with applications of any speed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.spark.batch_size import BatchSize


class Stage:
    """An application that processes `rate` records a second, with batches that cost `fixed` seconds more."""

    def __init__(self, rate: float, fixed: float, interval: float = 0.0) -> None:
        self.rate, self.fixed, self.interval = rate, fixed, interval
        self.seconds = 1_000.0
        self.size = BatchSize(interval, lambda: self.seconds)

    def batch(self, records: int, opening: float = 0.0) -> float:
        """Run a batch of so many records, which opens tasks for so long before; return the seconds of work in it."""
        self.size.begin(records, opens=opening > 0)
        work = opening + self.fixed + records / self.rate
        self.seconds += max(work, self.interval)
        self.size.end()
        self.seconds += 3.0
        self.size.end()
        self.size.learn()
        return work

    def drain(self, backlog: int) -> list[float]:
        works = []
        while backlog > 0:
            records = self.size.portion(backlog)
            backlog -= records
            works.append(self.batch(records))
        return works


@pytest.mark.parametrize("rate", [1_000, 30_000, 300_000, 3_000_000])
def test_a_backlog_costs_two_percent_more_in_batches_than_at_once(rate: int) -> None:
    stage = Stage(rate, 0.4)
    for _ in range(20):
        stage.batch(10)
    backlog = rate * 3_600
    works = stage.drain(backlog)
    assert sum(works) <= 1.02 * (0.4 + backlog / rate)
    assert max(works[2:-1], default=0.0) <= 60.0 + stage.fixed
    assert works[-1] <= 1.25 * 60.0 + stage.fixed, "the last one may have the rest"


@given(st.floats(1_000, 3_000_000), st.floats(0.05, 5.0), st.sampled_from([0.0, 1.0, 10.0, 60.0]))
def test_the_time_of_batches_settles_whatever_it_was_first(rate: float, fixed: float, interval: float) -> None:
    stage = Stage(rate, fixed, interval)
    works = [stage.batch(stage.size.limit) for _ in range(40)]
    last = works[-10:]
    assert max(last) <= max(60.0, 2 * interval) * 1.01 + fixed
    assert min(last) >= 5.0 * 0.99, "a backlog gets batches of some seconds at least"
    assert stage.size.limit >= 1_000


@pytest.mark.parametrize(("rate", "seconds"), [(400_000, 5.0), (400_000, 9.0), (20_000, 6.0)])
def test_the_time_in_which_tasks_open_is_not_that_of_their_records(rate: int, seconds: float) -> None:
    stage = Stage(rate, 0.4)
    stage.batch(stage.size.limit, seconds)
    work = stage.batch(stage.size.limit)
    assert 6.0 < work < 60.0


def test_an_opening_without_records_says_nothing_about_the_cost_of_a_batch() -> None:
    stage, other = Stage(400_000, 0.1), Stage(400_000, 0.1)
    stage.batch(0, 30.0)
    for each in (stage, other):
        for _ in range(4):
            each.batch(each.size.limit)
    assert stage.size.limit == other.size.limit


def test_the_small_rest_of_a_backlog_is_no_batch_of_its_own() -> None:
    size = Stage(400_000, 0.4).size
    assert size.portion(round(1.2 * size.limit)) == round(1.2 * size.limit)
    assert size.portion(round(1.3 * size.limit)) == size.limit


@given(st.lists(st.integers(0, 9_000), max_size=200), st.sampled_from([0.0, 10.0]))
def test_small_batches_leave_the_limit_alone(sizes: list[int], interval: float) -> None:
    """They read all that there was, and their time is that of the trigger."""
    stage = Stage(100_000, 0.3, interval)
    before = stage.size.limit
    for records in sizes:
        stage.batch(records)
    assert stage.size.limit == before


def test_an_interval_is_filled_with_work_before_batches_are_as_large_as_it_takes() -> None:
    stage = Stage(100_000, 0.3, 10.0)
    stage.size.limit = 2_000
    works = [stage.batch(stage.size.limit) for _ in range(20)]
    assert works[-1] > 10.0


def test_an_application_that_gets_slow_gets_smaller_batches() -> None:
    stage = Stage(1_000_000, 0.3)
    stage.drain(500_000_000)
    stage.rate = 1_000
    works = stage.drain(math.floor(stage.size.limit * 1.5))
    assert works[1] < works[0] / 7
