"""Standbys: a task that is opened where they are restores only what is missing, and never meets them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, ManualClock, World, run
from penstock.plugins.engine.program.saved_program import saved_tasks
from penstock.plugins.engine.task.local_state import directories
from penstock.plugins.engine.task.local_state.directories import DirectoryUse, SoleUse, remove_unused
from penstock.plugins.state.copies import standbys as standbys_module
from penstock.plugins.state.copies.standbys import FAILED, FOLLOWING, TAKEN, Standbys

from ..embedded.test_run import counts, records
from ..processes import Child
from ..runtime.test_refill import topology as with_rates
from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until

CHANGELOGS = ["directory:changes", "topic:"]
TASKS = 4


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": TASKS, "out": TASKS})
        yield made


def on(machine: str, surroundings: Surroundings, changelog: str = "directory:changes", **settings: Any) -> Application:
    """Return the application as another machine runs it: with local state of its own."""
    settings = {"engine": "embedded", "commit_interval": "10ms", "changelog": changelog, **settings}
    return surroundings.application("app", apps.count(), state_dir=machine, **settings)


def wait_for(standbys: Standbys, state: str) -> None:
    wait_until(lambda: {each.state for each in standbys.status()} == {state}, f"every copy is {state}")


def state_of(surroundings: Surroundings, machine: str) -> Path:
    return surroundings.directory / machine / "app"


@pytest.mark.parametrize("changelog", CHANGELOGS)
def test_a_task_restores_only_what_its_standby_lacks(surroundings: Surroundings, changelog: str) -> None:
    surroundings.put("in", records(700, keys=70))
    run(on("one", surroundings, changelog))
    with closing(Standbys(on("two", surroundings, changelog), surroundings.log)) as standbys:
        wait_for(standbys, FOLLOWING)
        assert sum(each.restored for each in standbys.status()) == 70
        assert {each.behind for each in standbys.status()} == {0}
    surroundings.put("in", records(3))
    run(on("one", surroundings, changelog))
    restored = run(on("two", surroundings, changelog)).restored
    # A topic is read from the end before the commit of the copy.
    assert restored == 3 if changelog.startswith("directory") else 3 <= restored < 40
    assert run(on("three", surroundings, changelog)).restored == 70


@pytest.mark.parametrize("changelog", CHANGELOGS)
def test_tasks_take_their_directories_from_living_standbys_and_leave_them(
    surroundings: Surroundings, changelog: str
) -> None:
    surroundings.put("in", records(70))
    run(on("one", surroundings, changelog))
    here = on("two", surroundings, changelog)
    with closing(Standbys(here, surroundings.log)) as standbys:
        wait_for(standbys, FOLLOWING)
        with here.start("continuous") as running:
            surroundings.put("in", [(f"k{number % 7}", "v", number) for number in range(70, 140)])
            wait_until(lambda: sum(map(len, surroundings.values_by_key("out").values())) == 140)
            wait_for(standbys, TAKEN)
        assert running.wait().restored == 0
        wait_for(standbys, FOLLOWING)
    assert run(here).restored == 0
    assert surroundings.values_by_key("out") == counts(140)


def test_a_waiting_run_takes_over_with_its_standbys(surroundings: Surroundings) -> None:
    surroundings.put("in", records(700, keys=70))
    first = on("one", surroundings).start("continuous")
    wait_until(lambda: sum(map(len, surroundings.values_by_key("out").values())) == 700)
    with_standbys = on("two", surroundings, num_standby_replicas=1).start("continuous", wait=True)
    wait_until(lambda: len(list(state_of(surroundings, "two").glob("*/incarnation"))) == TASKS)
    wait_until(lambda: all((each / "lmdb").is_dir() for each in state_of(surroundings, "two").glob("0_?")))
    surroundings.put("in", records(7))
    wait_until(lambda: sum(map(len, surroundings.values_by_key("out").values())) == 707)
    first.stop()
    with with_standbys:
        surroundings.put("in", records(1))
        wait_until(lambda: sum(map(len, surroundings.values_by_key("out").values())) == 708)
    assert with_standbys.wait().restored < 70


def test_without_the_setting_a_waiting_run_keeps_nothing(surroundings: Surroundings) -> None:
    surroundings.put("in", records(70))
    with on("one", surroundings).start("continuous"):
        waiting = on("two", surroundings).start("continuous", wait=True)
        wait_until(lambda: sum(map(len, surroundings.values_by_key("out").values())) == 70)
        waiting.stop()
    assert not state_of(surroundings, "two").exists()


def test_the_cleaning_of_unused_local_state_leaves_them_alone(surroundings: Surroundings) -> None:
    surroundings.put("in", records(70))
    run(on("one", surroundings))
    state = state_of(surroundings, "two")
    with closing(Standbys(on("two", surroundings), surroundings.log)) as standbys:
        wait_for(standbys, FOLLOWING)
        for lock in state.glob("*.lock"):
            os.utime(lock, (0, 0))
        assert remove_unused(state, 1_000, 10_000_000, "token") == []
        assert all(lock.stat().st_mtime == 10_000 for lock in state.glob("*.lock")), "they are in use"
    for lock in state.glob("*.lock"):
        os.utime(lock, (0, 0))
    assert len(remove_unused(state, 1_000, 10_000_000, "token")) == TASKS


def test_only_the_chosen_ones(surroundings: Surroundings) -> None:
    surroundings.put("in", records(70))
    run(on("one", surroundings))
    with closing(Standbys(on("two", surroundings), surroundings.log, ["0_1"])) as standbys:
        wait_for(standbys, FOLLOWING)
        assert [each.task for each in standbys.status()] == ["0_1"]
        standbys.choose(["0_2", "0_3"])
        wait_until(lambda: [each.task for each in standbys.status()] == ["0_2", "0_3"])
        wait_for(standbys, FOLLOWING)
    assert {each.name for each in state_of(surroundings, "two").iterdir() if each.is_dir()} == {"0_1", "0_2", "0_3"}


def test_what_fails_is_tried_again(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.plugins.state.copies.standbys._FAILED_SECONDS", 0.1)
    surroundings.put("in", records(70))
    run(on("one", surroundings))
    changes = surroundings.directory / "changes"
    changes.rename(surroundings.directory / "away")
    with closing(Standbys(on("two", surroundings), surroundings.log)) as standbys:
        wait_for(standbys, FAILED)
        assert all(each.error for each in standbys.status())
        shutil.rmtree(changes, ignore_errors=True)
        (surroundings.directory / "away").rename(changes)
        wait_for(standbys, FOLLOWING)
        assert not any(each.error for each in standbys.status())


def test_stores_that_are_filled_from_a_topic_are_filled_again(surroundings: Surroundings) -> None:
    """A copy has nothing of them: the task fills them from the topic when it takes the copy."""
    surroundings.create(rates=TASKS)
    machines = {
        name: surroundings.application("app", with_rates(), engine="embedded", state_dir=name) for name in ("a", "b")
    }
    surroundings.put("rates", [("anna", "1", 1), ("ben", "2", 1)])
    surroundings.put("in", [("anna", "x", 2), ("ben", "x", 2)])
    run(machines["a"])
    run(machines["b"])  # has the rates of now, and then standbys go on
    surroundings.put("rates", [("anna", "3", 3), ("ben", None, 3)])
    surroundings.put("in", [("anna", "x", 4), ("ben", "x", 4)])
    run(machines["a"])
    with closing(Standbys(machines["b"], surroundings.log)) as standbys:
        wait_for(standbys, FOLLOWING)
    surroundings.put("in", [("anna", "x", 5), ("ben", "x", 5)])
    run(machines["b"])
    assert surroundings.values_by_key("out") == {"anna": ["1 1", "3 2", "3 3"], "ben": ["2 1", "None 2", "None 3"]}


HOLDING = (
    "import sys; from pathlib import Path; from penstock import World\n"
    "from penstock.plugins.engine.task.local_state.directories import SoleUse\n"
    "use = SoleUse(Path(sys.argv[1]), World(), 0); print('open', flush=True); sys.stdin.read()\n"
    "print(use.is_wanted(), flush=True); use.close()"
)


def test_a_frozen_standby_keeps_no_task_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "_LEAVE_SECONDS", 0.2)
    directory = tmp_path / "0_0"
    with Child("-c", HOLDING, directory) as standby:
        assert standby.stdin is not None
        assert standby.line() == "open"
        standby.send_signal(signal.SIGSTOP)
        with closing(DirectoryUse(directory, World())), closing(DirectoryUse(directory, World())):
            standby.send_signal(signal.SIGCONT)
            standby.stdin.close()
            assert standby.line() == "True", "the standby notices that it has lost the directory"
            standby.wait()
            os.utime(tmp_path / "0_0.lock", (0, 0))
            directory.mkdir()
            assert remove_unused(tmp_path, 1_000, 10_000_000, "token") == []


def test_a_task_that_died_while_it_waited_is_forgotten(tmp_path: Path) -> None:
    with closing(SoleUse(tmp_path / "0_0", World(clock=ManualClock(1)), 0)) as use:
        (tmp_path / "0_0.wanted").touch()
        assert use.is_wanted()
    with closing(SoleUse(tmp_path / "0_0", World(clock=ManualClock(1)), 0)) as use:
        assert not use.is_wanted()


def test_an_error_that_is_not_penstocks_ends_no_standby(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status would say 'following' for ever."""
    monkeypatch.setattr(standbys_module, "_TASKS_SECONDS", 0.05)
    surroundings.put("in", records(70))
    run(on("one", surroundings))
    fails = [ValueError("of a library")]

    def saved(application_id: str, log: Any) -> Any:
        if fails and seen:
            raise fails.pop()
        seen.append(application_id)
        return saved_tasks(application_id, log)

    seen: list[str] = []
    monkeypatch.setattr(standbys_module, "saved_tasks", saved)
    with closing(Standbys(on("two", surroundings), surroundings.log)) as standbys:
        wait_for(standbys, FOLLOWING)
        wait_until(lambda: not fails)
        before = sum(each.restored for each in standbys.status())
        surroundings.put("in", records(7))
        run(on("one", surroundings))
        wait_until(lambda: sum(each.restored for each in standbys.status()) > before, "it follows")
