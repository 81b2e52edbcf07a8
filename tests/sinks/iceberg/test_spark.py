"""Iceberg on Spark, continuously and in batches: each record is in the table once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..on_spark import run_twice
from ..programs import expected, through_outbox
from .tables import counted, sink

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_each_record_is_written_once(tmp_path: Path, spark: Any, trigger: str) -> None:
    lake = tmp_path / "lake"
    made = through_outbox(sink(lake, partition_by={"name": "bucket[2]"}))
    total = run_twice(tmp_path / "data", spark, trigger, made, lambda: counted(lake).total())
    assert counted(lake) == expected(range(total))
