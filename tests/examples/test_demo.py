"""`make demo`: killed in the middle and started again, it ends with the counts of an undisturbed run.

With Kafka the broker is killed, too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..rotation import WHOLE, by_turns
from .running import EXAMPLES

COMMAND = [sys.executable, "-u", str(EXAMPLES / "demo.py"), "--lines", "1500", "--data-dir", "demo"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--engine", "embedded"), id="embedded"),
        pytest.param(
            ("--kafka",), marks=[pytest.mark.spark, pytest.mark.broker, by_turns(2, WHOLE)], id="kafka on Spark"
        ),
    ],
)
def test_the_demo_goes_on_after_a_kill(options: tuple[str, ...], tmp_path: Path) -> None:
    command = [*COMMAND, *options]
    killed = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert killed.stdout is not None
    seen = []
    for line in killed.stdout:
        seen.append(line)
        if line.startswith("batch   2"):
            break
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert "to go" in seen[-1], "".join(seen)

    again = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert re.search(r"An earlier run read [\d,]+ of 1,500 lines and counted [\d,]+ words", again.stdout)
    assert "equal: a plain Python Counter finds the same" in again.stdout
