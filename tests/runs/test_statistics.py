"""RunStatistics: what `penstock status` and Prometheus show of a run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock import ManualClock
from penstock.plugins.engine.host.reports import HostStatus, SlotMessage, TaskResult
from penstock.plugins.engine.program.run_status import RunStatus, VisitOfRun
from penstock.plugins.engine.run.order import REBALANCING, RUNNING, Lifecycle
from penstock.plugins.engine.run.progress import EndedBatch
from penstock.plugins.engine.run.slots import Slots
from penstock.plugins.engine.run.statistics import RunStatistics
from penstock.plugins.engine.task.report import TaskReport
from penstock.task.visits import Visit

TASKS = {0: ["0_0"], 1: ["0_1", "0_2"]}


class Run:
    """A run of three tasks on two slots, whose clocks the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.slots = Slots(TASKS)
        self.statistics = RunStatistics("app", "continuous", self.clock, lambda: self.clock.now_ms() / 1000)

    def take(self, *reports: TaskReport, token: str = "a", losses: tuple[str, ...] = ()) -> None:
        """A second later, the hosts report."""
        self.clock.advance("1s")
        taken = []
        for slot, tasks in TASKS.items():
            mine = [TaskResult(each.task_id, each) for each in reports if each.task_id in tasks]
            host = HostStatus(f"{token}{slot}", slot, 70 + slot, 1, 2**20, 1.5, 30, 4)
            taken += self.slots.take(SlotMessage(slot, "3@node-1/99/1/b", results=mine, host=host))[0]
        self.statistics.take(EndedBatch(None, 1.0, taken, (), losses), self.slots)


def report(task: str, records: int = 0, opened: str = "", **counts: Any) -> TaskReport:
    return TaskReport(task, "v", {}, 0, records_in=records, openings={opened: 1} if opened else {}, **counts)


def test_where_tasks_run_and_what_they_did() -> None:
    run = Run()
    assert run.statistics.status().tasks == ()
    run.take(report("0_0", 30, records_out=3, commits=1, restored=7, phases={"restore": 0.5}, opened="first"))
    run.take(report("0_0", 30, dropped=2), report("0_1", 5, commits=2, opened="first"))
    status = run.statistics.status()
    first, second, third = status.tasks
    assert (first.slot, first.host, first.process, first.is_open) == (0, "node-1", 70, True)
    assert (first.records_in, first.records_out, first.dropped, first.commits) == (60, 3, 2, 1)
    assert (first.restored, first.restore_seconds, dict(first.openings)) == (7, 0.5, {"first": 1})
    assert (first.last_commit_ms, second.last_commit_ms) == (1_001_000, 1_002_000)
    assert (first.records_per_second, second.records_per_second) == (30, 2.5)
    assert (third.task, third.is_open, third.last_commit_ms) == ("0_2", False, None)
    assert (status.records_in, status.commits, status.restored, status.ended_ms) == (65, 3, 7, None)
    assert [(host.slot, host.process, host.rss_bytes) for host in status.hosts] == [(0, 70, 2**20), (1, 71, 2**20)]
    run.clock.advance("61s")
    assert run.statistics.status().records_per_second == 0


def test_since_when_a_run_is_in_its_phase() -> None:
    now, clock = [0.0], ManualClock(5_000)
    lifecycle = Lifecycle(lambda: now[0])
    statistics = RunStatistics("app", "continuous", clock, lifecycle=lifecycle)
    for state, seconds in (REBALANCING, 10), (RUNNING, 60), (REBALANCING, 7):
        lifecycle.enter(state)
        now[0] += seconds
        clock.advance(f"{seconds}s")
    status = statistics.status()
    assert (status.phase, status.since_ms) == (REBALANCING, 75_000)
    lifecycle.enter(RUNNING)
    assert statistics.status().since_ms == status.started_ms == 5_000


def test_how_far_visits_are() -> None:
    run = Run()
    run.statistics.visits = [Visit(7, "keep.scale"), Visit(8, "keep.check"), Visit(9, "keep.scale")]
    run.take(report("0_0", visits={"keep.scale": (9, 0, 5), "keep.check": (8, 1, 6)}))
    run.take(report("0_1", visits={"keep.scale": (7, 1, 3), "keep.check": (-1, 0, 0)}))
    run.take(report("0_2", visits={"keep.scale": (9, 1, 2), "keep.check": (10, 0, 1)}))
    found = RunStatus.from_json(run.statistics.status().to_json()).visits
    assert found == (
        VisitOfRun("keep.scale", 9, "not over", tasks=3, done=1, visited=7),
        VisitOfRun("keep.check", 8, "not over", tasks=3, done=2, visited=6),
    )
    run.statistics.visits = [Visit(9, "keep.scale", is_stopped=True)]
    assert [each.state for each in run.statistics.status().visits] == ["stopped"]
    run.statistics.visits = [Visit(9, "keep.scale")]
    run.take(*(report(task, visits={"keep.scale": (9, 1, 5)}) for task in ("0_0", "0_1", "0_2")))
    assert run.statistics.status().visits == [VisitOfRun("keep.scale", 9, "over", tasks=3, done=3, visited=15)]


def test_losses_and_tasks_that_are_opened_again_are_events() -> None:
    run = Run()
    run.take(report("0_0", opened="first"), report("0_1", opened="first"))
    run.take(report("0_0", opened="first"), report("0_1", opened="first"), token="b", losses=("host a0 was killed",))
    status = run.statistics.status()
    assert [(each.at_ms, each.text) for each in status.events] == [
        (1_002_000, "host a0 was killed"),
        (1_002_000, "2 tasks opened again (host lost): 0_0, 0_1"),
    ]
    assert (status.workers_lost, dict(status.openings)) == (2, {"first": 2, "host lost": 2})
    for number in range(100):
        run.statistics.note(f"trouble {number}")
    assert len(run.statistics.status().events) == 20


def test_a_run_ends_by_a_signal_or_an_error() -> None:
    run = Run()
    run.take(report("0_0", opened="first"))
    run.statistics.stopped_by = "SIGTERM"
    run.statistics.end(None)
    status = run.statistics.status()
    assert (status.ended_ms, status.ended_by, status.error) == (1_001_000, "SIGTERM", None)
    assert not any(task.is_open for task in status.tasks) and not status.hosts
    failed = Run()
    failed.statistics.end(ValueError("no"))
    assert (failed.statistics.status().ended_by, failed.statistics.status().error) == (None, "no")


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["0_0", "0_1", "0_2"]), st.integers(0, 50), st.integers(0, 3)), max_size=3),
        max_size=20,
    )
)
def test_totals_are_the_sums_of_the_tasks(rounds: list[list[tuple[str, int, int]]]) -> None:
    run, records, commits = Run(), Counter[str](), Counter[str]()
    for each in rounds:
        run.take(*(report(task, read, commits=made) for task, read, made in each))
        for task, read, made in each:
            records[task] += read
            commits[task] += made
    status = run.statistics.status()
    assert status.records_in == sum(records.values()) == sum(task.records_in for task in status.tasks)
    assert status.commits == sum(commits.values()) == sum(task.commits for task in status.tasks)
    assert {task.task: task.records_in for task in status.tasks if task.records_in} == +records
