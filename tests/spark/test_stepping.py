"""Tasks that move between workers, at a clock that the test hands in."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from penstock.plugins.engine.run.query import SteppingDriver
from penstock.plugins.spark.runner import stepping_on_spark

from ..waiting import wait_until
from . import apps
from .surroundings import Surroundings

pytestmark = pytest.mark.spark


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_task_keeps_stream_time_and_schedules_when_its_worker_has_ended(
    surroundings: Surroundings, spark: Any
) -> None:
    surroundings.create(**{"in": 1, "out": 1})
    used: list[int] = []

    def end_workers(driver: SteppingDriver) -> None:
        """End the processes that ran a task, as Spark does with idle ones."""
        for process in driver.processes.values():
            used.append(process)
            os.kill(process, signal.SIGKILL)
            wait_until(lambda process=process: gone(process), "the worker has ended", 120)  # type: ignore[misc]

    with stepping_on_spark(surroundings.application("app", apps.ticks()), spark) as driver:
        surroundings.put("in", [("k", "v", 5_000)])
        driver.step(1_000)
        end_workers(driver)
        # Stream time is still 5,000: an older record does not move it, and the next due time is 6,000, not 5,500 +
        # 1,000.
        surroundings.put("in", [("k", "v", 4_000), ("k", "v", 5_500)])
        driver.step(9_999)
        end_workers(driver)
        surroundings.put("in", [("k", "v", 6_000)])
        driver.step(10_000)
        end_workers(driver)
        driver.step(15_000)
        driver.step(20_000)
    assert len(set(used)) == 3
    assert surroundings.read("out")[0] == [
        ("stream", "5000", 5_000),
        ("stream", "6000", 6_000),
        ("wall", "6000", 10_000),
        ("wall", "6000", 20_000),
    ]


def test_a_step_runs_what_it_causes_in_repartition_topics(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 2, "out": 1})
    with stepping_on_spark(surroundings.application("app", apps.count_by_value()), spark) as driver:
        for number in range(1, 4):
            surroundings.put("in", [("k", "v", number)])
            reports = driver.step(number)
            assert sum(report.records_in for report in reports) == 2
            assert surroundings.values_by_key("out") == {"v": [str(each + 1) for each in range(number)]}
