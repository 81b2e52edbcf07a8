"""Local state that nobody uses goes; what is in use, or was lately, stays."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Application, Processor, Record, Topology, key_value_store
from penstock.clock import ManualClock
from penstock.plugins.engine.task.local_state.directories import DirectoryUse, remove_unused
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.program.nodes import TaskId
from penstock.record import TopicPartition
from penstock.world import World

from ..processes import Child

NOW = 10_000_000_000


def used_at(directory: Path, time_ms: int) -> None:
    directory.mkdir(parents=True)
    DirectoryUse(directory, World(clock=ManualClock(NOW))).close()
    os.utime(f"{directory}.lock", (time_ms / 1000, time_ms / 1000))


def test_old_ones_go_and_recent_ones_stay(tmp_path: Path) -> None:
    used_at(tmp_path / "0_0", NOW - 1_001)
    used_at(tmp_path / "0_1", NOW - 999)
    assert remove_unused(tmp_path, 1_000, NOW, "token") == ["0_0"]
    assert not (tmp_path / "0_0").exists()
    assert (tmp_path / "0_1").is_dir()


def test_one_in_use_stays_also_for_another_process(tmp_path: Path) -> None:
    used_at(tmp_path / "0_0", 0)
    use = DirectoryUse(tmp_path / "0_0", World(clock=ManualClock(NOW)))
    os.utime(tmp_path / "0_0.lock", (0, 0))
    script = (
        "import sys; from pathlib import Path\n"
        "from penstock.plugins.engine.task.local_state.directories import remove_unused\n"
        f"print(remove_unused(Path(sys.argv[1]), 1000, {NOW}, 'token'))"
    )
    other = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(other, capture_output=True, text=True, check=True).stdout == "[]\n"
    use.close()
    os.utime(tmp_path / "0_0.lock", (0, 0))
    assert subprocess.run(other, capture_output=True, text=True, check=True).stdout == "['0_0']\n"


def test_the_age_counts_from_the_last_use_however_the_process_ends(tmp_path: Path) -> None:
    used_at(tmp_path / "0_0", 0)
    script = (
        "import sys; from pathlib import Path\n"
        "from penstock import World\n"
        "from penstock.plugins.engine.task.local_state.directories import DirectoryUse\n"
        "use = DirectoryUse(Path(sys.argv[1]), World()); print('open', flush=True); sys.stdin.read()"
    )
    with Child("-c", script, tmp_path / "0_0") as user:
        assert user.line() == "open"
        assert os.stat(tmp_path / "0_0.lock").st_mtime > 0, "opening is a use"
        later = int(os.stat(tmp_path / "0_0.lock").st_mtime * 1000) + 60_000
        assert remove_unused(tmp_path, 1_000, later, "token") == []
    assert remove_unused(tmp_path, 1_000, later + 999, "token") == []
    assert remove_unused(tmp_path, 1_000, later + 1_000, "token") == ["0_0"]


def test_a_process_that_is_frozen_while_it_deletes_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_at(tmp_path / "0_0", 0)

    def frozen(directory: Path) -> None:
        with open(tmp_path / "0_0.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        (tmp_path / "0_0").mkdir()
        raise PermissionError("it is killed")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", frozen)
        assert remove_unused(tmp_path, 1_000, NOW, "token") == ["0_0"]
    assert len(list(tmp_path.glob("0_0.*.removed"))) == 1
    DirectoryUse(tmp_path / "0_0", World(clock=ManualClock(NOW))).close()
    os.utime(tmp_path / "0_0.lock", (NOW / 1000, NOW / 1000))
    assert remove_unused(tmp_path, 1_000, NOW, "token") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0_0", "0_0.lock"]


class Keep(Processor):
    def process(self, record: Record) -> None:
        self.context.get_store("kept").put(record.key, record.value)


def test_a_worker_removes_what_moved_away_and_a_task_that_comes_back_is_restored(tmp_path: Path) -> None:
    topology = Topology().add_source("in", "in").add_processor("keep", Keep, "in", stores=[key_value_store("kept")])
    application = Application("cleaning", topology, data_dir=str(tmp_path), state_cleanup_delay="1m")
    log = open_log(application.settings)
    log.create_topic("in", 2)
    clock = ManualClock(0)
    resources = ProcessResources(World(clock=clock))
    moving, staying = (
        TaskWorker(application, TaskId(0, each), [TopicPartition("in", each)], log, resources=resources)
        for each in (0, 1)
    )
    moving.run_batch({}, 0)
    staying.run_batch({}, 0)
    moving.close()
    directory = resources.task_directory(application, "0_0")
    assert directory.is_dir()
    used = os.stat(f"{directory}.lock").st_mtime
    clock.advance(f"{int(used * 1000) + 61_000}ms")
    staying.run_batch({}, 0)
    assert not directory.exists()
    assert resources.task_directory(application, "0_1").is_dir()
    moving.run_batch({}, 0)
    assert directory.is_dir()
    for worker in (moving, staying):
        worker.close()
    log.close()


def test_nothing_is_removed_before_the_delay_has_passed_since_the_start(tmp_path: Path) -> None:
    topology = Topology().add_source("in", "in").add_processor("keep", Keep, "in", stores=[key_value_store("kept")])
    application = Application("cleaning", topology, data_dir=str(tmp_path), state_cleanup_delay="1m")
    clock = ManualClock(NOW)
    resources = ProcessResources(World(clock=clock))
    directory = resources.task_directory(application, "0_0")
    used_at(directory, 0)
    for passed in ("0ms", "59s"):
        clock.advance(passed)
        resources.clean_up(application)
        assert directory.is_dir()
    clock.advance("61s")
    resources.clean_up(application)
    assert not directory.exists()
    resources.close()
