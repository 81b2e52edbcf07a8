"""`read_state`: a store as a DataFrame, at the commits that it had when it was called."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, ConfigError, IncompatibleStateError, StoreError, Topology, key_value_store
from penstock.plugins.engine.program.checkpoint_files import ended_queries, query_of
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.spark.sessions import tune
from penstock.spark import read_state, transform

from ..backups.counting import Tasks, counting, expected, send
from . import apps


@pytest.mark.spark
def test_a_store_as_a_dataframe(spark: Any, tmp_path: Path) -> None:
    """Executors read the tasks at the commits of the call, also when the application has gone on."""
    application = counting(tmp_path, log=f"local:{tmp_path}/log", store_backend="lmdb")
    log = open_log(application.settings)
    words = [("ann", "tea"), ("bob", "tea"), ("ann", "rum"), ("ann", "gin")]
    try:
        tasks = Tasks(application, log)
        send(log, words)
        tasks.finish()
        found = read_state(spark, application, "counts")
        some = read_state(spark, application, "counts", tasks=["1_1"])
        send(log, [("bob", "tea")])
        tasks.finish()
        now = read_state(spark, application, "counts")
        tasks.close()
    finally:
        log.close()
    assert found.dtypes == [("task", "string"), ("version", "string"), ("key", "string"), ("value", "bigint")]
    assert found.rdd.getNumPartitions() == 2
    rows = found.collect()
    assert Counter({row.key: row.value for row in rows}) == expected(words)["counts"]
    assert some.collect() == [row for row in rows if row.task == "1_1"]
    assert {row.key: row.value for row in now.filter("value > 1").collect()} == {"tea": 3}
    with pytest.raises(ConfigError, match="did you mean 'counts'"):
        read_state(spark, application, "count")
    with pytest.raises(ConfigError, match="store 'counts' is in the tasks 1_0, 1_1, not 0_0"):
        read_state(spark, application, "counts", tasks=["0_0"])
    shutil.rmtree(tmp_path)
    with pytest.raises(Exception, match=r"\A.*\n[^\n]*Error: .*\n[^\0]*Traceback"):  # the message comes first
        found.collect()


@pytest.mark.spark
def test_the_state_of_a_transform_as_of_each_batch(spark: Any, tmp_path: Path) -> None:
    """It is read from the checkpoint of the query and the changelog, without local state."""
    session = tune(spark, True, 2)
    application = Application("counts", apps.count(), data_dir=str(tmp_path / "data"))
    (tmp_path / "in").mkdir()
    schema = "key string, value string, timestamp timestamp"
    rows = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    for number in range(2):
        lines = [json.dumps({"key": f"k{each % 3}", "value": "v", "timestamp": number}) for each in range(10)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))
    checkpoint = tmp_path / "checkpoint"
    out = transform(application, {"in": rows}, partitions=2).writeStream.format("noop")
    out.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    shutil.rmtree(tmp_path / "data" / "state")

    def read(**options: Any) -> dict[str, str]:
        found = read_state(session, application, "counts", checkpoint=checkpoint, **options)
        return {row.key: row.value for row in found.collect()}

    assert read() == read(batch=1) == {"k0": "8", "k1": "6", "k2": "6"}
    assert read(batch=0) == {"k0": "4", "k1": "3", "k2": "3"}
    query = query_of(str(checkpoint))
    assert ended_queries(application, {query}) == []
    assert [each.name for each in ended_queries(application, ())] == [f"0_0.{query}", f"0_1.{query}"]
    with pytest.raises(StoreError, match=r"checkpoint, batch 7: Spark cannot read its state: .*minBatchesToRetain"):
        read(batch=7)
    with pytest.raises(ConfigError, match="store 'counts' is in the tasks 0_0, 0_1, not 0_2"):
        read(tasks=["0_2"])
    first = Topology().add_source("first", "first").add_sink("second", "second", "first")
    counts = first.add_source("in", "in").add_processor("count", apps.Count, "in", stores=["counts"])
    other = Application("counts", counts.add_store(key_value_store("counts", key_serde="str")))
    with pytest.raises(StoreError, match=r"no task of store 'counts' has a commit in it \(1_0, ...; it has 0_0, 0_1\)"):
        read_state(session, other, "counts", checkpoint=checkpoint)
    with pytest.raises(IncompatibleStateError, match="made with the application id 'counts', .*, and not with 'more'"):
        read_state(session, Application("more", apps.count()), "counts", checkpoint=checkpoint)
    with pytest.raises(ConfigError, match="nothing: expected one operator of `transform`.* its operators: none"):
        read_state(session, application, "counts", checkpoint=tmp_path / "nothing")
    with pytest.raises(ConfigError, match="`batch` is one of a query of `transform`: give its checkpoint"):
        read_state(session, application, "counts", batch=0)
