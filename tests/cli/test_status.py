"""`penstock status`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock import SystemClock
from penstock.log import Log
from penstock.plugins.engine.program.run_status import Event, RunStatus, StatusTopic, TaskStatus, VisitOfRun
from penstock.plugins.operate.cli.options import open_log
from penstock.settings.settings import Settings

from .applications import TARGET, counting
from .console import Console


@pytest.fixture
def words(console: Console) -> Console:
    counting(console)
    console("produce", "words", "--partition", "0", stdin="to\nbe\nor\n")
    return console


@pytest.fixture
def log(words: Console) -> Iterator[Log]:
    with open_log(Settings(data_dir=str(words.directory / ".penstock"))) as log:
        yield log


def test_how_long_positions_are_kept(words: Console, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an application that does not run, and of one whose task does not repeat its commit."""
    hour = 3_600_000
    ended: dict[str, Any] = {"ended_ms": 1, "ended_by": "done"}
    for changes, hours, said in (
        ({}, 100, None),
        ({}, 20, "the log keeps a committed position for another 20h"),
        (ended, 100, "the log keeps its committed positions for another 4d4h"),
        (ended, -1, "the log keeps its committed positions no longer"),
    ):
        until = SystemClock().now_ms() + hours * hour + 59_000
        monkeypatch.setattr(Log, "commits_kept_until", lambda self, application_id, partitions, at=until: at)
        StatusTopic(log, "counting").write(status(**changes))
        shown = words("status", TARGET).stdout
        assert said in shown if said else "committed position" not in shown
        assert words.json("status", TARGET, "--json")["commits_kept_until_ms"] == until


def status(age_ms: int = 1_000, **changes: Any) -> RunStatus:
    now_ms = SystemClock().now_ms()
    run = RunStatus(
        "counting", "ann@node-1, process 7", "continuous", now_ms - 7_265_000, now_ms - age_ms,
        records_in=1_234, commits=5, workers_lost=1, openings={"first": 2, "host lost": 1},
        tasks=(
            TaskStatus("0_0", 0, "node-2", 70, True, 0.5, 12.4, now_ms - 3_000, records_in=1_234, records_out=900, dropped=4, commits=5, restored=33, openings={"first": 1}),
            TaskStatus("0_1", 1),
        ),
        events=(Event(now_ms - 65_000, "1 task opened again (host lost): 0_0"),),
    )  # fmt: skip
    return replace(run, **changes)


def test_where_each_task_runs_and_how_far_it_is_behind(words: Console, log: Log) -> None:
    StatusTopic(log, "counting").write(status())
    lines = words("status", TARGET).stdout.splitlines()
    assert lines[0].startswith("counting: running for 2h1m, as of ") and lines[0].endswith("s ago")
    assert lines[1] == "driver ann@node-1, process 7, trigger continuous"
    assert lines[2] == "1,234 records in, 0 out · 5 commits · 0 records/s · lag 3"
    assert lines[3] == "workers lost: 1 · tasks opened again: host lost 1"
    rows = [line.split() for line in lines]
    first = next(row for row in rows if row[:1] == ["0_0"])
    assert first[1:8] == ["0", "node-2/70", "3", "12", "1,234", "900", "4"] and first[9:] == ["33", "first", "1"]
    assert next(row for row in rows if row[:1] == ["0_1"])[2:4] == ["opening", "0"]
    # The driver has not heard of these tasks yet.
    assert next(row for row in rows if row[:1] == ["1_0"])[1:4] == ["-", "-", "0"]
    assert lines[-1].split(maxsplit=1) == ["1m5s", "1 task opened again (host lost): 0_0"]


def test_a_later_rebalance_is_counted_from_its_own_start(words: Console, log: Log) -> None:
    since = SystemClock().now_ms() - 125_000
    for phase, said in ("rebalancing", "rebalancing for 2m"), ("running", "running for 2h1m"):
        StatusTopic(log, "counting").write(status(phase=phase, phase_since_ms=since))
        assert words("status", TARGET).stdout.startswith(f"counting: {said}")


def test_visits_that_are_not_over(words: Console, log: Log) -> None:
    visits = [VisitOfRun("keep.scale", 1, "not over", 8, 3, 1_234), VisitOfRun("keep.check", 2, "over", 8, 8, 5)]
    StatusTopic(log, "counting").write(status(visits=visits))
    lines = words("status", TARGET).stdout.splitlines()
    assert lines[2] == "visit keep.scale: 3 of 8 tasks, 1,234 entries"
    found = words.json("status", TARGET, "--json")["visits"]
    assert [(each["visitor"], each["state"], each["done"]) for each in found] == [
        ("keep.scale", "not over", 3),
        ("keep.check", "over", 8),
    ]


def test_an_application_that_does_not_run_says_since_when_and_why(words: Console, log: Log) -> None:
    topic, ended = StatusTopic(log, "counting"), SystemClock().now_ms() - 120_000
    for changes, state, said in (
        ({"ended_ms": ended, "ended_by": "SIGTERM"}, "stopped", "not running since 2m ago; it ended by SIGTERM"),
        ({"ended_ms": ended, "error": "no such topic"}, "failed", "not running since 2m ago; it failed: no such topic"),
        ({}, "lost", "not running: its driver has said nothing for 2m"),
    ):
        topic.write(status(120_000, **changes))
        assert said in words("status", TARGET).stdout
        found = words.json("status", TARGET, "--json")
        assert (found["state"], found["lag"]) == (state, 3)
        assert found["age_seconds"] == pytest.approx(120, abs=10)


def test_json_has_the_partitions_of_each_task(words: Console, log: Log) -> None:
    StatusTopic(log, "counting").write(status())
    found = words.json("status", TARGET, "--json")
    tasks = {each["task"]: each for each in found["tasks"]}
    assert tasks["0_0"]["records_in"] == 1_234 and tasks["0_0"]["lag"] == 3
    assert tasks["0_0"]["partitions"] == [
        {"topic": "words", "partition": 0, "internal": False, "position": None, "end": 3, "lag": 3, "held": 0}
    ]
    assert tasks["1_1"].keys() == {"task", "partitions", "lag"}


def test_a_source_topic_that_was_deleted_is_named_and_the_rest_is_answered(words: Console, log: Log) -> None:
    StatusTopic(log, "counting").write(status())
    log.delete_topic("words")
    shown = words("status", TARGET).stdout
    assert "lag unknown: the log has no topic 'words' (source 'in')" in shown and "1,234 records in, 0 out" in shown
    assert next(line.split() for line in shown.splitlines() if line.startswith("0_0"))[1:4] == ["0", "node-2/70", "-"]
    found = words.json("status", TARGET, "--json")
    assert (found["state"], found["lag"], [each["lag"] for each in found["tasks"]]) == ("running", None, [None, None])
    assert "no topic 'words'" in found["lag_unknown"]


def test_following_shows_it_again(words: Console, log: Log) -> None:
    topic = StatusTopic(log, "counting")
    topic.write(status())
    process = words.start("status", TARGET, "--json", "--follow", "--interval", "50ms")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["state"] == "running"
    topic.write(status(ended_ms=1, ended_by="done"))
    while json.loads(process.stdout.readline())["state"] != "stopped":
        pass
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")


def test_an_application_that_never_ran_and_a_wrong_log_are_said(words: Console) -> None:
    said = words("status", TARGET, code=1).stderr
    assert "application 'counting' has no status in the log local:log" in said and "penstock run" in said
    assert "--interval" in words("status", TARGET, "--interval", "often", code=2).stderr
    assert "no log named 'nothing'" in words("status", TARGET, "--log", "nothing:here", code=2).stderr
