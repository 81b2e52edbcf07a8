"""Restoring state: other tasks work meanwhile, its progress is shown, and a listener is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import RestoreEvent, RestorePhase, run
from penstock.plugins.engine.program.run_status import StatusTopic
from penstock.plugins.engine.run import statistics
from penstock.plugins.engine.run.progress import RunProgress
from penstock.plugins.engine.task.local_state.restoring import RestoreProgress
from penstock.plugins.operate.cli.run import restoring_text

from ..replicas.test_standbys import TASKS, on
from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .test_run import records


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": TASKS, "out": TASKS})
        yield made


@pytest.mark.parametrize("changelog", ["directory:changes", "topic:"])
def test_the_listener_is_told_of_each_step(surroundings: Surroundings, changelog: str) -> None:
    surroundings.put("in", records(700, keys=70))
    run(on("one", surroundings, changelog))
    events: list[RestoreEvent] = []
    restored = run(on("two", surroundings, changelog, restore_listener=events.append)).restored
    phases = {f"0_{task}": [each for each in events if each.task_id == f"0_{task}"] for task in range(TASKS)}
    assert sum(each[-1].restored for each in phases.values()) == restored == 70
    for each in phases.values():
        assert [event.phase for event in each][:2] == [RestorePhase.START, RestorePhase.BATCH]
        assert each[-1].phase is RestorePhase.END
        assert each[-1].done == each[-1].total > 0
        assert {event.stores for event in each} == {("counts",)}
    run(on("two", surroundings, changelog, restore_listener=lambda event: pytest.fail("nothing is missing")))


@pytest.mark.parametrize("trigger", ["continuous", "0s"])
def test_others_work_while_one_is_restored(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch, trigger: str
) -> None:
    monkeypatch.setattr(statistics.StatusWriter.__init__, "__defaults__", (0.1,))
    surroundings.put("in", records(700, keys=70))
    run(on("one", surroundings))
    goes_on, news, times = threading.Event(), list[RunProgress](), list[float]()

    def hold(event: RestoreEvent) -> None:
        if event.task_id == "0_1" and event.phase is RestorePhase.BATCH:
            times.append(time.perf_counter())
            goes_on.wait(60)

    def written() -> int:
        return sum(map(len, surroundings.values_by_key("out").values()))

    here = on("two", surroundings, restore_listener=hold)
    with here.start(trigger, on_progress=news.append):
        for number in range(TASKS):
            surroundings.put("in", [("k", "v", 1)] * 3, number)
        wait_until(lambda: written() == 709, "the other tasks have processed theirs")
        wait_until(lambda: news and news[-1].restoring)
        progress = news[-1].restoring["0_1"]
        assert progress.entries > 0
        assert progress.share == 1.0
        assert "restoring 1 task, 100%" in restoring_text(list(news[-1].restoring.values()))

        def status() -> list[str]:
            found = StatusTopic(surroundings.log, "app").read()
            return [] if found is None else [each.task for each in found.tasks if each.restoring is not None]

        wait_until(lambda: status() == ["0_1"], "the status shows it")
        held = time.perf_counter()
        goes_on.set()
        wait_until(lambda: written() == 712, "that task has processed its own")
        wait_until(lambda: not news[-1].restoring)
    phases = [each.phases["restore"] for one in news for each in one.reports if each.task_id == "0_1" and each.opened]
    assert sum(phases) > held - times[0], "the time of other threads counts"


def test_a_listener_that_fails_changes_nothing(surroundings: Surroundings, caplog: pytest.LogCaptureFixture) -> None:
    surroundings.put("in", records(70))
    run(on("one", surroundings))

    def fail(event: RestoreEvent) -> None:
        raise ValueError("no")

    assert run(on("two", surroundings, restore_listener=fail)).restored == 7
    assert "the listener of restores failed" in caplog.text


def test_how_a_progress_is_said() -> None:
    one = RestoreProgress(1_000, 500.0, 2.0, 0.25, 6.0)
    assert restoring_text([one]) == "restoring 1 task, 25%, 500 entries/s, 6 s to go"
    assert restoring_text([one, RestoreProgress(0, 0.0, 2.0, None, None)]) == (
        "restoring 2 tasks, 12%, 500 entries/s, 6 s to go"
    )
    assert restoring_text([]) == ""
