"""A paused application on Spark: in batches and continuous, from the command line's note in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.engine.program.pausing import pause, resume
from penstock.plugins.engine.program.run_status import StatusTopic

from ..rotation import of_today
from . import apps
from .surroundings import Surroundings
from .test_hosts import fresh, running

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("trigger", of_today(["0s", "continuous"], 2))
def test_no_records_are_processed_until_it_is_resumed(tmp_path: Path, spark: Any, trigger: str) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 1})
        application = surroundings.application(fresh("paused"), apps.count(), commit_interval="10ms")
        topic = StatusTopic(surroundings.log, application.id)

        def counted() -> int:
            return sum(map(len, surroundings.values_by_key("out").values()))

        def is_open_and(*paused: int) -> bool:
            status = topic.read()
            return status is not None and status.phase == "running" and tuple(status.paused) == paused

        pause(application, surroundings.log)
        surroundings.put("in", [(f"k{number}", "v", number) for number in range(10)])
        with running(application, spark, trigger) as run:
            run.wait(lambda: is_open_and(0), "open and paused")
            assert counted() == 0
            resume(application, surroundings.log)
            run.wait(lambda: counted() == 10, "the records, once it is resumed")
            run.wait(is_open_and, "a status that says so")
            pause(application, surroundings.log)
            run.wait(lambda: is_open_and(0), "paused again")
            surroundings.put("in", [("k0", "v", 10)])
            assert counted() == 10
            run.wait(lambda: run.news[-1].lag == 1, "the lag of what waits")
            assert counted() == 10
            summary = run.stop()
        assert (summary.records_in, summary.lag) == (10, 1)
