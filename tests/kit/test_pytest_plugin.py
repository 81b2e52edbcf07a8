"""The fixtures that pytest finds where penstock is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
from penstock import Topology

made = []


def passing():
    return Topology().add_source("in", "in").add_sink("out", "out", "in")


def test_a_driver(penstock_driver):
    driver = penstock_driver(passing(), partitions=2)
    driver.pipe("in", "k", "v", timestamp=1)
    assert driver.read("out").value == "v"
    made.append(driver)


def test_it_was_closed():
    assert made[0]._closed


def test_an_application(penstock_application, tmp_path):
    one, other = penstock_application(passing()), penstock_application(passing(), parallelism=3)
    assert one.id != other.id and other.settings["parallelism"] == 3
    assert one.settings.data_dir.startswith(str(tmp_path))
"""


def test_the_fixtures_are_found(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
