"""`transform` on executors that come and go with the load (Spark's dynamic allocation), and are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ..crash.operator import Pipeline
from ..rotation import WHOLE, by_turns

MOST = 3
OPTIONS = {
    "enabled": "true",
    "initialExecutors": "1",
    "minExecutors": "1",
    "maxExecutors": str(MOST),
    "executorIdleTimeout": "1s",
    "shuffleTracking.timeout": "1s",
    "schedulerBacklogTimeout": "1s",  # whole seconds: Spark takes 100ms for 0
}


@pytest.mark.spark
@by_turns(7, WHOLE)
def test_rows_are_processed_once_while_executors_come_and_go_and_are_killed(tmp_path: Path) -> None:
    options = [f"spark.dynamicAllocation.{name}={value}" for name, value in OPTIONS.items()]
    hold = tmp_path / "hold"
    with Pipeline(tmp_path, f"local-cluster[{MOST},1,1024]", options) as pipeline:

        def begin(executors: int) -> None:
            """Let a batch wait until tasks that wait have brought more executors."""
            hold.touch()
            pipeline.write()
            pipeline.wait(lambda: len(pipeline.executors()) == executors, f"{executors} executors")

        def end(files: int = 3) -> None:
            hold.unlink()
            pipeline.write(files)
            pipeline.wait_for(pipeline.files)

        pipeline.start()
        pipeline.write(2)
        pipeline.wait_for(2)
        begin(MOST)
        end()
        # Tasks move back, with their state, as executors end that have nothing to do.
        pipeline.wait(lambda: len(pipeline.executors()) == 1, "executors without work end")
        pipeline.write(2)
        pipeline.wait_for(pipeline.files)
        begin(MOST)
        os.kill(max(each.pid for each in pipeline.executors()), signal.SIGKILL)
        end()
        begin(MOST)
        for each in pipeline.executors()[1:]:
            os.kill(each.pid, signal.SIGKILL)
        end()
        assert pipeline.judge().is_good, pipeline.judge()
        assert pipeline.starts == 1, "the query did not end"
