"""Delta tables on Spark, in batches and in the continuous mode: each record once, and Spark reads the files."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.plugins.spark import run
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from ..programs import expected, rows, through_outbox
from .programs import counted, sink

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_each_record_is_written_once(tmp_path: Path, spark: Any, trigger: str) -> None:
    table, total = tmp_path / "table", 0
    made = through_outbox(sink(table, partition_by="name"))
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
                wait_until(lambda: not thread.is_alive() or counted(table).total() >= total, "all is written", 120)  # noqa: B023
            finally:
                stop.set()
                thread.join()
    assert counted(table) == expected(range(total))
    read = spark.read.option("basePath", str(table)).parquet(*DeltaTable(table).file_uris())
    assert Counter((row["name"], row["value"]) for row in read.collect()) == expected(range(total))
