"""The DataFrame operator in a Spark pipeline: a stateful count by key over files, to a sink that does nothing."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import Application
from penstock.plugins.spark import transform

from .data import zipf_keys
from .programs import count_topology
from .result import Result
from .tree import MarkedProcesses

RECORDS = 3_000_000
PER_BATCH = 300_000
KEYS = 100_000
TASKS = 4
MASTER = "local[2]"
SETTLING = 3
"""Batches that are not measured: the first starts workers, and the JVM compiles during the next ones."""
_LOOK = 0.2


def dataframe_count() -> Result:
    """Files of 300,000 rows, one a batch."""
    return measure()


def measure(
    records: int = RECORDS, per_batch: int = PER_BATCH, settling: int = SETTLING, session: Any = None
) -> Result:
    """Run the query over `records` rows; measure all batches but the first `settling`."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as directory:
        write_files(Path(directory, "in"), records, per_batch)
        usage = MarkedProcesses(with_this=True)
        spark = session or _session()
        try:
            return _run(spark.newSession(), Path(directory), per_batch, settling, usage)
        finally:
            if session is None:
                spark.stop()


def write_files(directory: Path, records: int, per_file: int) -> None:
    """Write the input: keys of 9 bytes, values of 91."""
    import pyarrow
    from pyarrow import parquet

    directory.mkdir()
    keys = [each.decode() for each in zipf_keys(records, KEYS)]
    value = '{"page": "/home"}'.ljust(91)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for number, first in enumerate(range(0, records, per_file)):
        some = keys[first : first + per_file]
        columns = {
            "key": some,
            "value": [value] * len(some),
            "timestamp": pyarrow.array([at] * len(some), pyarrow.timestamp("us", "UTC")),
        }
        file = directory / f"{number:03}.parquet"
        parquet.write_table(pyarrow.table(columns), file)
        # Spark takes the oldest file first.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def _session() -> Any:
    from pyspark.sql import SparkSession

    # As a user makes it, apart from the interpreter and what a benchmark should not print.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master(MASTER)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def _run(session: Any, directory: Path, per_batch: int, settling: int, usage: MarkedProcesses) -> Result:
    session.conf.set("spark.sql.shuffle.partitions", str(TASKS))
    application = Application("bench", count_topology(), data_dir=str(directory / "data"))
    frame = (
        session.readStream.schema("key string, value string, timestamp timestamp")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(directory / "in"))
    )
    query = (
        transform(application, {"bench-in": frame}, partitions=TASKS)
        .writeStream.format("noop")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    seconds: dict[int, float] = {}
    cpu: dict[int, float] = {}
    while query.isActive:
        time.sleep(_LOOK)
        now_cpu = usage.total_cpu_s()
        _take(query, per_batch, seconds)
        for batch in seconds:
            cpu.setdefault(batch, now_cpu)
    query.awaitTermination()  # raises what it failed with
    _take(query, per_batch, seconds)
    cpu[max(seconds, default=0)] = usage.total_cpu_s()
    measured = [each for batch, each in sorted(seconds.items()) if batch >= settling]
    if not measured:
        raise RuntimeError(f"{len(seconds)} batches were run; more than {settling} are needed")
    records = per_batch * len(measured)
    cpu_s = max(cpu.values(), default=0.0) - cpu.get(settling - 1, 0.0)
    return Result(
        "dataframe-count",
        records / sum(measured),
        cpu_s / records * 1e6,
        usage.peak_mb,
        notes={
            "batches measured": len(measured),
            "records measured": records,
            "seconds by batch": ", ".join(f"{each:.2f}" for _, each in sorted(seconds.items())),
            "load average": round(os.getloadavg()[0], 1),
        },
    )


def _take(query: Any, per_batch: int, seconds: dict[int, float]) -> None:
    """Note the batches that have ended and read a file."""
    for progress in query.recentProgress:
        if progress["numInputRows"] >= per_batch:
            seconds[progress["batchId"]] = progress["durationMs"]["triggerExecution"] / 1000
