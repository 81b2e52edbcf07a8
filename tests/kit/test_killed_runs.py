"""Runs whose task hosts are killed in the middle of records: the fixture `penstock_run_with_kills`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Application, ConfigError, Record
from penstock.plugins.testing.killed_runs import KilledRun

from .planted_programs import Sum, counting, running_sums

RECORDS = [Record(key, number, number) for number, key in enumerate("abdf" * 10)]
Make = Callable[..., Application]
Run = Callable[..., KilledRun]


def by_key(answers: list[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    return {key: [each for each in answers if each[0] == key] for key in "abdf"}


def test_kills_of_hosts_of_the_embedded_engine_cost_nothing(
    penstock_application: Make, penstock_run_with_kills: Run
) -> None:
    application = penstock_application(counting(Sum), engine="embedded", processes=1)
    done = penstock_run_with_kills(application, {"words": RECORDS})
    assert done.summary.workers_lost == 2
    assert by_key([each[:3] for each in done.answers["counts"]]) == by_key(list(running_sums(RECORDS)))


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
