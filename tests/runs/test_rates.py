"""The rates that a run shows."""

from __future__ import annotations

import pytest

from penstock.plugins.engine.run.progress import BatchRates, Rate, RecentRates
from penstock.plugins.engine.task.report import TaskReport


def report(records_in: int, records_out: int) -> TaskReport:
    return TaskReport("0_0", "v", {}, 0, records_in=records_in, records_out=records_out)


def test_batches_show_the_last_one_that_read_something() -> None:
    rates = BatchRates()
    assert rates.now() == Rate(0, 0)
    rates.add([report(10, 5), report(30, 15)], 2.0)
    rates.add([report(0, 0)], 1.0)
    assert rates.now() == Rate(20, 10)


def test_heartbeats_show_the_last_seconds_however_they_come() -> None:
    now = 100.0
    rates = RecentRates(lambda: now)
    assert rates.now() == Rate(0, 0)
    for _ in range(40):  # two hosts, one of which does three times as much; now and then both are read at once
        for count, pause in ((100, 0.4), (300, 0.6)):
            now += pause
            rates.add([report(count, count // 10)], pause)
    assert rates.now() == pytest.approx(Rate(400, 40), rel=0.1)
    now += 2.5
    assert rates.now() == pytest.approx(Rate(200, 20), rel=0.2)
    now += 2.6
    assert rates.now() == Rate(0, 0)
