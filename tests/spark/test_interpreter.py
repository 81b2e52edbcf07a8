"""Which interpreter workers run on, and which are refused."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from penstock import RuntimeUnavailableError
from penstock.plugins.spark.interpreter import check_command, chosen_command


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_spark_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert chosen_command({}) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    assert chosen_command({}) == "python3"
    assert chosen_command({"spark.pyspark.python": "/opt/python"}) == "/opt/python"


def test_the_drivers_own_and_another_of_the_same_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_command(sys.executable).version == platform.python_version()
    other = script(tmp_path / "python", f'exec {sys.executable} "$@"')
    assert check_command(other).version == platform.python_version()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_command("python").command == other


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("echo '[\"3.9.1\", true]'", r"run on Python 3\.9\.1 \(.*\), and the driver on Python 3\..*same minor version"),
        (f"echo '[\"{platform.python_version()}\", false]'", "has no package penstock: install it there"),
        ("echo it is broken >&2; exit 3", "is no Python interpreter that works: it is broken"),
        ("echo hello", "is no Python interpreter that works"),
    ],
)
def test_what_cannot_run_the_application_is_refused(tmp_path: Path, answer: str, message: str) -> None:
    with pytest.raises(RuntimeUnavailableError, match=message) as raised:
        check_command(script(tmp_path / "python", answer))
    assert "Set PYSPARK_PYTHON" in str(raised.value)


def test_a_command_that_is_not_there_is_refused() -> None:
    with pytest.raises(RuntimeUnavailableError, match="there is no such command"):
        check_command("python-of-nobody")
