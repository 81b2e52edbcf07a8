"""What a start of Spark does at the same time, and what its processes do without."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from pyspark.cloudpickle import dumps

from penstock.plugins.spark import sessions
from penstock.plugins.spark.source import PenstockDataSource, sent_by_value

READS = """
import json, sys
from pyspark.cloudpickle import loads
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructType

source = loads(sys.stdin.buffer.read())({"control": "/nowhere"})
schema = StructType().add("group", LongType()).add("plan", StringType())
rows = [(-7, "{}"), (1 << 40, '{"what": "\\u20ac\\u00df"}'), (3, "")]
(batch,) = source.streamReader(schema).read(InputPartition(rows))
found = [(row["group"], row["plan"]) for row in batch.to_pylist()]
print(json.dumps([source.name(), source.schema(), found == rows]))
print(json.dumps(sorted({each.partition(".")[0] for each in sys.modules} & {"penstock", "pandas"})))
"""


def test_a_source_is_made_and_read_without_penstock_and_pandas() -> None:
    """Spark does both in processes that it starts one after the other."""
    with sent_by_value():
        sent = dumps(PenstockDataSource)  # type: ignore[no-untyped-call]
    done = subprocess.run([sys.executable, "-c", READS], input=sent, capture_output=True, check=True)
    read, imported = map(json.loads, done.stdout.splitlines())
    assert read == ["penstock", "group bigint, plan string", True]
    assert imported == []


@pytest.mark.spark
@pytest.mark.parametrize("name", sessions._CLASSES)
def test_this_spark_has_the_classes_that_are_loaded_ahead(spark: Any, name: str) -> None:
    assert spark._jvm.java.lang.Class.forName(name).getName() == name


def test_two_threads_send_the_source() -> None:
    """One that is done leaves the other as it is."""
    is_first_in, is_second_about = Event(), Event()

    def send_second() -> bytes:
        assert is_first_in.wait(30)
        is_second_about.set()
        with sent_by_value():
            return dumps(PenstockDataSource)  # type: ignore[no-any-return, no-untyped-call]

    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(send_second)
        with sent_by_value():
            is_first_in.set()
            assert is_second_about.wait(30)
            first = dumps(PenstockDataSource)  # type: ignore[no-untyped-call]
        assert second.result(30) == first
