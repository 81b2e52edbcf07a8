"""SinkContract over the sink to Iceberg, with the catalog in SQLite, in PostgreSQL and behind REST."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Sink
from penstock.contrib.iceberg import iceberg
from penstock.testing.contracts import SinkContract

from ..postgres_server import PostgresServer
from .rest_server import rest_server
from .tables import open_catalog, options, rows_in, sink

COLUMNS = {"name": "string", "n": "int64 not null"}


class TestInSqlite(SinkContract):
    refused_value = "no number"
    number = itertools.count()
    uri: str | None = None

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def make_sink(self) -> Sink:
        return self.sink_of(f"shop.t{next(self.number)}")

    def sink_of(self, table: str, **others: Any) -> Sink:
        made: Sink = sink(self.directory, table, self.uri, **{"columns": COLUMNS, **others})
        return made

    def content(self, sink: Any) -> Iterable[tuple[Any, Any]]:
        return [(row["name"], row["n"]) for row in rows_in(self.directory, ".".join(sink.table), self.uri)]

    def broken_sinks(self) -> Iterable[Sink]:
        with open_catalog(self.directory, self.uri) as catalog:
            name, n = pa.field("name", pa.string()), pa.field("n", pa.int64())
            required = pa.field("m", pa.int64(), nullable=False)
            catalog.create_table("shop.lacks", pa.schema([name]))
            catalog.create_table("shop.other", pa.schema([name, pa.field("n", pa.string())]))
            catalog.create_table("shop.more", pa.schema([name, n, required]))
            catalog.create_table("shop.required", pa.schema([name.with_nullable(False), n]))
        return [
            *(self.sink_of(f"shop.{table}") for table in ("lacks", "other", "more", "required")),
            self.sink_of("lacking.orders"),
            self.sink_of("shop.orders", partition_by={"name": "day"}),
            iceberg("shop.orders", catalog="tests", catalog_options={"type": "no such type"}, columns=COLUMNS),
            iceberg("shop.orders", catalog="there is none", columns=COLUMNS),
        ]

    # Where the interruption strikes the end of a generator of pyiceberg, Python ignores it, and the write succeeds.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_an_interrupted_write_is_all_or_nothing(self) -> None:
        super().test_an_interrupted_write_is_all_or_nothing()

    def away_sink(self) -> Sink | None:
        uri = "postgresql+psycopg://penstock:secret@127.0.0.1:1/catalog"
        return iceberg("shop.orders", catalog_options=options(self.directory, uri), columns=COLUMNS)


class TestInPostgres(TestInSqlite):
    """The catalog is a server that is stopped and started."""

    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.server = postgres
        self.uri = f"postgresql+psycopg://penstock@/postgres?host={postgres.directory}"

    def restart(self) -> None:
        self.server.stop()
        self.server.start()


class TestThroughRest(TestInSqlite):
    """The server checks the requirements of a commit."""

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path) -> Iterator[None]:
        with rest_server(**options(tmp_path)) as self.url:
            yield

    def sink_of(self, table: str, **others: Any) -> Sink:
        open_catalog(self.directory).close()
        rest = {"type": "rest", "uri": self.url, "token": "a token"}
        return iceberg(table, catalog="rest", catalog_options=rest, key="name", **{"columns": COLUMNS, **others})

    def test_an_interrupted_write_is_all_or_nothing(self) -> None:
        pytest.skip("a server may still be at the commit of a client that was interrupted, after it was looked at")

    def away_sink(self) -> Sink:
        rest = {"type": "rest", "uri": "http://127.0.0.1:1", "token": "a token"}
        return iceberg("shop.orders", catalog_options=rest, columns=COLUMNS)
