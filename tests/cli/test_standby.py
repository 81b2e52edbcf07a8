"""`penstock standby`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ..waiting import wait_until
from .applications import TARGET, counting, run
from .console import Console
from .test_reset import append, logs


@pytest.fixture
def counted(console: Console) -> Console:
    counting(console)
    with logs(console) as log:
        append(log, 0, "aab", 1)
    run()
    return console


def test_once(counted: Console) -> None:
    elsewhere = ("--set", "state_dir=elsewhere")
    copies = counted.json("standby", TARGET, "--once", "--json", *elsewhere)
    assert {(each["task"], each["state"], each["behind"], each["error"]) for each in copies} == {
        (f"1_{number}", "following", 0, "") for number in (0, 1)
    }
    assert sum(each["restored"] for each in copies) == 2
    assert sum(each["restored"] for each in counted.json("standby", TARGET, "--once", "--json", *elsewhere)) == 0
    listed = counted.json("state", "list", TARGET, "--json", *elsewhere)
    assert [(each["copy"], each["version"] is not None) for each in listed] == [("standby", True)] * 2
    run(state_dir="elsewhere")
    assert {each["copy"] for each in counted.json("state", "list", TARGET, "--json", *elsewhere)} == {"local state"}


def test_what_it_refuses(counted: Console, tmp_path: Path) -> None:
    result = counted("standby", TARGET, "--task", "1_7", code=2)
    assert "--task 1_7: 'counting' has the tasks 1_0, 1_1" in result.stderr
    wrong = ("--set", f"changelog=directory:{tmp_path}/nothing")
    result = counted("standby", TARGET, "--once", "--set", "state_dir=elsewhere", *wrong, code=1)
    assert "standby of task 1_" in result.stderr
    assert "give it the same setting 'changelog'" in result.stderr


def test_it_ends_when_told(counted: Console) -> None:
    process = counted.start("standby", TARGET, "--json", "--set", "state_dir=elsewhere")
    state = counted.directory / ".penstock" / "elsewhere" / "counting"
    wait_until(lambda: len(list(state.glob("1_*/incarnation"))) == 2)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert [each["task"] for each in json.loads(out)] == ["1_0", "1_1"]
