"""Parquet files on Spark, in batches and in the continuous mode: each record once, and Spark reads them."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.contrib.parquet import read_files
from penstock.plugins.spark import run
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from ..programs import rows
from .programs import expected, sink, through_outbox
from .reading import counted

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_each_record_is_written_once(tmp_path: Path, spark: Any, trigger: str) -> None:
    location, total = tmp_path / "location", 0
    location.mkdir()
    made = through_outbox(sink(location, max_age="200ms", partition_by={"day": "%Y-%m-%d"}))
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 3})
        given = surroundings.application("app", made)
        for _ in range(2):
            surroundings.put("in", rows(range(total, total + 40)))
            total += 40
            stop = threading.Event()
            thread = threading.Thread(target=lambda: run(given, trigger, session=spark, stop=stop))  # noqa: B023
            thread.start()
            try:
                wait_until(lambda: not thread.is_alive() or counted(location).total() >= total, "all is written", 120)  # noqa: B023
            finally:
                stop.set()
                thread.join()
    assert counted(location) == expected(range(total))
    named = spark.read.option("basePath", str(location)).parquet(*read_files(str(location)))
    assert named.columns == ["name", "value", "day"]
    assert Counter((row["name"], row["value"]) for row in named.collect()) == expected(range(total))
    assert spark.read.parquet(str(location)).count() == total
