"""External sinks on Spark, in batches and in the continuous mode: each record is in the table once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Application, TopologyError
from penstock.contrib.postgres import postgres as postgres_sink
from penstock.dsl import StreamsBuilder
from penstock.plugins.spark.dataframe.records import check_application
from penstock.testing import MemorySink

from .on_spark import run_twice
from .postgres_server import PostgresServer

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_each_record_is_written_once(tmp_path: Path, spark: Any, postgres: PostgresServer, trigger: str) -> None:
    builder = StreamsBuilder()
    columns = {"name": "text", "value": "text"}
    sink = postgres_sink(postgres.dsn, table="rows", columns=columns, key="name", mode="insert")
    builder.stream("in").map_values(str.upper).to_sink(sink, "target", value_serde="str")
    total = run_twice(tmp_path / "data", spark, trigger, builder, lambda: count_of(postgres))
    assert sorted(postgres.query("SELECT name, value FROM rows")) == sorted(
        (f"k{number % 5}", f"V{number}") for number in range(total)
    )


def count_of(server: PostgresServer) -> int:
    (there,) = server.query("SELECT to_regclass('rows')")
    found: int = server.query("SELECT count(*) FROM rows")[0][0] if there[0] is not None else 0
    return found


def test_a_pipeline_of_spark_has_no_log() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to_sink(MemorySink("x"), "target")
    with pytest.raises(TopologyError, match="external sink 'target' writes the records of a topic of a log"):
        check_application(Application("app", builder, changelog="directory:changelog"))
