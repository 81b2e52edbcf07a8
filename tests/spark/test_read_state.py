"""`read_state`: a store as a DataFrame, at the commits that it had when it was called."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigError
from penstock.plugins.runtime.locations import open_log
from penstock.spark import read_state

from ..backups.counting import Tasks, counting, expected, send


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
