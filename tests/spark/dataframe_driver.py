"""A pipeline in a process of its own: `python -m tests.spark.dataframe_driver DIRECTORY KIND [MASTER [KEY=VALUE...]]`.

KIND "files": reads DIRECTORY/in, one file a batch, to its end; "arriving": without an end; "rate": Spark's rate source.
Writes DIRECTORY/out; checkpoint and state are in DIRECTORY too. MASTER and KEY=VALUE are Spark's.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

from penstock import Application, Processor, Record, Topology, key_value_store
from penstock.plugins.spark.dataframe import Records, transform
from penstock.plugins.spark.sessions import make_session, tune

SCHEMA = "key string, value string, timestamp timestamp, number long"


class Number(Processor):
    """Says with each value how many its key has had, and adds up what they are long."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")
        self.lengths = context.get_store("lengths")

    def process(self, record: Record) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.lengths.put(record.key, (self.lengths.get(record.key) or 0) + len(record.value))
        self.context.forward(record.with_value(f"{record.value}:{count}"))


class Held(Number):
    """Does nothing while a file is there."""

    def __init__(self, hold: str) -> None:
        self.hold = Path(hold)

    def process(self, record: Record) -> None:
        while self.hold.exists():
            time.sleep(0.05)
        super().process(record)


class Says(Number):
    """Logs each record that is the first of its key."""

    def process(self, record: Record) -> None:
        if self.counts.get(record.key) is None:
            logging.getLogger("pipeline").warning("the first of %s", record.key)
        super().process(record)


def number(supplier: Any = Number, **options: Any) -> Topology:
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("number", supplier, "in", stores=["counts", "lengths"], **options)
        .add_store(key_value_store("counts", key_serde="str"))
        .add_store(key_value_store("lengths", key_serde="str", ttl="90d"))
        .add_sink("out", "out", "number")
    )


def application(directory: Path, **settings: Any) -> Application:
    return Application("app", number(), data_dir=str(directory), **settings)


def files(session: Any, directory: Path) -> Any:
    return session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(directory / "in"))


def rate(session: Any) -> Records:
    from pyspark.sql.functions import col

    frame = session.readStream.format("rate").option("rowsPerSecond", 400).load()
    return Records(frame, key=(col("value") % 10).cast("string"), value=col("value").cast("string"), order_by="value")


def start(session: Any, source: Any, directory: Path, app: Application | None = None, **trigger: Any) -> Any:
    from pyspark.sql.functions import col

    rows = transform(app or application(directory), {"in": source}, partitions=3, order_by="number")
    return (
        rows.select(col("key").cast("string"), col("value").cast("string"))
        .writeStream.format("json")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def held(directory: Path) -> Application:
    """Return the application that does nothing while DIRECTORY/hold is there."""
    return Application("app", number(Held, hold=str(directory / "hold")), data_dir=str(directory))


def main(place: str, kind: str, master: str = "local[2]", *options: str) -> None:
    directory = Path(place)
    session = tune(make_session(master, dict(each.split("=", 1) for each in options)), True, 3)
    if kind == "files":
        query = start(session, files(session, directory), directory, Application("app", number(Says), data_dir=place))
    elif kind == "arriving":
        query = start(session, files(session, directory), directory, held(directory), processingTime="0 seconds")
    else:
        query = start(session, rate(session), directory, processingTime="0 seconds")
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
