"""Crash rounds of a sink to Iceberg: `python -m tests.sinks.iceberg.crash --rounds 10 --seed 1`.

The catalog's server is killed and frozen, too. Other writers append to the same tables and expire snapshots meanwhile.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from penstock import Application
from penstock.contrib.iceberg import iceberg
from penstock.dsl import StreamsBuilder

from ..postgres_server import PostgresServer
from ..rounds import RoundsWithServer, Row, main
from .tables import COLUMNS, counted, open_catalog, options

_FOREIGN = {"name": "foreign", "value": "foreign"}
_SERVER_OPTIONS = "-c%20idle_in_transaction_session_timeout%3D2000%20-c%20statement_timeout%3D2000"
"""Without these, a process that is frozen in a transaction keeps all others from the table."""


def uri_of(server: PostgresServer) -> str:
    return f"postgresql+psycopg://penstock@/postgres?host={server.directory}&options={_SERVER_OPTIONS}"


def application(directory: Path, uri: str) -> Application:
    """Return a program that writes what it makes, through a topic, and the input, at once."""
    catalog = options(directory / "catalog", uri)
    builder = StreamsBuilder()
    builder.stream("in").map_values(str.upper).to_sink(
        iceberg(
            "shop.made", catalog="tests", catalog_options=catalog, columns=COLUMNS, key="name",
            partition_by={"name": "identity"},
        ),
        "made", value_serde="str",
    )  # fmt: skip
    builder.stream("direct").to_sink(
        "contrib.iceberg", "plain", table="shop.plain", catalog="tests", catalog_options=catalog, columns=COLUMNS,
        key="name",
    )  # fmt: skip
    return Application(
        "app", builder, data_dir=str(directory / "data"), log="local:log", engine="embedded", processes=2,
        commit_interval="100ms",
    )  # fmt: skip


class IcebergRounds(RoundsWithServer):
    """With a catalog in the server."""

    MODULE = "tests.sinks.iceberg.crash"

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed)
        self._uri, self._catalog = uri_of(self.server), directory / "catalog"
        open_catalog(self._catalog, self._uri).close()
        self._foreign: Counter[str] = Counter()

    def arguments(self) -> list[str]:
        return [self._uri]

    def prepare(self) -> None:
        """Append a row to each table, and expire snapshots."""
        with open_catalog(self._catalog, self._uri) as catalog:
            for name in self.CHANGES:
                if catalog.table_exists(f"shop.{name}"):
                    table = catalog.load_table(f"shop.{name}")
                    table.append(pa.Table.from_pylist([_FOREIGN]))
                    self._foreign[name] += 1
                    table.maintenance.expire_snapshots().older_than(datetime.now()).commit()

    def written(self, target: str) -> int:
        with open_catalog(self._catalog, self._uri) as catalog:
            name = f"shop.{target}"
            snapshot = catalog.load_table(name).current_snapshot() if catalog.table_exists(name) else None
            total = "0" if snapshot is None or snapshot.summary is None else snapshot.summary["total-records"]
            return int(total or 0) - self._foreign[target]

    def found(self, target: str) -> Counter[Row]:
        found = counted(self._catalog, f"shop.{target}", self._uri)
        assert found.pop(tuple(_FOREIGN.values()), 0) == self._foreign[target], "another writer's rows"
        return Counter(found)


if __name__ == "__main__":
    main(IcebergRounds, application)
