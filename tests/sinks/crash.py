"""Crash rounds of a sink to PostgreSQL: `python -m tests.sinks.crash --rounds 20 --seed 1`.

The server is killed and frozen, too. Counts by key are upserted beside.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from penstock import Application
from penstock.contrib.postgres import postgres as postgres_sink
from penstock.dsl import StreamsBuilder

from .rounds import RoundsWithServer, Row, main

COLUMNS = {"name": "text", "value": "text", "part": "text"}


def application(directory: Path, dsn: str) -> Application:
    """Return a program that inserts what it makes, and upserts counts, both through topics; and inserts the input."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.map_values(_made).to_sink(
        postgres_sink(dsn, table="made", columns=COLUMNS, key="name", mode="insert", timeout="2s"), "made",
        value_serde="json",
    )  # fmt: skip
    stream.group_by_key().count().to_stream().to_sink(
        postgres_sink(dsn, table="counts", columns={"name": "text", "n": "bigint"}, key="name", timeout="2s"), "counts"
    )
    builder.stream("direct").to_sink(
        postgres_sink(dsn, table="plain", columns={"name": "text", "value": "text"}, key="name", mode="insert"), "plain"
    )
    return Application(
        "app", builder, data_dir=str(directory / "data"), log="local:log", engine="embedded", processes=2,
        commit_interval="20ms",
    )  # fmt: skip


def _made(value: str) -> dict[str, str]:
    return {"value": value, "part": value[-1]}


class PostgresRounds(RoundsWithServer):
    """With tables in the server."""

    MODULE = "tests.sinks.crash"
    CHANGES = {"made": str, "plain": str}
    MOST_RECORDS = 2_000

    def arguments(self) -> list[str]:
        return [self.server.dsn]

    def written(self, target: str) -> int:
        count: int = self.server.query(f"SELECT count(*) FROM {target}")[0][0] if self._has(target) else 0
        return count

    def found(self, target: str) -> Counter[Row]:
        return Counter((name, value) for name, value in self.server.query(f"SELECT name, value FROM {target}"))

    def check(self) -> bool:
        counts = Counter(f"k{number % 5}" for number in range(self.total))
        return self._has("counts") and dict(self.server.query("SELECT name, n FROM counts")) == counts

    def _has(self, table: str) -> bool:
        return self.server.query("SELECT to_regclass(%s)", table)[0][0] is not None


if __name__ == "__main__":
    main(PostgresRounds, application)
