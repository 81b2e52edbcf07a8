#!/bin/sh
# A Python worker of Spark that is used again runs a full garbage collection after each task; gc.freeze() shortens it.
#
# pyspark 4.3.0, pandas 2.3.3, pyarrow 26.0.1 (needs Java 17). pyspark/daemon.py calls gc.collect() behind each task.
# A collection looks at every container that the worker has; pandas, pyarrow and pyspark alone have 75,000. Seen: 28 to
# 45 ms of CPU behind each task, however small, and 0.2 ms at most where the first task has called gc.freeze(), which
# takes what is there out of later collections. A streaming query pays it for each task and stage of each batch.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
PYSPARK_PYTHON="$directory/venv/bin/python" "$directory/venv/bin/python" - 2>/dev/null <<'PYTHON'
import statistics

from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()


def collections(freeze):
    """How long full collections between the worker's tasks take, in milliseconds of CPU."""

    def function(batches):
        import gc
        import sys
        import time

        import pandas
        import pyarrow

        took = getattr(sys, "_took", None)
        if took is None:
            took, began = [], []
            sys._took = took

            def watch(phase, info):
                if info["generation"] == 2:
                    if phase == "start":
                        began[:] = [time.thread_time()]
                    else:
                        took.append((time.thread_time() - began[0]) * 1000)

            gc.callbacks.append(watch)
            if freeze:
                gc.freeze()
        if not freeze:
            gc.unfreeze()
        for batch in batches:
            yield pyarrow.RecordBatch.from_pydict({"took": pandas.Series([took[-1] if took else -1.0])})

    # One job is one task in the same worker.
    frame = session.range(1, numPartitions=1).mapInArrow(function, "took double")
    return [frame.collect()[0].took for _ in range(10)]


without = collections(False)
session.stop()
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frozen = collections(True)
session.stop()
print("behind each task:", *(f"{each:.1f}" for each in without[1:]), "ms; frozen:", *(f"{each:.1f}" for each in frozen[1:]))
assert without[0] == frozen[0] == -1 and min(without[1:] + frozen[1:]) > 0
assert statistics.median(without[1:]) > 4 * statistics.median(frozen[1:])
PYTHON
