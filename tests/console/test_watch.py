"""A watch of an application: its state, its lag, rates between two statuses, and a log that is away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import LogError, ManualClock
from penstock.plugins.engine.program.lease import LeaseKeeper
from penstock.plugins.engine.program.run_status import RunStatus, SlotHost, StatusTopic, TaskStatus, VisitOfRun
from penstock.plugins.engine.program.stored_id import StoredAs, write_stored
from penstock.plugins.operate.console.views import overview, topology
from penstock.plugins.operate.console.watch import Interval, Rate, Watch, Watching

from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 2, "out": 2})
        made.put("in", [("k", "v", number) for number in range(5)], 1)
        yield made


def status(written_ms: int, records: int, **changes: object) -> RunStatus:
    run = RunStatus(
        "app", "driver", "continuous", 1_000, written_ms, records_in=records, records_out=2 * records,
        tasks=(TaskStatus("0_0", 0, state_bytes=30), TaskStatus("7_0", 1)),
        hosts=(SlotHost(0, "h", 1, 1, 300, 0.0, 1, 1), SlotHost(1, "h", 2, 1, 400, 0.0, 1, 1)),
        nodes={"source": {"in": records, "out": records, "dropped": {}}},
        times={"latency": {"0": [9.0, 5, 0, 0, records, *[0] * 14], "1": [9.0, 2, *[0] * 17]}},
    )  # fmt: skip
    return replace(run, **changes)  # type: ignore[arg-type]


def test_an_application_that_is_resharded_is_watched_where_it_is(surroundings: Surroundings) -> None:
    log = surroundings.log
    watch = Watch(surroundings.application("app", apps.count()), log, ManualClock(2_000))
    StatusTopic(log, "app").write(status(1_000, 100))
    assert watch.look().state == "running"
    lease = LeaseKeeper(log, "app")
    write_stored("app", lease, StoredAs("app-layout-2", "app"))
    lease.release()
    assert watch.look().state == "never started"
    StatusTopic(log, "app-layout-2").write(status(2_000, 7, application_id="app-layout-2"))
    run = watch.look().run
    assert run is not None and (run.application_id, run.records_in) == ("app-layout-2", 7)


def test_rates_are_between_two_statuses_of_one_run(surroundings: Surroundings) -> None:
    topic, clock = StatusTopic(surroundings.log, "app"), ManualClock(2_000)
    watch = Watch(surroundings.application("app", apps.count()), surroundings.log, clock)
    view = watch.look()
    assert (view.state, view.run, view.interval, view.total_lag) == ("never started", None, Interval(), 5)
    assert [(each.name, each.lag) for each in view.tasks()] == [("0_0", 0), ("0_1", 5)]
    topic.write(status(2_000, 100))
    assert (watch.look().state, watch.look().interval) == ("running", Interval())
    topic.write(status(7_000, 200))
    view = watch.look()
    assert view.interval.rate == Rate(20.0, 40.0) and view.interval.nodes == {"source": Rate(20.0, 20.0)}
    assert view.interval.latency == pytest.approx(0.00995), "100 records took 5 to 10 ms; others were before"
    assert watch.look().interval == view.interval, "the same status again is no pause"
    assert [(each.name, each.lag) for each in view.tasks()] == [("0_0", 0), ("0_1", 5), ("7_0", None)]
    assert (view.samples[-1].memory_bytes, view.samples[-1].state_bytes) == (700, 30)
    topic.write(status(8_000, 300, phase="rebalancing", paused=[1, 2]))
    assert watch.look().phase == "rebalancing, sub-topology 1, 2 paused"
    visits = [VisitOfRun("keep.scale", 1, "not over", 8, 3, 1234), VisitOfRun("keep.check", 2, "over", 8, 8, 5)]
    topic.write(status(8_000, 300, phase="running", visits=visits))
    assert watch.look().phase == "running, visit keep.scale: 3 of 8 tasks, 1,234 entries"
    topic.write(status(9_000, 10, started_ms=8_000, number=2))
    assert watch.look().interval == Interval(), "the next run counts from 0"
    topic.write(status(10_000, 60, started_ms=8_000, number=2))
    assert watch.look().interval.rate == Rate(50.0, 100.0)
    clock.advance("1m")
    view = watch.look()
    assert (view.state, view.interval) == ("lost", Interval()), "its last rates would be shown for ever"
    assert (view.samples[-1].rate, view.samples[-1].latency, view.samples[-1].memory_bytes) == (None, None, None)
    page, drawn = overview(view), topology(apps.count().build(), view, [])
    assert [(name, now) for name, _, now in page["charts"] if now] == [("Lag", "5"), ("State on disk", "30 B")]
    assert not re.search(r"\d/s<", drawn["drawing"]) and {row[2:4] for row in drawn["nodes"]} == {("-", "-")}


def test_a_log_that_is_away_leaves_what_was_seen(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    StatusTopic(surroundings.log, "app").write(status(2_000, 100))
    watch = Watch(surroundings.application("app", apps.count()), surroundings.log)
    before = watch.look()

    def away(*given: object) -> None:
        raise LogError("the log is away")

    monkeypatch.setattr(surroundings.log, "end_offsets", away)
    view = watch.look()
    assert str(view.error) == "the log is away" and view.run == before.run and view.lag == before.lag
    monkeypatch.undo()
    assert watch.look().error is None


def test_a_run_is_seen_without_a_topic_that_the_program_here_reads(surroundings: Surroundings) -> None:
    """Such as one of the next program: the run was "never started", and after a while one that was seen "lost"."""
    clock = ManualClock(2_000)
    watch = Watch(surroundings.application("app", apps.count(source="absent")), surroundings.log, clock)
    for seconds in (0, 90):
        clock.advance(f"{seconds}s")
        StatusTopic(surroundings.log, "app").write(status(clock.now_ms(), 100))
        view = watch.look()
        assert view.state == "running" and view.run is not None and view.run.written_ms == clock.now_ms()
        assert "absent" in str(view.error) and not view.samples
        assert ("lag", "-", "") in overview(view)["facts"], "it is not known"


def test_an_error_of_the_log_is_logged_and_the_run_is_not_called_never_started(
    surroundings: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Watching(surroundings.application("app", apps.count(source="absent")))) as watching:
        view = watching.view()
        assert "application 'app' cannot be watched: " in caplog.text and "absent" in caplog.text
    assert replace(view, error=None).state == "never started" and view.state == "unknown"


def test_watching_goes_on_between_questions(surroundings: Surroundings, tmp_path: Path) -> None:
    watching = Watching(surroundings.application("app", apps.count()), interval=0.01)
    try:
        assert watching.view().state == "never started"
        StatusTopic(surroundings.log, "app").write(status(2_000, 100))
        wait_until(lambda: watching.view().run)
        assert len(watching.view().samples) > 1
    finally:
        watching.close()
    watching.close()
    assert watching.view().run is not None
    (tmp_path / "file").write_text("")
    nowhere = surroundings.application("app", apps.count()).with_settings(log=f"local:{tmp_path / 'file'}")
    assert isinstance(Watching(nowhere).view().error, LogError)
