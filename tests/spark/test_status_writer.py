"""The status that a run leaves in the log, and its metrics, on Spark."""

from __future__ import annotations

import logging
import socket
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from penstock import ProcessingError, TopicPartition
from penstock.plugins.engine.program.run_status import RunStatus, StatusTopic
from penstock.plugins.engine.run.statistics import RunStatistics, StatusWriter
from penstock.plugins.engine.task.own_topics import STATUS
from penstock.plugins.spark import run

from ..waiting import wait_until
from . import apps
from .surroundings import Surroundings
from .test_hosts import running


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.mark.spark
def test_a_run_says_what_it_does_and_how_it_ended(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    port = free_port()
    application = surroundings.application("counts", apps.count(), metrics_port=port)
    surroundings.put("in", [(f"k{number % 5}", "v", number) for number in range(100)])
    topic = StatusTopic(surroundings.log, application.id)

    def records() -> float:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as response:
                lines = response.read().decode().splitlines()
        except URLError:
            return 0  # the run has just begun
        return sum(float(line.split()[-1]) for line in lines if line.startswith("penstock_task_records_in_total"))

    with running(application, spark, "0s") as going:
        going.wait(lambda: records() == 100, "the metrics have all records")
        status = topic.read()
        assert status is not None and (status.number, status.trigger, status.ended_ms) == (1, "0s", None)
        summary = going.stop()
    status = topic.read()
    assert status is not None
    assert (status.ended_by, status.error, status.records_in, status.commits) == ("stop", None, 100, summary.commits)
    assert [(task.task, task.slot) for task in sorted(status.tasks, key=lambda each: each.task)] == [
        ("0_0", 0),
        ("0_1", 1),
    ]
    assert dict(status.nodes["count"]) == summary.nodes["count"]

    surroundings.put("in", [("k", "poison", 1)])
    with pytest.raises(ProcessingError):
        run(surroundings.application("counts", apps.count(apps.Poisoned)), session=spark)
    status = topic.read()
    assert status is not None and status.number == 2 and status.ended_by is None
    assert status.error is not None and "cannot stand this" in status.error


def test_a_driver_that_was_frozen_leaves_its_successors_status(
    surroundings: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    topic = StatusTopic(surroundings.log, "app")
    partition = TopicPartition(STATUS.of("app"), 0)
    with (
        caplog.at_level(logging.DEBUG),
        StatusWriter(surroundings.log, "app", RunStatistics("app", "0s").status, 3_600),
    ):
        wait_until(lambda: topic.read() is not None, "the first driver's status")
        statistics = RunStatistics("app", "continuous")
        with StatusWriter(surroundings.log, "app", statistics.status):
            statistics.end(None)
        written = surroundings.log.end_offsets([partition])
    assert surroundings.log.end_offsets([partition]) == written
    status = topic.read()
    assert status is not None and (status.number, status.trigger, status.ended_by) == (2, "continuous", "done")
    assert not caplog.records


def test_an_error_that_is_not_penstocks_does_not_end_it(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run without a status would seem to be lost."""
    statistics = RunStatistics("app", "0s")
    make, fails = statistics.status, [ValueError("of a library")]

    def status() -> RunStatus:
        if fails:
            raise fails.pop()
        return make()

    with StatusWriter(surroundings.log, "app", status, 0.01):
        wait_until(lambda: StatusTopic(surroundings.log, "app").read() is not None, "the status is written")
    assert "the run's status was not written: ValueError('of a library')" in caplog.text
