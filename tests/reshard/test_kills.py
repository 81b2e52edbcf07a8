"""A resharding that is killed at any step leaves the old layout as it was, and can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, ChangelogError, IncompatibleStateError, Topology, key_value_store, window_store
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.engine.program.stored_id import StoredAs, read_stored
from penstock.plugins.engine.task.locations import Places
from penstock.plugins.logs.memory import MemoryLog, _MemoryCommitter
from penstock.plugins.state.transfer.reshard import accept, resharding, undo

from .programs import Count
from .runs import lease, new_log, outputs, produce, resharded, run, settings

KEYS = [f"key {number}" for number in range(9)]


class Killed(BaseException):
    """What a kill does to the process."""


class Kills:
    """Raises before or after the given number of writes, to the log and to the changelog."""

    def __init__(self) -> None:
        self.left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def called(*args: Any, **options: Any) -> Any:
            self.step()
            result = method(*args, **options)
            self.step()
            return result

        return called


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> Kills:
    found = Kills()
    for owner, names in (
        (MemoryLog, ("create_topic", "delete_topic", "put_meta", "delete_commits")),
        (_MemoryCommitter, ("commit",)),
        (DirectoryChangelog, ("append", "snapshot", "destroy")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, found.around(getattr(owner, name)))
    return found


def counting(directory: Path, changelog: str, topic: str) -> Application:
    stores = [key_value_store("totals"), window_store("windows", retention="1h", window_size="10ms")]
    topology = Topology().add_source("in", topic).add_processor("count", Count, "in", stores=stores)
    topology.add_sink("out", "out", "count")
    return Application("shop", topology, **settings(directory, changelog))


def rows(first: int, last: int) -> list[tuple[str, str, int]]:
    return [(key, str(number), number * 7) for number in range(first, last) for key in KEYS]


@pytest.mark.parametrize("changelog", ["directory:changes", "topic:"])
def test_a_kill_at_any_step(tmp_path: Path, changelog: str, kills: Kills) -> None:
    wanted, at, was_killed = _outputs_of_one_run(tmp_path / "always", changelog), 0, True
    while was_killed:
        directory = tmp_path / str(at)
        log = new_log({"in": 2, "new": 3, "out": 1})
        produce(log, "in", rows(0, 3))
        run(counting(directory, changelog, "in"), log)
        produce(log, "in", rows(3, 5))
        app, kills.left, was_killed = counting(directory, changelog, "new"), at, False
        try:
            resharded(app, log, 3, sources={"in": "new"})
        except Killed:
            was_killed = True
        kills.left = None
        if read_stored("shop", log).id == "shop":
            assert was_killed
            if at % 2:  # the application may run in between, under the old layout
                run(counting(directory, changelog, "in"), log)
            resharded(app, log, 3, sources={"in": "new"})
        stored = read_stored("shop", log).id
        assert all(each.startswith(f"{stored}-") for each in log.topics() if each.startswith("shop-layout-"))
        left = {path.parts[-3] for path in (directory / "changes").glob("*/*/*") if path.is_file()}
        assert left <= {"shop", stored}
        produce(log, "new", rows(5, 8))
        run(app, log)
        assert outputs(log) == wanted, f"killed at step {at}"
        at += 1
    assert at > 20


def test_a_kill_while_the_old_layout_is_deleted(tmp_path: Path, kills: Kills) -> None:
    at, was_killed = 0, True
    while was_killed:
        log = new_log({"in": 2, "new": 3, "out": 1})
        produce(log, "in", rows(0, 3))
        run(counting(tmp_path / str(at), "directory:changes", "in"), log)
        app = counting(tmp_path / str(at), "directory:changes", "new")
        resharded(app, log, 3, sources={"in": "new"})
        kills.left, was_killed = at, False
        try:
            accept(app, log, lease(app, log))
        except Killed:
            was_killed = True
            kills.left = None
            if at % 2 or read_stored("shop", log).before:
                accept(app, log, lease(app, log))
            else:  # the next resharding deletes what is left
                log.create_topic("more", 4)
                app = counting(tmp_path / str(at), "directory:changes", "more")
                resharded(app, log, 4, sources={"new": "more"})
        kills.left = None
        run(app, log)
        assert not [path for path in (tmp_path / str(at) / "changes" / "shop").rglob("*") if path.is_file()]
        at += 1
    assert at > 4


def test_a_kill_while_the_new_layout_is_undone(tmp_path: Path, kills: Kills) -> None:
    at, was_killed = 0, True
    while was_killed:
        log = new_log({"in": 2, "new": 3, "out": 1})
        produce(log, "in", rows(0, 3))
        before = counting(tmp_path / str(at), "directory:changes", "in")
        run(before, log)
        app = counting(tmp_path / str(at), "directory:changes", "new")
        resharded(app, log, 3, sources={"in": "new"})
        kills.left, was_killed = at, False
        try:
            undo(app, log, lease(app, log))
        except Killed:
            was_killed = True
            kills.left = None
            if at % 3 == 2 and read_stored("shop", log).id == "shop":
                run(before, log)
            if read_stored("shop", log) != StoredAs("shop", left=[]):  # else its last write was done
                undo(app, log, lease(app, log))
        kills.left = None
        with pytest.raises(IncompatibleStateError, match="keeps no layout before the present one"):
            undo(app, log, lease(app, log))
        assert read_stored("shop", log) == StoredAs("shop", left=[])
        assert not [topic for topic in log.topics() if topic.startswith("shop-layout-")]
        left = [path for path in (tmp_path / str(at) / "changes").glob("shop-layout-*/**/*") if path.is_file()]
        assert not left, f"killed at step {at}"
        run(before, log)
        at += 1
    assert at > 4


def test_an_undo_does_not_end_an_accept_that_was_killed(tmp_path: Path, kills: Kills) -> None:
    log = new_log({"in": 2, "new": 3, "out": 1})
    produce(log, "in", rows(0, 3))
    run(counting(tmp_path, "directory:changes", "in"), log)
    app = counting(tmp_path, "directory:changes", "new")
    resharded(app, log, 3, sources={"in": "new"})
    kills.left = 2
    with pytest.raises(Killed):
        accept(app, log, lease(app, log))
    kills.left = None
    assert read_stored("shop", log).unused == "shop"
    with pytest.raises(IncompatibleStateError, match="keeps no layout before the present one"):
        undo(app, log, lease(app, log))


@pytest.mark.parametrize("end", [accept, undo])
def test_rows_that_a_killed_resharding_left_on_disk(end: Callable[..., object], tmp_path: Path) -> None:
    """It was killed behind its switch, so it is not repeated."""
    log = new_log({"in": 2, "new": 3, "out": 1})
    produce(log, "in", rows(0, 3))
    run(counting(tmp_path, "directory:changes", "in"), log)
    app = counting(tmp_path, "directory:changes", "new")
    resharded(app, log, 3, sources={"in": "new"})
    left = Places.of(app).resharding
    (left / "0_0").mkdir(parents=True)
    end(app, log, lease(app, log))
    assert not left.exists()


def test_a_process_that_was_frozen_finds_its_layout_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, write = new_log({"in": 2, "new": 3, "out": 1}), resharding.write_task

    def written(application: Application, *given: Any) -> None:
        write(application, *given)
        log.delete_commits(application.id)  # as the next process does

    monkeypatch.setattr(resharding, "write_task", written)
    produce(log, "in", rows(0, 3))
    run(counting(tmp_path, "directory:changes", "in"), log)
    with pytest.raises(ChangelogError, match="task 0_0: the commit that was written is gone: another process"):
        resharded(counting(tmp_path, "directory:changes", "new"), log, 3, sources={"in": "new"})


def _outputs_of_one_run(directory: Path, changelog: str) -> Any:
    log = new_log({"in": 3, "out": 1})
    produce(log, "in", rows(0, 8))
    run(counting(directory, changelog, "in"), log)
    return outputs(log)
