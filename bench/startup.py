"""Start-up on Spark: `penstock run` to its first committed record, and to its end, beside bare queries.

All sides are measured in turns. The time to the first record is compared with a query on Spark's rate source; a run
that drains 1,000 records with a query that drains a file, with the settings that `penstock run` gives its session.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock import Log, OutputBatch, Settings, TopicPartition
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.spark.sessions import check_java, launch_home, query_options, session_options

from .result import Table

ALLOWED_SECONDS = 2.0
"""How much later than the bare query's the first record may be."""
ALLOWED_RATIO = 1.5
"""How many times as long as the bare query's a run may take from start to end."""

_COUNT = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout

def count(key, frames, state):
    number = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((number,))
    yield pd.DataFrame({"count": [number]})
"""
"""What both queries of Spark's own begin with."""

BARE = (
    _COUNT
    + """
from pyspark.sql.functions import col

session = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
session.sparkContext.setLogLevel("OFF")
rows = session.readStream.format("rate").option("rowsPerSecond", 100).load()
counts = rows.select((col("value") % 4).alias("key"), "value").groupBy("key").applyInPandasWithState(
    count, "count bigint", "count bigint", "append", GroupStateTimeout.NoTimeout
)
query = counts.writeStream.format("noop").option("checkpointLocation", sys.argv[1]).start()
while not any(progress["numInputRows"] for progress in query.recentProgress):
    pass
print("done", flush=True)
"""
)

DRAINING = (
    _COUNT
    + """
import json

directory, settings = sys.argv[1:]
builder = SparkSession.builder.master("local[2,4]")
for name, value in json.loads(settings).items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
rows = session.readStream.format("text").load(f"{directory}/in")
counts = rows.groupBy("value").applyInPandasWithState(
    count, "count bigint", "count bigint", "append", GroupStateTimeout.NoTimeout
)
writer = counts.writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint")
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
assert query.lastProgress["numInputRows"]
session.stop()
"""
)

OURS = """
from penstock import Application, Processor, Topology, key_value_store

class Count(Processor):
    def init(self, context):
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record):
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(str(count)))

topology = (
    Topology().add_source("in", "in").add_processor("count", Count, "in", stores=["counts"])
    .add_store(key_value_store("counts", key_serde="str")).add_sink("out", "out", "count")
)
application = Application("startup", topology)
"""


def startup(rounds: int = 3) -> Table:
    """Measure all sides by turns; a row for the first record, and one for a whole run, of medians (seconds)."""
    turns = [(first_record(), bare_first_batch(), whole_run(), bare_run()) for _ in range(rounds)]
    record, batch, run, query = (statistics.median(each) for each in zip(*turns, strict=True))
    ratio = statistics.median(whole / bare for _, _, whole, bare in turns)
    rows = [
        {
            "name": "startup",
            "what": what,
            "penstock run": round(ours, 2),
            "Spark": round(bare, 2),
            "more": round(statistics.median(turn[first] - turn[first + 1] for turn in turns), 2),
            "ratio": round(statistics.median(turn[first] / turn[first + 1] for turn in turns), 2),
            "allowed": allowed,
        }
        for what, ours, bare, first, allowed in (
            ("first committed record", record, batch, 0, f"{ALLOWED_SECONDS:g} s more"),
            ("drained run, start to end", run, query, 2, f"{ALLOWED_RATIO:g} times"),
        )
    ]
    return Table("startup", rows, "" if ratio <= ALLOWED_RATIO else f"a run takes {ratio:.2f} times Spark's query")


def bare_first_batch() -> float:
    """Return the seconds from starting the query on the rate source until its first batch with rows has ended."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as directory:
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", BARE, directory],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline() == b"done\n"
            seconds = time.perf_counter() - began
            os.killpg(process.pid, signal.SIGKILL)
        return seconds


def first_record() -> float:
    """Return the seconds from starting `penstock run` until the first record is committed."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        log = _prepared(directory)
        outputs = [TopicPartition("out", number) for number in range(4)]
        began = time.perf_counter()
        with subprocess.Popen(_COMMAND, cwd=directory, stderr=subprocess.DEVNULL) as process:
            while not any(log.end_offsets(outputs).values()):
                assert process.poll() is None, "penstock run ended without a record"
                time.sleep(0.01)
            seconds = time.perf_counter() - began
            process.wait()
        log.close()
        return seconds


def whole_run() -> float:
    """Return the seconds from starting `penstock run` until it has drained the topic and has ended."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        log = _prepared(directory)
        began = time.perf_counter()
        subprocess.run(_COMMAND, cwd=directory, stderr=subprocess.DEVNULL, check=True)
        seconds = time.perf_counter() - began
        assert sum(log.end_offsets([TopicPartition("out", number) for number in range(4)]).values()) == RECORDS
        log.close()
        return seconds


def bare_run() -> float:
    """Return the seconds from starting the draining query's process until it has ended."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as directory:
        Path(directory, "in").mkdir()
        Path(directory, "in", "keys").write_text("\n".join(map(str, range(RECORDS))))
        quiet = Path(directory, "log4j2.properties")
        quiet.write_text("rootLogger.level = off\n")
        settings = {**session_options(True, check_java()), **query_options(True), "spark.sql.shuffle.partitions": "2"}
        settings["spark.driver.extraJavaOptions"] += f" -Dlog4j2.configurationFile={quiet.as_uri()}"
        home = launch_home()
        environment = {**os.environ, **({} if home is None else {"SPARK_HOME": str(home)})}
        command = [sys.executable, "-c", DRAINING, directory, json.dumps(settings)]
        began = time.perf_counter()
        subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began


RECORDS = 1_000
_PENSTOCK = str(Path(sys.executable).with_name("penstock"))
_COMMAND = [_PENSTOCK, "run", "app:application", "--master", "local[2]", "--quiet"]


def _prepared(directory: str) -> Log:
    """Write the application, and the records that it reads; return its log."""
    Path(directory, "app.py").write_text(OURS)
    log = open_log(Settings(data_dir=f"{directory}/.penstock"))
    for topic in ("in", "out"):
        log.create_topic(topic, 4)
    keys: list[bytes | None] = [b"%d" % (number % 100) for number in range(RECORDS)]
    log.append(OutputBatch("in", keys, [b"v"] * RECORDS, [1] * RECORDS))
    return log
