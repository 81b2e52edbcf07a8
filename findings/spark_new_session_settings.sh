#!/bin/sh
# SparkSession.newSession() takes over what the builder was given, and not what was set afterwards.
#
# pyspark 4.3.0 (needs Java 17). A new session is documented as one with settings of its own, so a library that wants a
# clean one for its streaming query calls newSession(). Seen: settings that the builder was given when the context
# started are in each new session, those of session.conf.set are in none. The format of other queries' checkpoints comes
# along: with stateStore.checkpointFormatVersion=2, which the default state store does not have, a stateful query starts
# and fails in its first batch; unset() in the new session gives Spark's default, and the query runs.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet pyspark==4.3.0
"$directory/venv/bin/python" - "$directory" 2>/dev/null <<'PYTHON'
import sys
import time

from pyspark.sql import SparkSession

FORMAT, POLL = "spark.sql.streaming.stateStore.checkpointFormatVersion", "spark.sql.streaming.pollingDelay"
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(FORMAT, "2")
session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
session.sparkContext.setLogLevel("OFF")
session.conf.set(POLL, "77ms")
new = session.newSession()
print("given to the builder:", new.conf.get(FORMAT), "; set afterwards:", new.conf.get(POLL))
assert (new.conf.get(FORMAT), new.conf.get(POLL)) == ("2", "10ms")


def error_of(session, name):
    counted = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().groupBy("value").count()
    writer = counted.writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", f"{sys.argv[1]}/{name}").start()
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < 1):
        time.sleep(0.2)
    query.stop()
    return str(query.exception() or "")


found = error_of(new, "first")
print("its stateful query:", found[:200].replace("\n", " ") or "runs")
assert found
new.conf.unset(FORMAT)
assert new.conf.get(FORMAT) == "1"
assert error_of(new, "second") == ""
print("after unset() it runs")
session.stop()
PYTHON
