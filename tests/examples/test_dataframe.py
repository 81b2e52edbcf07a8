"""The example of a topology inside a Spark pipeline: its rule in the test driver, and its alerts over several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.spark.sessions import tune
from penstock.plugins.testing import TopologyTestDriver

from .running import load


@pytest.fixture
def example() -> Any:
    return load("06_dataframe")


def test_three_failures_within_a_minute_are_an_alert(example: Any) -> None:
    with TopologyTestDriver(example.application) as driver:
        for key, ok, second in (
            ("a", 0, 0),
            ("a", 0, 30),
            ("b", 0, 31),
            ("a", 0, 59),
            ("a", 1, 60),
            ("a", 0, 61),
            ("b", 0, 99),
        ):
            driver.pipe("logins", key, {"ok": bool(ok)}, second * 1000)
        assert [tuple(record[:3]) for record in driver.read_all("alerts")] == [
            ("a", {"user": "a", "failures": 3}, 59_000)
        ]
        assert driver.store("failures").get("b") == [99_000]


def test_alerts_come_out_once_over_several_runs(example: Any, spark: Any, tmp_path: Path) -> None:
    session = tune(spark, True, 2)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    example.write_logins(tmp_path, "noon.json", "abaBcab", 0)
    example.run(session, tmp_path)
    example.write_logins(tmp_path, "sooner.json", "bbc", 0)
    example.write_logins(tmp_path, "later.json", "cccc", 30)
    example.run(session, tmp_path)
    example.run(session, tmp_path)
    found = session.read.json(str(tmp_path / "alerts")).orderBy("timestamp", "user").collect()
    assert [(row.timestamp[11:19], row.user, row.failures) for row in found] == [
        ("12:00:05", "b", 3), ("12:00:25", "a", 3), ("12:30:10", "c", 3), ("12:30:15", "c", 4),
    ]  # fmt: skip
