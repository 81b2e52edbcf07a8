"""Start-up: from the command to the first committed record, beside a bare query on Spark's rate source.

`python -m bench.startup [ROUNDS]` runs pairs, one after the other, and prints both times and the median difference.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock import OutputBatch, Settings, TopicPartition
from penstock.plugins.engine.task.locations import open_log

from .result import Result

ALLOWED_SECONDS = 2.0

BARE = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming.state import GroupStateTimeout

def count(key, frames, state):
    number = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((number,))
    yield pd.DataFrame({"count": [number]})

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


def startup(rounds: int = 3) -> Result:
    """Run pairs and return the median of ours; `notes` has the peer's and the difference."""
    pairs = [(ours(), bare()) for _ in range(rounds)]
    mine, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    difference = statistics.median(one - other for one, other in pairs)
    return Result(
        "startup",
        1 / mine,
        0.0,
        0.0,
        {"penstock run": mine, "rate source": theirs},
        "a bare query on the rate source",
        theirs / mine,
        {
            "seconds more than the peer": f"{difference:.2f} (allowed: {ALLOWED_SECONDS:g})",
            "pairs": "; ".join(f"{one:.2f} s and {other:.2f} s" for one, other in pairs),
        },
    )


def bare() -> float:
    """Return the seconds until the bare query has finished its first batch that has rows."""
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


def ours() -> float:
    """Return the seconds from starting `penstock run` until the first record is committed."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        Path(directory, "app.py").write_text(OURS)
        log = open_log(Settings(data_dir=f"{directory}/.penstock"))
        for topic in ("in", "out"):
            log.create_topic(topic, 4)
        log.append(OutputBatch("in", [b"%d" % number for number in range(100)], [b"v"] * 100, [1] * 100))
        outputs = [TopicPartition("out", number) for number in range(4)]
        command = [
            str(Path(sys.executable).with_name("penstock")),
            "run",
            "app:application",
            "--master",
            "local[2]",
            "--quiet",
        ]
        began = time.perf_counter()
        with subprocess.Popen(command, cwd=directory, stderr=subprocess.DEVNULL) as process:
            while not any(log.end_offsets(outputs).values()):
                assert process.poll() is None, "penstock run ended without a record"
                time.sleep(0.01)
            seconds = time.perf_counter() - began
            process.wait()
        log.close()
        return seconds


if __name__ == "__main__":
    print(startup(*map(int, sys.argv[1:2])))
