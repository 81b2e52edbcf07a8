"""Rests: how often planner and runner look while nothing happens, and what ends a rest."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.engine.run.planning.control import (
    LONGEST_REST,
    SHORTEST_REST,
    Control,
    ControlFile,
    Rests,
    rest_seconds,
)
from penstock.plugins.engine.run.run_loop import StopRequest

TIMES = st.floats(0, 10**6)


@given(TIMES, st.floats(0, 100))
def test_a_rest_is_short_beside_the_quiet_before_it(quiet: float, look: float) -> None:
    rest = rest_seconds(quiet, look)
    assert SHORTEST_REST <= rest <= max(SHORTEST_REST, quiet / 20)
    assert rest <= max(LONGEST_REST, 2.0)
    assert rest_seconds(quiet + 1, look) >= rest, "it grows with the quiet"


def test_looks_that_take_long_are_rarer() -> None:
    assert rest_seconds(3600, 0.001) == LONGEST_REST
    assert rest_seconds(3600, 0.03) == pytest.approx(1.5)


class Stage:
    def __init__(self, directory: Path) -> None:
        self.seconds = 0.0
        self.control = ControlFile(directory)
        self.control.write(Control())
        self.control.read()
        self.rests = Rests(self.control, self.wait, lambda: self.seconds)

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    def rested(self, look: float = 0.0, due_in_ms: int | None = None) -> float:
        before = self.seconds
        self.rests.rest(look, due_in_ms)
        return self.seconds - before


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_rests_grow_until_there_is_work(stage: Stage) -> None:
    assert stage.rested() == SHORTEST_REST
    while stage.seconds < 30:
        rest = stage.rested()
    assert rest == pytest.approx(LONGEST_REST)
    stage.rests.end()
    assert stage.rested() == pytest.approx(SHORTEST_REST)


def test_rests_may_be_long_from_the_start_and_still_end_soon_after_a_change(stage: Stage, tmp_path: Path) -> None:
    stage.rests = Rests(stage.control, stage.wait, lambda: stage.seconds, LONGEST_REST)
    assert stage.rested() == pytest.approx(LONGEST_REST)

    def change(seconds: float) -> None:
        stage.wait(seconds)
        ControlFile(tmp_path).write(Control(stopping=True))

    stage.rests = Rests(stage.control, change, lambda: stage.seconds, LONGEST_REST)
    assert stage.rested() <= 0.1


def test_a_rest_ends_when_a_tick_is_due(stage: Stage) -> None:
    stage.rested()
    stage.seconds += 3600
    assert stage.rested(due_in_ms=120) == pytest.approx(0.12)
    assert stage.rested(due_in_ms=-5) == pytest.approx(0.001)


def test_a_rest_ends_when_the_control_file_changes_or_goes(stage: Stage, tmp_path: Path) -> None:
    stage.rested()
    stage.seconds += 3600
    stage.control.read()
    ControlFile(tmp_path).write(Control(stopping=True))
    assert stage.rested() == 0
    stage.control.read()
    assert stage.rested() == pytest.approx(LONGEST_REST)
    (tmp_path / "control").unlink()
    assert stage.rested() == 0


@pytest.mark.parametrize("has_event", [False, True])
def test_a_long_wait_for_a_stop_ends_with_a_signal(has_event: bool) -> None:
    with StopRequest.listening(threading.Event() if has_event else None) as stop:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        began = time.monotonic()
        stop.wait(120)
        assert time.monotonic() - began < 60
        assert stop.reason == "SIGTERM"


def test_a_long_wait_for_a_stop_ends_with_the_callers_event() -> None:
    event = threading.Event()
    with StopRequest.listening(event) as stop:
        threading.Timer(0.1, event.set).start()
        began = time.monotonic()
        stop.wait(120)
        assert time.monotonic() - began < 60
        assert stop.reason == "stop"
