"""Iceberg on Spark, continuously and in batches: each record is in the table once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.spark import run
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from ..programs import expected, rows, through_outbox
from .tables import counted, sink

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_each_record_is_written_once(tmp_path: Path, spark: Any, trigger: str) -> None:
    lake, total = tmp_path / "lake", 0
    made = through_outbox(sink(lake, partition_by={"name": "bucket[2]"}))
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
                wait_until(lambda: not thread.is_alive() or counted(lake).total() >= total, "all is written", 120)  # noqa: B023
            finally:
                stop.set()
                thread.join()
    assert counted(lake) == expected(range(total))
