"""Failed logins. Teaches a topology inside a Spark pipeline: a streaming DataFrame in, a streaming DataFrame out.

Spark reads JSON files and picks columns, the topology keeps state for each user, and Spark writes its alerts to files.
The commit is Spark's checkpoint: kill it, start it again, and each alert is there once. The first command does all this
in a directory, and writes some logins there if there are none. The others run the same application on a log.

$ python examples/06_dataframe.py /tmp/logins
$ penstock topics create logins alerts --partitions 2
$ echo 'anna:{"ok": false}' | penstock produce logins --key-separator : --value-serde json
$ penstock run examples/06_dataframe.py:application
$ penstock consume alerts --print-key --value-serde json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import Application, Processor, ProcessorContext, Record, Topology, duration_ms, key_value_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FAILURES = 3
WITHIN = "1m"


class Suspicion(Processor):
    """Forwards an alert when a user fails to log in three times within a minute, without a success in between."""

    def init(self, context: ProcessorContext) -> None:
        """Look up the store with the times of each user's failures."""
        super().init(context)
        self.failures = context.get_store("failures")

    def process(self, record: Record) -> None:
        """Take one login."""
        if record.value["ok"]:
            self.failures.delete(record.key)
            return
        since = record.timestamp - duration_ms(WITHIN)
        times = [time for time in self.failures.get(record.key) or [] if time > since] + [record.timestamp]
        self.failures.put(record.key, times[-FAILURES:])
        if len(times) >= FAILURES:
            self.context.forward(record.with_value({"user": record.key, "failures": len(times)}))


# `ttl` removes a user who has not failed for a day.
topology = (
    Topology()
    .add_source("logins", "logins", value_serde="json")
    .add_processor("suspicion", Suspicion, "logins", stores=[key_value_store("failures", key_serde="str", ttl="1d")])
    .add_sink("alerts", "alerts", "suspicion", value_serde="json")
)

application = Application("logins", topology)


def pipeline(session: SparkSession, directory: Path) -> DataFrame:
    """Return the stream of alerts. Spark reads before the topology, and selects columns after it."""
    from pyspark.sql.functions import col, from_json, struct, to_json

    from penstock.spark import Records, transform

    logins = session.readStream.schema("user string, ok boolean, at timestamp, line long").json(
        str(directory / "logins")
    )
    records = Records(logins, key="user", value=to_json(struct("ok")), timestamp="at", order_by="line")
    # The number of tasks is part of the checkpoint. State and changelog are beside it.
    rows = transform(application.with_settings(data_dir=str(directory)), {"logins": records}, partitions=2)
    alert = from_json(col("value").cast("string"), "user string, failures int")
    return rows.select("timestamp", alert.alias("alert")).select("timestamp", "alert.*")


def run(session: SparkSession, directory: Path) -> None:
    """Process all files that are there and not yet processed."""
    query = (
        pipeline(session, directory)
        .writeStream.format("json")
        .option("path", str(directory / "alerts"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def write_logins(directory: Path, name: str, logins: str, minute: int) -> None:
    """Write a file of logins, five seconds apart: `a` is a failure of user a, `A` a success."""
    (directory / "logins").mkdir(parents=True, exist_ok=True)
    lines = [
        {"user": each.lower(), "ok": each.isupper(), "at": f"2026-01-01T12:{minute:02}:{5 * line:02}Z", "line": line}
        for line, each in enumerate(logins)
    ]
    (directory / "logins" / name).write_text("\n".join(map(json.dumps, lines)))


def main(place: str) -> None:
    """Process the logins in a directory."""
    from penstock.spark import make_session

    directory = Path(place)
    if not (directory / "logins").exists():
        write_logins(directory, "noon.json", "abaBcab", 0)
        write_logins(directory, "later.json", "ccc", 30)
    session = make_session("local[2]", {"spark.sql.shuffle.partitions": "2"})
    run(session, directory)
    session.read.json(str(directory / "alerts")).orderBy("timestamp").show(truncate=False)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
