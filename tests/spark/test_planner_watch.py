"""PlannerWatch: a process in which Spark runs the planner, and which does not answer, is named."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.plugins.spark import planner_watch
from penstock.plugins.spark.planner_watch import SILENT_SECONDS, PlannerPulse, PlannerWatch

from . import apps
from .surroundings import Surroundings
from .test_hosts import fresh, running

ASKS = "Getting offsets from PythonMicroBatchStream"


def test_a_planner_that_does_not_answer_is_named_once(tmp_path: Path) -> None:
    pulse, now = PlannerPulse(tmp_path), [100.0]
    watch = PlannerWatch(tmp_path, lambda: now[0])

    def after(seconds: float, doing: str = ASKS) -> str | None:
        now[0] += seconds
        return watch.complaint(lambda: doing)

    assert after(2 * SILENT_SECONDS) is None, "it has not started"
    pulse.beat()
    assert after(1) is None
    assert after(SILENT_SECONDS - 1) is None
    pulse.beat()
    assert after(SILENT_SECONDS + 1) is None, "it has answered meanwhile"
    assert after(SILENT_SECONDS + 1, "Processing new data") is None, "nobody has asked it"
    assert f"process {os.getpid()}" in (after(1) or "")
    assert "SIGKILL" in (after(30) or "")


@pytest.mark.spark
def test_a_frozen_planner_is_named_and_batches_go_on_when_it_wakes(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(planner_watch, "SILENT_SECONDS", 1.0)
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 1, "out": 1})
        with running(surroundings.application(fresh("frozen"), apps.count()), spark) as run:
            surroundings.put("in", [("k", "v", 1)])
            run.wait(lambda: surroundings.values_by_key("out").get("k") == ["1"], "a batch")
            planners = [each for each in psutil.process_iter() if _is_planner(each)]
            assert planners
            for each in planners:
                each.send_signal(signal.SIGSTOP)
            try:
                run.wait(lambda: any("does not answer" in each.getMessage() for each in caplog.records), "a line")
            finally:
                for each in planners:
                    each.send_signal(signal.SIGCONT)
            surroundings.put("in", [("k", "v", 2)])
            run.wait(lambda: surroundings.values_by_key("out")["k"] == ["1", "2"], "the next batch")
            assert run.stop().workers_lost == 0


@pytest.mark.spark
def test_a_run_whose_orders_were_cleaned_away_starts_its_query_again(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with tempfile.TemporaryDirectory() as scratch, Surroundings(tmp_path / "data") as surroundings:
        monkeypatch.setattr(tempfile, "tempdir", scratch)
        surroundings.create(**{"in": 1, "out": 1})
        with running(surroundings.application(fresh("cleaned"), apps.count()), spark) as run:
            surroundings.put("in", [("k", "v", 1)])
            run.wait(lambda: surroundings.values_by_key("out").get("k") == ["1"], "a batch")
            (directory,) = [each for each in Path(scratch).glob("penstock-query-*") if each.is_dir()]
            shutil.rmtree(directory)
            surroundings.put("in", [("k", "v", 2)])
            run.wait(lambda: surroundings.values_by_key("out").get("k") == ["1", "2"], "a batch of another query")
        (line,) = [each for each in caplog.messages if "starting it again" in each]
        assert f"{directory}, from which the planner reads" in line and "TMPDIR" in line


def _is_planner(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
        return any("python_streaming_source_runner" in word for word in words) and os.getpid() in [
            each.pid for each in process.parents()
        ]
    except psutil.Error:
        return False
