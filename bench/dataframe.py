"""The DataFrame operator in a Spark pipeline: a stateful count by key over files, to a sink that does nothing.

Beside it, by request, the same count by Spark's own operators, which call Python once for each key of a batch.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import Application
from penstock.plugins.spark import transform

from .data import zipf_keys
from .programs import count_topology
from .result import Result, Table
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


def dataframe_operators(rounds: int = 1) -> Table:
    """The operator, and each of Spark's own, by turns: records a second of the best batch, and ratio.

    All read 300,000 rows a batch: the operator 16 batches, the others 3, which take longer: each has some 20 s in which
    the JVM compiles.
    """
    rates: dict[str, list[float]] = {name: [] for name in OPERATORS}
    for _ in range(rounds):
        for name, made in rates.items():
            made.append(operator_rate(name, 16 if name == PENSTOCK else 3))
    rows = []
    for name, made in rates.items():
        ratio = statistics.median(one / other for one, other in zip(rates[PENSTOCK], made, strict=True))
        rows.append(_row(name, statistics.median(made), ratio))
    return Table("dataframe-operators", rows)


def _row(operator: str, rate: float, ratio: float) -> dict[str, Any]:
    return {
        "name": "dataframe-operators", "operator": operator, "records_per_s": round(rate), "ratio": round(ratio, 1)
    }  # fmt: skip


def operator_rate(name: str, batches: int, per_batch: int = PER_BATCH, session: Any = None) -> float:
    """Return the records a second of one of `OPERATORS`: the best batch, since few are measured."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as directory:
        write_files(Path(directory, "in"), batches * per_batch, per_batch)
        spark = session or _session()
        try:
            own = _own(spark)
            if name != PENSTOCK:
                own.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
            rows = OPERATORS[name](_frame(own, Path(directory)), Path(directory))
            query = _started(rows, Path(directory), "append" if name == PENSTOCK else "update")
            query.awaitTermination()
            seconds: dict[int, float] = {}
            _take(query, per_batch, seconds)
            return per_batch / min(seconds.values())
        finally:
            if session is None:
                spark.stop()


def _transform(frame: Any, directory: Path) -> Any:
    application = Application("bench", count_topology(), data_dir=str(directory / "data"))
    return transform(application, {"bench-in": frame}, partitions=TASKS)


def _apply_in_pandas_with_state(frame: Any, directory: Path) -> Any:
    import pandas

    def count(key: Any, frames: Any, state: Any) -> Any:
        found = state.get[0] if state.exists else 0
        for frame in frames:
            yield pandas.DataFrame({"key": key[0], "n": range(found + 1, found + len(frame) + 1)})
            found += len(frame)
        state.update((found,))

    return frame.groupBy("key").applyInPandasWithState(count, _COUNTS, "n long", "update", "NoTimeout")


def _transform_with_state(method: str) -> Callable[[Any, Path], Any]:
    def transform_with_state(frame: Any, directory: Path) -> Any:
        import pandas
        from pyspark.sql import Row
        from pyspark.sql.streaming.stateful_processor import StatefulProcessor

        class Count(StatefulProcessor):
            def init(self, handle: Any) -> None:
                self.count = handle.getValueState("n", "n long")

            def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
                found = self.count.get()[0] if self.count.exists() else 0
                for each in rows:
                    if isinstance(each, pandas.DataFrame):
                        yield pandas.DataFrame({"key": key[0], "n": range(found + 1, found + len(each) + 1)})
                        found += len(each)
                    else:
                        found += 1
                        yield Row(key=key[0], n=found)
                self.count.update((found,))

            def close(self) -> None:
                pass

        return getattr(frame.groupBy("key"), method)(Count(), _COUNTS, "update", "none")

    return transform_with_state


_COUNTS = "key string, n long"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PENSTOCK = "penstock transform"
OPERATORS: dict[str, Callable[[Any, Path], Any]] = {
    PENSTOCK: _transform,
    "applyInPandasWithState": _apply_in_pandas_with_state,
    "transformWithStateInPandas": _transform_with_state("transformWithStateInPandas"),
    "transformWithState": _transform_with_state("transformWithState"),
}
"""The operator, and Spark's own for state by key, from Python."""


def measure(
    records: int = RECORDS, per_batch: int = PER_BATCH, settling: int = SETTLING, session: Any = None
) -> Result:
    """Run the query over `records` rows; measure all batches but the first `settling`."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as directory:
        write_files(Path(directory, "in"), records, per_batch)
        usage = MarkedProcesses(with_this=True)
        spark = session or _session()
        try:
            return _run(_own(spark), Path(directory), per_batch, settling, usage)
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


def _own(session: Any) -> Any:
    """Return a session of the query's own, whatever the given one has for others."""
    own = session.newSession()
    own.conf.set("spark.sql.shuffle.partitions", str(TASKS))
    own.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "1")
    own.conf.set("spark.sql.streaming.stateStore.encodingFormat", "unsaferow")
    return own


def _run(session: Any, directory: Path, per_batch: int, settling: int, usage: MarkedProcesses) -> Result:
    query = _started(_transform(_frame(session, directory), directory), directory, "append")
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


def _frame(session: Any, directory: Path) -> Any:
    return (
        session.readStream.schema("key string, value string, timestamp timestamp")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(directory / "in"))
    )


def _started(rows: Any, directory: Path, mode: str) -> Any:
    return (
        rows.writeStream.format("noop")
        .outputMode(mode)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def _take(query: Any, per_batch: int, seconds: dict[int, float]) -> None:
    """Note the batches that have ended and read a file."""
    for progress in query.recentProgress:
        if progress["numInputRows"] >= per_batch:
            seconds[progress["batchId"]] = progress["durationMs"]["triggerExecution"] / 1000
