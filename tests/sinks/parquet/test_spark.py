"""Parquet files on Spark, in batches and in the continuous mode: each record once, and Spark reads them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.contrib.parquet import read_files

from ..on_spark import run_twice
from .programs import expected, sink, through_outbox
from .reading import counted

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_each_record_is_written_once(tmp_path: Path, spark: Any, trigger: str) -> None:
    location = tmp_path / "location"
    location.mkdir()
    made = through_outbox(sink(location, max_age="200ms", partition_by={"day": "%Y-%m-%d"}))
    total = run_twice(tmp_path / "data", spark, trigger, made, lambda: counted(location).total())
    assert counted(location) == expected(range(total))
    named = spark.read.option("basePath", str(location)).parquet(*read_files(str(location)))
    assert named.columns == ["name", "value", "day"]
    assert Counter((row["name"], row["value"]) for row in named.collect()) == expected(range(total))
    assert spark.read.parquet(str(location)).count() == total
