#!/bin/sh
# SparkContext.stop() waits up to a second once a task has run Python code, and hardly at all before.
#
# pyspark 4.3.0 (needs Java 17). The driver has a server for accumulators in a thread of its own. It has one connection,
# to the JVM, which is opened by the first job with Python code, and the handler of that connection looks once a second
# whether the server is to end. The server is not a threading one, so its shutdown(), which stop() calls, waits for the
# handler. Seen: shutdown() takes less than 0.6 s without such a job (the server's own interval is half a second), and
# 0.7 s or more where stop() follows a job at once. A short program that ends with its job spends that second on it.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet pyspark==4.3.0
PYSPARK_PYTHON="$directory/venv/bin/python" "$directory/venv/bin/python" - 2>/dev/null <<'PYTHON'
import statistics
import time

from pyspark import SparkConf, SparkContext


def seconds(with_python):
    """How long the server of accumulators takes to end, of all that stop() does."""
    conf = SparkConf().setMaster("local[1]").set("spark.ui.enabled", "false")
    context = SparkContext(conf=conf)
    server, took = context._accumulatorServer, []
    shutdown = server.shutdown

    def timed():
        began = time.perf_counter()
        shutdown()
        took.append(time.perf_counter() - began)

    server.shutdown = timed
    if with_python:
        assert context.parallelize([1, 2], 1).map(lambda number: number + 1).sum() == 5
    context.stop()
    return took[0]


without = [seconds(False) for _ in range(3)]
after = [seconds(True) for _ in range(3)]
print("without a job:", *(f"{each:.2f}" for each in without), "s; after one:", *(f"{each:.2f}" for each in after), "s")
assert max(without) < 0.6 < 0.7 < statistics.median(after) < 1.6
PYTHON
