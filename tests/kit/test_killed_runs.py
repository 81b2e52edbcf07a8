"""Runs whose task hosts are killed in the middle of records: the fixture `penstock_run_with_kills`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, ConfigError, Record
from penstock.plugins.testing.killed_runs import KilledRun, _Killing

from .planted_programs import Sum, counting, running_sums

RECORDS = [Record(key, number, number) for number, key in enumerate("abdf" * 10)]
Make = Callable[..., Application]
Run = Callable[..., KilledRun]


def by_key(answers: list[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    return {key: [each for each in answers if each[0] == key] for key in "abdf"}


@pytest.mark.parametrize("records", [RECORDS, RECORDS[:5]])
def test_kills_of_hosts_of_the_embedded_engine_cost_nothing(
    penstock_application: Make, penstock_run_with_kills: Run, records: list[Record]
) -> None:
    """A host that is lost three times in one batch ends the run: each kill strikes another batch."""
    application = penstock_application(counting(Sum), engine="embedded", processes=1)
    done = penstock_run_with_kills(application, {"words": records}, kills=4)
    assert done.summary.workers_lost == 4
    assert by_key([each[:3] for each in done.answers["counts"]]) == by_key(list(running_sums(records)))


@pytest.mark.spark
def test_kills_of_hosts_on_spark_cost_nothing(
    penstock_application: Make, penstock_run_with_kills: Run, spark: Any
) -> None:
    application = penstock_application(counting(Sum), parallelism=2)
    done = penstock_run_with_kills(application, {"words": RECORDS}, kills=1, session=spark)
    assert done.summary.workers_lost == 1
    assert by_key([each[:3] for each in done.answers["counts"]]) == by_key(list(running_sums(RECORDS)))


def test_kills_that_cannot_take_place_are_refused(penstock_application: Make, penstock_run_with_kills: Run) -> None:
    application = penstock_application(counting(Sum), engine="embedded")
    with pytest.raises(ConfigError, match="2 kills need more records, found 1"):
        penstock_run_with_kills(application, {"words": RECORDS[:1]})
    with pytest.raises(Exception, match="tasks run in the process of the test: set `processes`"):
        penstock_run_with_kills(application, {"words": RECORDS})


def test_hosts_that_work_side_by_side_take_each_kill_once(tmp_path: Path) -> None:
    """Else more workers are lost than were to be killed."""
    for number in range(10):
        directory = tmp_path / str(number)
        directory.mkdir()
        killing, (reads, writes) = _Killing(None, directory, [1]), os.pipe()
        children = []
        for _ in range(6):
            child = os.fork()
            if child == 0:
                os.close(writes)
                os.read(reads, 1)  # until all are there
                killing.count(1_000)
                os._exit(0)
            children.append(child)
        os.close(reads)
        os.close(writes)
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
        assert codes == [-signal.SIGKILL, 0, 0, 0, 0, 0]
