"""The changelog in another place than before: every task's state is there, or the start is refused with the command
that moves it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import ChangelogError, ConfigError, IncompatibleStateError
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.engine.program.preparation import check_program, prepare
from penstock.plugins.state.transfer.changelog_move import Moved, move_changelog

from ..bad_input.world import World, says


def move(world: World, source: str | None = None, check_lease: Callable[[], None] = lambda: None) -> Moved:
    with world.open() as log:
        where = source or f"directory:{world.changelog}"
        return move_changelog(check_program(world.application, log), log, where, check_lease)


def start(world: World) -> None:
    with world.open() as log:
        prepare(world.application, log)


@pytest.fixture
def elsewhere(world: World, tmp_path: Path) -> World:
    """An application that has run, whose setting now names another place."""
    world.run()
    world.change(changelog=f"directory:{tmp_path / 'elsewhere'}")
    return world


def test_the_start_is_refused_and_names_the_command(elsewhere: World, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(IncompatibleStateError) as caught:
            start(elsewhere)
        says(
            caught.value, f"'shop' keeps its state's history in 'directory:{elsewhere.changelog}'",
            f"means 'directory:{tmp_path / 'elsewhere'}' now", "task 0_0 (version 000000000005-", "task 0_1 (version 000000000001-",
            f"`penstock changelog move MODULE:ATTR --from directory:{elsewhere.changelog}`",
        )  # fmt: skip
    elsewhere.change(changelog="directory:changelog")
    start(elsewhere)


def test_every_task_is_moved_idle_ones_too(elsewhere: World) -> None:
    assert move(elsewhere) == Moved(("0_0", "0_1"), ())
    shutil.rmtree(elsewhere.changelog)
    elsewhere.forget_state()
    assert elsewhere.contents().stores == {
        ("0_0", "totals"): [("ann", 16), ("bob", 7)], ("0_1", "totals"): [("dan", 1)],
    }  # fmt: skip
    assert move(elsewhere) == Moved((), ("0_0", "0_1"))


def test_a_move_that_was_killed_is_repeated(elsewhere: World) -> None:
    left = [2]

    def die() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move(elsewhere, check_lease=die)
    with pytest.raises(IncompatibleStateError, match=r"the state of task 0_1 \(version"):
        start(elsewhere)
    assert move(elsewhere) == Moved(("0_1",), ("0_0",))
    start(elsewhere)


@pytest.mark.parametrize("how", ["copied", "data_dir"])
def test_files_that_somebody_moved_are_accepted(elsewhere: World, tmp_path: Path, how: str) -> None:
    """A location is a name: what counts is whether the state can be reached."""
    if how == "copied":
        shutil.copytree(elsewhere.changelog, tmp_path / "elsewhere")
    else:
        elsewhere.change(changelog="directory:changelog", data_dir=f"{elsewhere.directory}/../world-1")
    start(elsewhere)
    assert elsewhere.contents().stores["0_0", "totals"] == [("ann", 16), ("bob", 7)]


def test_data_dir_is_part_of_a_relative_place(world: World, tmp_path: Path) -> None:
    world.change(log=f"local:{world.log}")
    world.run()
    world.change(data_dir=str(tmp_path / "moved"))
    with pytest.raises(IncompatibleStateError, match=f"means 'directory:{tmp_path}/moved/changelog' now"):
        start(world)


@pytest.mark.usefixtures("a_file_each")
def test_a_task_that_has_gone_on_in_the_new_place_is_left_alone(elsewhere: World, tmp_path: Path) -> None:
    new = DirectoryChangelog(str(tmp_path / "elsewhere"), "shop", "0_0")
    version = sorted((elsewhere.changelog / "shop" / "0_0").iterdir())[-1].name.partition(".")[0]
    new.snapshot(version, iter([("totals", b"k", b"v")]))
    with pytest.raises(IncompatibleStateError, match="the state of task 0_1 "):
        start(elsewhere)
    assert move(elsewhere) == Moved(("0_1",), ("0_0",))


def test_what_cannot_be_moved_is_said(elsewhere: World, tmp_path: Path) -> None:
    with pytest.raises(ChangelogError, match=f"changelog at {tmp_path}/nowhere/shop/0_0: no way to version"):
        move(elsewhere, f"directory:{tmp_path}/nowhere")
    for wrong in ("topic:", "memory:x"):
        with pytest.raises(ConfigError, match=f"--from '{wrong}': expected another location of the changelog in force"):
            move(elsewhere, wrong)
    with pytest.raises(IncompatibleStateError):
        start(elsewhere)


def test_a_changelog_of_another_kind_is_refused_as_before(world: World) -> None:
    world.run()
    world.change(changelog="topic:")
    with pytest.raises(IncompatibleStateError, match="changelog 'directory'"):
        start(world)


def test_secrets_are_not_noted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run()
    noted: list[Any] = []
    monkeypatch.setattr("penstock.plugins.engine.program.saved_program.unreachable", lambda *arguments: [])
    world.change(changelog="directory:s3://me:very-secret@bucket/state")
    with world.open() as log:
        monkeypatch.setattr(type(log), "put_meta", lambda self, *arguments: noted.append(arguments))
        prepare(world.application, log)
    assert "s3://********@bucket/state" in str(noted) and "very-secret" not in str(noted)


def test_a_large_state_is_moved_as_it_is(world: World, tmp_path: Path) -> None:
    """Deletions, snapshots and more than one store; stores that the program does not name any more go with the
    others."""
    from penstock.plugins.state.copies.state_reader import StateReader

    log = DirectoryChangelog(str(tmp_path / "any"), "shop", "0_0", chunk_bytes=100)
    log.append({"a": [(b"k%03d" % n, b"old") for n in range(300)], "b": [(b"x", b"1")]}, None, "0-v")
    log.snapshot("0-v", (("a", b"k%03d" % n, b"old") for n in range(300)))
    log.append({"a": [(b"k000", None), (b"k001", b"new")], "gone": [(b"\xff", b"")]}, "0-v", "1-v")
    stores = ["a", "b", "gone"]
    with StateReader(log, "1-v", stores) as state:
        found = list(state.rows())
    assert found[:2] == [("a", b"k001", b"new"), ("a", b"k002", b"old")] and len(found) == 300
    assert found[-1] == ("gone", b"\xff", b"")
