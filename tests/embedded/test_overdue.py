"""Windows that close while nothing arrives, after pauses of the application: in batches and steps of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import ManualClock, Topology
from penstock.plugins.embedded.engine import EmbeddedEngine, stepping_embedded
from penstock.plugins.runs.order import RunOrder, Trigger

from ..runtime.test_overdue import DAY_MS, Overdue, sums_of_counts
from ..spark.surroundings import Surroundings


@pytest.mark.parametrize("how", ["available_now", "steps in batches", "steps of the loop"])
def test_a_window_behind_another_one_keeps_its_last_results_over_pauses(tmp_path: Path, how: str) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 1})
        given = surroundings.application("app", sums_of_counts("20s"), engine="embedded", key_serde="str")
        wall = 1_000_000

        def run() -> None:
            if how == "available_now":
                EmbeddedEngine().run(given, RunOrder(Trigger.of(how), clock=ManualClock(wall)))
                return
            with stepping_embedded(given, is_continuous=how == "steps of the loop") as driver:
                driver.step(wall)

        for timestamp in 1_000, 12_000:
            surroundings.put("in", [(f"k{number}", "v", timestamp) for number in range(30)])
        run()
        for _ in range(4):
            wall += DAY_MS
            run()
        assert surroundings.values_by_key("out") == {"0": ["30"], "10000": ["30"]}


@pytest.mark.parametrize("is_continuous", [False, True])
def test_schedules_go_on_without_records_after_the_clock_was_set_back(tmp_path: Path, is_continuous: bool) -> None:
    """Half as fast, until the clock has caught up."""
    program = Topology().add_source("in", "in").add_processor("overdue", Overdue, "in")
    program = program.add_sink("out", "out", "overdue")
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 1, "out": 1})
        given = surroundings.application("app", program, engine="embedded", key_serde="str", value_serde="str")
        found = []
        with stepping_embedded(given, is_continuous=is_continuous) as driver:
            for minutes in 2_880, 1_440, 1_449, 1_451, 1_459, 1_461:
                driver.step(minutes * 60_000)
                found.append(len(surroundings.values_by_key("out").get("schedule", [])))
        assert found == [0, 0, 0, 1, 1, 2]
