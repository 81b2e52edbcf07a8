"""Compiled parts are optional: what a process says of them, and does without them."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import compiled


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The parts of a process that has loaded none, in which modules of `tmp_path` can be imported."""
    monkeypatch.setattr(compiled, "_parts", {})
    monkeypatch.delenv("PENSTOCK_COMPILED", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return compiled._parts


def load(tmp_path: Path, name: str, text: str) -> object:
    (tmp_path / f"{name}.py").write_text(text)
    try:
        return compiled.load(name, "things")
    finally:
        sys.modules.pop(name, None)


def test_a_part_that_fits_is_loaded(parts: dict[str, str], tmp_path: Path) -> None:
    loaded = load(tmp_path, "of_things", f"REVISION = {compiled.REVISION}")
    assert loaded is not None and compiled.status() == {"things": "compiled"}


@pytest.mark.parametrize("text", ["REVISION = 0", "", "REVISION = 'x'"])
def test_a_part_of_another_revision_is_left_out_with_one_line(
    text: str, parts: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(tmp_path, "stale", text) is None
    [line] = caplog.records
    assert (line.name, line.levelno) == ("penstock.compiled", logging.WARNING)
    assert line.getMessage().startswith("the compiled things are of revision ")
    assert line.getMessage().endswith(f"expected {compiled.REVISION}: install penstock again")
    assert compiled.status()["things"] in line.getMessage()


def test_a_part_that_is_not_there(parts: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    assert compiled.load("penstock.compiled._nowhere", "things") is None
    assert compiled.status() == {"things": "not built: pip needs a C compiler and Python's headers"}
    assert not caplog.records


def test_a_part_that_cannot_be_loaded(parts: dict[str, str], tmp_path: Path) -> None:
    assert load(tmp_path, "broken", "raise ImportError('undefined symbol: PyNothing')") is None
    assert compiled.status() == {"things": "cannot be loaded: undefined symbol: PyNothing"}


@pytest.mark.parametrize(("value", "is_off"), [("0", True), ("1", False), ("", False), ("no", False)])
def test_only_0_switches_them_off(
    value: str, is_off: bool, parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_COMPILED", value)
    assert (load(tmp_path, "of_things", f"REVISION = {compiled.REVISION}") is None) is is_off
    assert compiled.status() == {"things": "off (PENSTOCK_COMPILED=0)" if is_off else "compiled"}


def test_c_and_python_say_the_same_revision() -> None:
    [source] = Path(compiled.__file__).parent.glob("_records.c")
    assert f"#define REVISION {compiled.REVISION} " in source.read_text()


def test_a_process_without_them_has_no_compiled_function() -> None:
    program = """
import gc
import penstock, penstock.task.task, penstock.stores.kinds.building
from penstock.compiled import records, status
assert records is None and status() == {"records": "off (PENSTOCK_COMPILED=0)"}, status()
assert not [each for each in gc.get_objects() if type(each).__module__.startswith("penstock.compiled._")]
print(penstock.Record("k", "v", 1).with_value(2).value)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PENSTOCK_COMPILED": "0"}, capture_output=True, text=True
    )
    assert done.stdout == "2\n", done.stderr
