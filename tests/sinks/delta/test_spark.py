"""Delta tables on Spark, in batches and in the continuous mode: each record once, and Spark reads the files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ..on_spark import run_twice
from ..programs import expected, through_outbox
from .programs import counted, sink

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_each_record_is_written_once(tmp_path: Path, spark: Any, trigger: str) -> None:
    table = tmp_path / "table"
    made = through_outbox(sink(table, partition_by="name"))
    total = run_twice(tmp_path / "data", spark, trigger, made, lambda: counted(table).total())
    assert counted(table) == expected(range(total))
    read = spark.read.option("basePath", str(table)).parquet(*DeltaTable(table).file_uris())
    assert Counter((row["name"], row["value"]) for row in read.collect()) == expected(range(total))
