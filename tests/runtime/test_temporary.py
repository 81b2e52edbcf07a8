"""Temporary directories: gone with their process, or with the next one when it was killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from penstock import RuntimeUnavailableError
from penstock.plugins.engine.host.place import Place
from penstock.plugins.engine.task import temporary
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from tests.processes import Child, succeeds_in_a_fork

MAKE = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from penstock.plugins.engine.task.temporary import TemporaryDirectory
directory = TemporaryDirectory("query")
(directory.path / "control").write_text("x")
print(directory.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary, "_swept", set())
    return tmp_path


def test_what_a_killed_process_leaves_goes_with_the_next_and_that_of_a_running_one_stays(top: Path) -> None:
    (top / "penstock-of-somebody-else").mkdir()
    with Child("-c", MAKE, top) as running:
        used = Path(running.line())
        with Child("-c", MAKE, top) as killed:
            left = Path(killed.line())
        assert left.exists()
        with TemporaryDirectory("query") as mine:
            assert not left.exists() and mine.exists()
            assert (used / "control").read_text() == "x"
        running.communicate("")
    assert [each.name for each in top.iterdir()] == ["penstock-of-somebody-else"]


def test_a_forked_child_does_not_remove_what_its_parent_uses(top: Path) -> None:
    directory = TemporaryDirectory("query")
    assert succeeds_in_a_fork(directory.close)
    assert directory.path.exists()
    temporary.remove_abandoned(top)
    assert directory.path.exists()
    directory.close()
    assert not list(top.iterdir())


def test_without_a_directory_that_can_be_written_the_error_names_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose root is read-only."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, "/proc/self")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/self"])
    for make in (lambda: TemporaryDirectory("query"), lambda: Place("key")):
        with pytest.raises(RuntimeUnavailableError, match="let the environment variable TMPDIR .* name one"):
            make()
