"""Windows that close while nothing arrives, after pauses of the application: in batches and steps of the engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from penstock import Clock, ManualClock, Processor, Record, Topology
from penstock.plugins.engine.run.embedded import EmbeddedEngine, stepping_embedded
from penstock.plugins.engine.run.order import RunOrder, Trigger
from penstock.plugins.engine.run.planning.planner import RENEWAL_SECONDS

from ..runtime.test_overdue import DAY_MS, Overdue, sums_of_counts
from ..spark.surroundings import Surroundings
from ..waiting import wait_until


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


class Wall(Clock):
    """A clock that goes on by a minute whenever it is asked, and that a test sets."""

    def __init__(self, now_ms: int) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        self.now += 60_000
        return self.now


def test_schedules_go_on_without_records_at_once_after_the_clock_was_set_back_in_a_run(tmp_path: Path) -> None:
    """And not with the next batch that runs without work, which may be a minute away."""
    program = Topology().add_source("in", "in").add_processor("overdue", Overdue, "in")
    program = program.add_sink("out", "out", "overdue")
    with Surroundings(tmp_path / "data") as surroundings, ThreadPoolExecutor() as threads:
        surroundings.create(**{"in": 2, "out": 1})
        given = surroundings.application("app", program, engine="embedded", key_serde="str", value_serde="str")
        wall, stop = Wall(2 * DAY_MS), Event()

        def calls() -> int:
            return len(surroundings.values_by_key("out").get("schedule", []))

        running = threads.submit(EmbeddedEngine().run, given, RunOrder(Trigger.of("0s"), clock=wall, stop=stop))
        try:
            wait_until(lambda: running.done() or calls() >= 4, "both tasks call their schedules")
            wall.now, before = DAY_MS, calls()
            wait_until(lambda: running.done() or calls() >= before + 4, "they call them again", RENEWAL_SECONDS / 2)
        finally:
            stop.set()
            running.result()


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


class Says(Processor):
    """Forwards what it reads, in the order in which it reads it."""

    def process(self, record: Record) -> None:
        self.context.forward(Record("all", f"{record.timestamp}", record.timestamp))


@pytest.mark.parametrize("idle", ["1h", "0ms"])
def test_a_drain_ends_with_what_waits_for_an_input_that_stays_empty(tmp_path: Path, idle: str) -> None:
    """But a task waits for what the run itself still writes to its other input."""
    program = Topology().add_source("in", "in").add_repartition("again", "in", key_serde="str", value_serde="str")
    program.add_source("other", "other").add_source("empty", "empty")
    program.add_processor("says", Says, ["again", "other", "empty"]).add_sink("out", "out", "says")
    with Surroundings(tmp_path / "data") as surroundings, ThreadPoolExecutor() as threads:
        surroundings.create(**{"in": 1, "other": 1, "empty": 1, "out": 1})
        given = surroundings.application(
            "app", program, engine="embedded", key_serde="str", value_serde="str", max_task_idle=idle
        )
        surroundings.put("in", [("a", "v", 1)])
        surroundings.put("other", [("b", "v", 2)])
        stop = Event()
        order = RunOrder(Trigger.of("available_now"), clock=ManualClock(1_000_000), stop=stop)
        running = threads.submit(EmbeddedEngine().run, given, order)
        try:
            wait_until(running.done, "the run ends", 30)
        finally:
            stop.set()
        running.result()
        found = surroundings.values_by_key("out")["all"]
        assert found == ["1", "2"] if idle == "1h" else sorted(map(str, found)) == ["1", "2"]
