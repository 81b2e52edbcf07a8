"""Tables that `foreachBatch` writes behind `transform`, as docs/dataframes.md says: a batch that comes again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, Processor, Record, Topology, key_value_store
from penstock.plugins.spark.sessions import tune
from penstock.spark import topic_rows, transform

TOPICS = ("totals", "users")


class Visits(Processor):
    def process(self, record: Record) -> None:
        counts = self.context.get_store("counts")
        count = (counts.get(record.key) or 0) + 1
        counts.put(record.key, count)
        self.context.forward(record.with_value({"clicks": count}), to="totals")
        if count == 1:
            self.context.forward(record.with_value({"page": record.value}), to="users")


def visits() -> Topology:
    return (
        Topology()
        .add_source("clicks", "clicks", key_serde="str", value_serde="str")
        .add_processor("visits", Visits, "clicks", stores=[key_value_store("counts", key_serde="str")])
        .add_sink("totals", "totals", "visits", value_serde="json")
        .add_sink("users", "users", "visits", value_serde="json")
    )


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_a_batch_that_fails_between_two_tables_is_there_once_if_its_folders_are_overwritten(
    spark: Any, tmp_path: Path, mode: str
) -> None:
    """In append mode it is there twice, so that this test sees what it is about."""
    session = tune(spark, True, 2)
    (tmp_path / "in").mkdir()
    for number in range(2):
        lines = [json.dumps({"key": f"u{each % 3}", "value": "/", "timestamp": number}) for each in range(6)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))
    failures = ["once"]

    def write(batch: Any, number: int) -> None:
        batch.persist()
        for topic in TOPICS:
            folder = tmp_path / topic / f"batch={number}"
            topic_rows(batch, topic).write.mode(mode).parquet(str(folder))
            if number == 1 and failures:
                raise RuntimeError(failures.pop())
        batch.unpersist()

    def run() -> None:
        rows = session.readStream.schema("key string, value string, timestamp timestamp")
        source = rows.option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        out = transform(
            Application("visits", visits(), data_dir=str(tmp_path)), {"clicks": source}, partitions=2,
            schema={"totals": "clicks int", "users": "page string"}, key_schema=dict.fromkeys(TOPICS, "string"),
        )  # fmt: skip
        query = out.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="once"):
        run()
    run()
    totals = session.read.parquet(str(tmp_path / "totals")).collect()
    found = Counter((row.key, row.clicks) for row in totals)
    wanted = Counter((f"u{key}", count) for key in range(3) for count in range(1, 5))
    assert (found == wanted) == (mode == "overwrite")
    assert wanted <= found
    users = session.read.parquet(str(tmp_path / "users")).collect()
    assert sorted((row.key, row.page) for row in users) == [(f"u{key}", "/") for key in range(3)]
