"""Crash rounds of a sink to PostgreSQL: `python -m tests.sinks.crash --rounds 20 --seed 1`.

The server is killed and frozen, too. Counts by key are upserted beside.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from penstock import Application
from penstock.contrib.postgres import postgres as postgres_sink
from penstock.dsl import StreamsBuilder

from .postgres_server import PostgresServer
from .rounds import Rounds, Row, main

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


class PostgresRounds(Rounds):
    """With a server of its own."""

    MODULE = "tests.sinks.crash"
    OWN_FAULTS = ["kill server", "freeze server"]
    CHANGES = {"made": str, "plain": str}
    MOST_RECORDS = 2_000

    def __init__(self, directory: Path, seed: int) -> None:
        self._server = PostgresServer()
        super().__init__(directory, seed)

    def arguments(self) -> list[str]:
        return [self._server.dsn]

    def strike(self, fault: str) -> None:
        if fault == "kill server":
            self._server.kill()
            self._server.start()
        else:
            self._server.freeze()
            time.sleep(self.random.choice([0.1, 2.5]))
            self._server.wake()

    def written(self, target: str) -> int:
        count: int = self._server.query(f"SELECT count(*) FROM {target}")[0][0] if self._has(target) else 0
        return count

    def found(self, target: str) -> Counter[Row]:
        return Counter((name, value) for name, value in self._server.query(f"SELECT name, value FROM {target}"))

    def check(self) -> bool:
        counts = Counter(f"k{number % 5}" for number in range(self.total))
        return self._has("counts") and dict(self._server.query("SELECT name, n FROM counts")) == counts

    def _has(self, table: str) -> bool:
        return self._server.query("SELECT to_regclass(%s)", table)[0][0] is not None

    def close(self) -> None:
        super().close()
        self._server.close()


if __name__ == "__main__":
    main(PostgresRounds, application)
