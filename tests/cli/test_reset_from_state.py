"""`penstock reset --from-state`: on from what the changelogs prove, after the log lost the application's commits."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from penstock.errors import IncompatibleStateError

from ..lost_commits import lose_commits
from .applications import TARGET, counting, run
from .console import Console
from .test_reset import REPARTITION, Killed, append, failing, logs, positions, totals

WHERE = ["--to-offsets", "words:0=4", "--to-offsets", "words:1=2"]
"""Where the stateless tasks, which nothing proves, were."""


@pytest.fixture
def lost(console: Console) -> Console:
    """An application that has counted `a`, then `b`, then `ba` in the first partition and `ac` in the second, without
    its commits."""
    counting(console)
    for texts in (("a", ""), ("b", "ac"), ("ba", "")):
        with logs(console) as log:
            for partition, text in enumerate(texts):
                append(log, partition, text, 1)
        run()
    assert totals(console) == ["a=1", "a=2", "a=3", "b=1", "b=2", "c=1"]
    with logs(console) as log:
        lose_commits(log, "counting")
    return console


def test_a_run_is_refused_and_says_what_to_do(lost: Console) -> None:
    with pytest.raises(IncompatibleStateError) as caught:
        run()
    message = str(caught.value)
    assert "task 0_0 in words-0; task 0_1 in words-1; task 1_0 in" in message
    assert "`penstock reset --from-state --dry-run`" in message and "checkpoint" not in message


def test_what_is_not_proven_is_refused_by_name(lost: Console) -> None:
    for options in (["--dry-run"], ["--yes"]):
        result = lost("reset", TARGET, "--from-state", *options, code=1)
        assert "task 0_0: it has no stores, so nothing says how far it was" in result.stderr
        assert "task 0_1: " in result.stderr and "task 1_0: " not in result.stderr
    assert positions(lost) == [None, None]
    with pytest.raises(IncompatibleStateError):
        run()


def test_state_is_kept_and_only_what_is_not_proven_repeats(lost: Console) -> None:
    dry = lost("reset", TARGET, "--from-state", *WHERE, "--dry-run", "--json").stdout
    plan = lost.json("reset", TARGET, "--from-state", *WHERE, "--yes", "--json")
    assert lost("reset", TARGET, "--from-state", "--dry-run").stdout == "4 tasks go on as before\n"
    tasks = {each["task"]: each for each in plan["tasks"]}
    assert sorted(tasks) == ["0_0", "0_1", "1_0", "1_1"]
    assert [each["then"] for task in ("0_0", "0_1") for each in tasks[task]["positions"]] == [4, 2]
    assert tasks["0_0"]["outputs"] == [REPARTITION, "dead"] and tasks["1_0"]["outputs"] == ["totals", "dead"]
    assert str(plan["tasks"][2]["state"]) in dry
    with logs(lost) as log:
        append(log, 0, "c", 9)
    run()
    # The last commit of a task proves itself by nothing: what it counted is counted again, to the same totals.
    counted = totals(lost)
    assert "c=2" in counted and set(counted) <= {"a=1", "a=2", "a=3", "b=1", "b=2", "c=1", "c=2"}
    assert len(counted) < 7
    with logs(lost) as log:
        append(log, 0, "abc", 10)
    run()
    assert totals(lost) == ["a=4", "b=3", "c=3"]


def test_the_plan_says_what_repeats(lost: Console) -> None:
    text = lost("reset", TARGET, "--from-state", "--to-earliest", "--dry-run").stdout
    assert [line.split()[:4] for line in text.splitlines()[:2]] == [
        ["TASK", "STATE", "TOPIC", "PARTITION"], ["0_0", "none", "words", "0"],
    ]  # fmt: skip
    assert f"records may repeat in {REPARTITION}: 0_0, 0_1 may have processed" in text
    assert "sub-topology 1 of counting reads it, and processes them twice" in text
    assert "records may repeat in totals: 1_0, 1_1 may have processed" in text


def test_tasks_that_have_their_commits_stay(lost: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was killed after two tasks goes on with the others; between them a run is refused."""
    from penstock.plugins.engine.program import from_state as engine

    original, left = engine._commit, [2]

    def fail(*arguments: Any) -> None:
        if not left[0]:
            raise Killed("after two tasks")
        left[0] -= 1
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_commit", fail)
        assert isinstance(failing(lost, "reset", TARGET, "--from-state", *WHERE, "--yes"), Killed)
    with pytest.raises(IncompatibleStateError, match="task 1_0 in"):
        run()
    plan = lost.json("reset", TARGET, "--from-state", "--yes", "--json")
    assert ([each["task"] for each in plan["tasks"]], plan["kept"]) == (["1_0", "1_1"], 2)
    run()
    with logs(lost) as log:
        append(log, 0, "abc", 10)
    totals(lost)
    run()
    assert totals(lost) == ["a=4", "b=3", "c=2"]


def test_a_reset_that_was_killed_is_no_loss(lost: Console) -> None:
    """Without --from-state everything starts afresh; the notes go with it."""
    lost("reset", TARGET, "--yes")
    run()
    assert totals(lost) == ["a=1", "a=2", "a=3", "b=1", "b=2", "c=1"]


def test_it_wants_to_know_where_a_topic_starts(lost: Console) -> None:
    assert "say where it starts" in lost("reset", TARGET, "--from-state", "--topic", "words", code=2).stderr
    result = lost("reset", TARGET, "--from-state", "--topic", "wards", "--to-earliest", code=2)
    assert "has lost no position in topic 'wards'; it has in: counting-by-word-repartition, words" in result.stderr


# -- penstock changelog move


def test_the_changelog_moves(console: Console) -> None:
    counting(console)
    with logs(console) as log:
        append(log, 0, "aab", 1)
    run()
    old = f"directory:{console.directory}/.penstock/changelog"
    with pytest.raises(IncompatibleStateError, match=f"penstock changelog move MODULE:ATTR --from {old}"):
        run(changelog="directory:elsewhere")
    place = ["--set", "changelog=directory:elsewhere"]
    assert (
        "no way to version"
        in console("changelog", "move", TARGET, "--from", "directory:nowhere", *place, code=1).stderr
    )
    result = console("changelog", "move", TARGET, "--from", old, *place)
    assert result.stdout == "2 tasks copied, 0 tasks there already\n"
    assert result.stderr.splitlines() == [
        "task 1_0 is copied", "task 1_1 is copied", f"what counting has in {old} is not used any more, and can be " "deleted",
    ]  # fmt: skip
    # From the place to itself: nothing may be said of deleting it.
    assert console("changelog", "move", TARGET, "--from", "directory:elsewhere", *place).stderr == ""
    again = console.json("changelog", "move", TARGET, "--from", old, *place, "--json")
    assert again == {"application_id": "counting", "copied": [], "there": ["1_0", "1_1"]}
    with logs(console) as log:
        append(log, 0, "a", 5)
        lease = log.lease("counting", "a driver of ours", 60_000)
        assert "is already run by" in console("changelog", "move", TARGET, "--from", old, *place, code=1).stderr
        lease.release()
    totals(console)
    run(changelog="directory:elsewhere", state_dir="fresh")
    assert totals(console) == ["a=3"]


def test_a_changelog_that_is_older_than_the_commits_is_refused(console: Console) -> None:
    counting(console)
    changelog, backup = (console.directory / ".penstock" / each for each in ("changelog", "backup"))
    for text in ("a", "ab"):
        with logs(console) as log:
            append(log, 0, text, 1)
        run()
        if text == "a":
            shutil.copytree(changelog, backup)
    shutil.rmtree(changelog)
    backup.rename(changelog)
    before = positions(console)
    said = console("reset", TARGET, "--from-state", "--yes", code=1).stderr
    assert "task 1_0: the log has its commit" in said and "bring" in said
    assert positions(console) == before
