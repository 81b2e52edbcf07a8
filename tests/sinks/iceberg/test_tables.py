"""Tables that the sink makes, takes or refuses; partitions; catalogs that are away or broken; secrets."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table

from penstock import ConfigError, Sink, SinkError, SinkPlace, SinkPosition, SinkRecord, SinkUnavailableError
from penstock.contrib.iceberg import iceberg
from penstock.contrib.iceberg.library import without_secrets

from ..postgres_server import PostgresServer
from .tables import COLUMNS, counted, found, open_catalog, options, rows_in, sink

PLACE = SinkPlace("app", "target", "in", 0)


def write(sink: Sink, *records: SinkRecord) -> None:
    writer = sink.open(PLACE)
    try:
        follows = writer.position
        writer.write(records, follows, SinkPosition("id", (follows.next_offset if follows else 0) + len(records)))
    finally:
        writer.close()


def record(key: Any, value: Any, timestamp: int = 0) -> SinkRecord:
    return SinkRecord(key, value, timestamp, (), 0)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_catalog(tmp_path)


def table_of(catalog: Catalog, *fields: Any, **given: Any) -> Table:
    return catalog.create_table("shop.orders", pa.schema(list(fields)), **given)


# ---------------------------------------------------------------------------------------- tables


def test_a_table_is_made(tmp_path: Path, catalog: Catalog) -> None:
    columns = {"id": "int32 not null", "price": "decimal(10, 2)", "at": "timestamp", "items": pa.list_(pa.string())}
    made = sink(
        tmp_path, columns=columns, key="id", timestamp="at", partition_by={"at": "day", "id": "bucket[4]"},
        properties={"write.parquet.compression-codec": "snappy"},
    )  # fmt: skip
    write(made, record(5, {"price": 1, "items": ["a", None]}, 86_400_000))
    table = catalog.load_table("shop.orders")
    fields = [(field.name, str(field.field_type), field.required) for field in table.schema().fields]
    assert fields == [
        ("id", "int", True), ("price", "decimal(10, 2)", False), ("at", "timestamptz", False),
        ("items", "list<string>", False),
    ]  # fmt: skip
    assert [str(field.transform) for field in table.spec().fields] == ["day", "bucket[4]"]
    assert table.properties["write.parquet.compression-codec"] == "snappy"
    assert rows_in(tmp_path) == [
        {"id": 5, "price": 1, "at": datetime(1970, 1, 2, tzinfo=UTC), "items": ["a", None]}
    ]  # fmt: skip
    assert len(catalog.load_table("shop.orders").snapshots()) == 1


@dataclass
class Order:
    name: str
    value: str


def test_values_of_other_forms(tmp_path: Path) -> None:
    write(sink(tmp_path), record("a", {"value": "1"}), record("b", {}), record("c", "3"))
    write(sink(tmp_path, key=()), record(None, Order("d", "4")))
    write(sink(tmp_path, key=(), row=lambda record: {"name": record.value[:1]}), record(None, "e5"))
    assert counted(tmp_path) == {("a", "1"): 1, ("b", None): 1, ("c", "3"): 1, ("d", "4"): 1, ("e", None): 1}


def test_a_table_that_is_there(tmp_path: Path, catalog: Catalog) -> None:
    table = table_of(
        catalog, pa.field("more", pa.int64()), pa.field("value", pa.string()),
        pa.field("name", pa.string(), nullable=False),
    )  # fmt: skip
    made = sink(tmp_path, columns={"name": "string not null", "value": "large_string"})
    writer = made.open(PLACE)
    writer.write([record("a", "1")], None, SinkPosition("id", 1))
    # A column that comes later, or loses its name's place, harms no open writer.
    with table.update_schema() as update:
        from pyiceberg.types import StringType

        update.add_column("later", StringType())
        update.move_first("name")
    with table.update_spec() as spec:
        spec.add_identity("name")
    writer.write([record("b", "2")], SinkPosition("id", 1), SinkPosition("id", 2))
    with table.update_schema() as update:
        update.rename_column("value", "text")
    with pytest.raises(SinkError, match="the table has no column value; it has name, more, text, later"):
        writer.write([record("c", "3")], SinkPosition("id", 2), SinkPosition("id", 3))
    writer.close()
    written = sorted((row["name"], row["text"], row["later"]) for row in rows_in(tmp_path))
    assert written == [("a", "1", None), ("b", "2", None)]


NAME = pa.field("name", pa.string())
REFUSED: list[tuple[list[Any], dict[str, Any], str]] = [
    ([NAME], {}, "the table has no column value; it has name"),
    ([NAME, ("value", pa.int64())], {}, "column 'value' is of type long, and the sink writes large_string: change"),
    ([NAME, ("value", pa.uuid())], {}, "column 'value' is of type uuid, and the sink writes large_string"),
    ([NAME, ("value", pa.int64())], {"columns": {**COLUMNS, "value": "int32"}}, "is of type long, and the sink writes"),
    ([NAME, ("value", pa.timestamp("us"))], {"columns": {**COLUMNS, "value": "timestamp"}}, "is of type timestamp,"),
    ([NAME, ("value", pa.decimal128(10, 2))], {"columns": {**COLUMNS, "value": "decimal(10, 3)"}}, r"decimal\(10, 2\)"),
    ([NAME.with_nullable(False), ("value", pa.string())], {}, "column 'name' is required: write ' not null'"),
    ([NAME, ("value", pa.string()), pa.field("n", pa.int64(), nullable=False)], {}, "column n of the table is"),
    ([NAME, ("value", pa.string())], {"partition_by": {"name": "identity"}}, "is partitioned by nothing, and"),
    (
        [NAME, ("value", pa.struct([pa.field("a", pa.int64(), nullable=False)]))],
        {"columns": {**COLUMNS, "value": pa.struct([("a", pa.int64())])}},
        "column 'value' is of type struct",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "given", "said"), REFUSED)
def test_a_table_that_does_not_fit(
    tmp_path: Path, catalog: Catalog, fields: list[Any], given: dict[str, Any], said: str
) -> None:
    table_of(catalog, *fields)
    with pytest.raises(SinkError, match=said) as raised:
        sink(tmp_path, **given).open(PLACE)
    assert not isinstance(raised.value, SinkUnavailableError)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": "orders"}, "table: expected NAMESPACE.TABLE, found 'orders'"),
        ({"table": "shop."}, "table: expected NAMESPACE.TABLE"),
        ({"catalog": ""}, "catalog: expected the name of a catalog"),
        ({"columns": None}, "expected either schema= or columns="),
        ({"partition_by": {"day": "day"}}, "partition_by: there is no column 'day'"),
        ({"partition_by": {"name": "week"}}, "partition_by: expected 'identity', 'year'"),
        ({"partition_by": {"name": "bucket"}}, "partition_by: expected 'identity', 'year'"),
        ({"partition_by": "name"}, "partition_by: expected transforms by column"),
        ({"timestamp": "name"}, "column 'name' of timestamps is of type string"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        iceberg(**{"table": "shop.orders", "columns": COLUMNS, **given})


def test_a_transform_that_does_not_fit_its_column(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(SinkError, match=r"cannot make the table: ValueError: .*day"):
        sink(tmp_path, partition_by={"name": "day"}).open(PLACE)
    assert not catalog.table_exists("shop.orders")


# ---------------------------------------------------------------------------------------- partitions


@pytest.mark.parametrize("transform", ["identity", "year", "month", "day", "hour", "bucket[3]"])
def test_rows_are_found_by_their_partition(tmp_path: Path, transform: str) -> None:
    times = [
        datetime(1, 1, 2, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 11, 30, 12, tzinfo=UTC),
        datetime(9999, 12, 30, tzinfo=UTC), None,
    ]  # fmt: skip
    made = sink(tmp_path, columns={"n": "int64", "at": "timestamp"}, key="n", partition_by={"at": transform})
    write(made, *(record(number, {"at": at}) for number, at in enumerate(times)))
    assert {row["n"]: row["at"] for row in rows_in(tmp_path)} == dict(enumerate(times))
    for number, at in enumerate(times[:-1]):
        assert at is not None
        assert found(tmp_path, "at", at.isoformat()) == [{"n": number, "at": at}]


@pytest.mark.parametrize("transform", ["identity", "truncate[2]", "bucket[3]"])
def test_texts_are_found_by_their_partition(tmp_path: Path, transform: str) -> None:
    texts = ["", "a/b", "ü=\0%", "null", "\U0001f600\U0001f601x", "a" * 300, "..", None]
    made = sink(tmp_path, columns={"n": "int64", "text": "string"}, key="n", partition_by={"text": transform})
    write(made, *(record(number, {"text": text}) for number, text in enumerate(texts[:5] + texts[6:])))
    for number, text in enumerate(texts[:5]):
        assert text is not None
        assert found(tmp_path, "text", text) == [{"n": number, "text": text}]
    assert len(rows_in(tmp_path)) == 7


def test_dates_and_numbers_are_found_by_their_partition(tmp_path: Path) -> None:
    columns = {"n": "int64", "day": "date32"}
    made = sink(tmp_path, columns=columns, key=["n", "day"], partition_by={"n": "truncate[10]", "day": "month"})
    keys = [(-1, date(1969, 12, 31)), (0, date(1, 1, 1)), (2**63 - 1, date(9999, 12, 31)), (-(2**63) + 10, None)]
    write(made, *(record(key, {}) for key in keys))
    for n, day in keys:
        assert found(tmp_path, "n", n) == [{"n": n, "day": day}]


# ---------------------------------------------------------------------------------------- catalogs


def test_a_catalog_that_is_away(tmp_path: Path, own_postgres: PostgresServer) -> None:
    uri = f"postgresql+psycopg://penstock@/postgres?host={own_postgres.directory}"
    made = sink(tmp_path, uri=uri)
    write(made, record("a", "1"))
    writer = made.open(PLACE)
    own_postgres.stop()
    with pytest.raises(SinkUnavailableError, match="cannot write: OperationalError"):
        writer.write([record("b", "2")], SinkPosition("id", 1), SinkPosition("id", 2))
    writer.close()
    with pytest.raises(SinkUnavailableError, match="cannot open the catalog: OperationalError"):
        made.open(PLACE)
    own_postgres.start()
    write(made, record("b", "2"))
    assert counted(tmp_path, uri=uri) == {("a", "1"): 1, ("b", "2"): 1}


def test_files_that_are_away(tmp_path: Path) -> None:
    made = sink(tmp_path)
    write(made, record("a", "1"))
    warehouse = tmp_path / "warehouse"
    writer = made.open(PLACE)
    warehouse.rename(tmp_path / "away")
    with pytest.raises(SinkUnavailableError, match="cannot write: FileNotFoundError"):
        writer.write([record("b", "2")], SinkPosition("id", 1), SinkPosition("id", 2))
    writer.close()
    with pytest.raises(SinkUnavailableError):
        made.open(PLACE)
    (tmp_path / "away").rename(warehouse)
    write(made, record("b", "2"))
    assert counted(tmp_path) == {("a", "1"): 1, ("b", "2"): 1}


class OwnCatalog(NoopCatalog):
    """A class of a user's, derived from one whose commits are not safe."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"uri": "sqlite:////no/such/directory/catalog.db"}, "unable to open database file"),
        ({"type": "no such type"}, "cannot open the catalog: ValueError"),
        ({"type": "hive", "uri": "thrift://127.0.0.1:1"}, "hive"),
        ({"type": "dynamodb"}, "dynamodb|No module named|pyiceberg cannot commit there"),
        (
            {"type": "", "py-catalog-impl": "tests.sinks.iceberg.test_tables.OwnCatalog"},
            "its catalog is of the type 'noop', and pyiceberg cannot commit there: choose another one",
        ),
        ({"uri": "nosuch://host"}, "cannot open the catalog: NoSuchModuleError"),
    ],
)
def test_a_catalog_that_a_person_has_to_repair(tmp_path: Path, given: dict[str, str], said: str) -> None:
    made = iceberg("shop.orders", catalog="broken", catalog_options={**options(tmp_path), **given}, columns=COLUMNS)
    with pytest.raises(SinkError, match=said) as raised:
        made.open(PLACE)
    assert not isinstance(raised.value, SinkUnavailableError)


def test_options_come_from_pyiceberg_s_own_settings(tmp_path: Path) -> None:
    """pyiceberg reads them when it is imported, so this takes another process."""
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"tests": options(tmp_path / "file")}}))
    open_catalog(tmp_path / "file").close()
    code = (
        "from penstock import SinkPlace, SinkPosition, SinkRecord\n"
        "from penstock.contrib.iceberg import iceberg\n"
        f"writer = iceberg('shop.orders', catalog='tests', columns={COLUMNS}, key='name').open({PLACE})\n"
        "writer.write([SinkRecord('a', {'value': '1'}, 0, (), 0)], None, SinkPosition('id', 1))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYICEBERG_HOME": str(tmp_path)})
    assert counted(tmp_path / "file") == {("a", "1"): 1}


def test_secrets_are_nowhere(tmp_path: Path) -> None:
    given = {
        "type": "rest", "uri": "http://user:hidden1@127.0.0.1:1/?access_token=hidden2", "token": "hidden3",
        "s3.secret-access-key": "hidden4",
    }  # fmt: skip
    made = iceberg("shop.orders", catalog="mine", catalog_options=given, columns=COLUMNS)
    with pytest.raises(SinkUnavailableError, match=r"access_token=\*\*\*") as raised:
        made.open(PLACE)
    assert repr(made) == "<Iceberg table 'shop.orders' in the catalog 'mine'>"
    # A traceback shows the errors behind an error, too.
    for text in [str(made), repr(made), *traceback.format_exception(raised.value)]:
        assert "hidden" not in text
    given = options(tmp_path, "postgresql+psycopg://u:hidden@127.0.0.1:1/d")
    database = iceberg("shop.orders", catalog_options=given, columns=COLUMNS)
    with pytest.raises(SinkUnavailableError) as away:
        database.open(PLACE)
    assert "hidden" not in "".join(traceback.format_exception(away.value))


@pytest.mark.parametrize(
    ("options_", "text"),
    [
        ({"uri": "postgresql://u:s3cret@h/d"}, "cannot reach postgresql://u:s3cret@h/d"),
        ({"uri": "postgresql://u:s3%20cret@h/d"}, "password 's3 cret' is wrong"),
        ({"uri": "https://h/?sig=abc&access_token=s3cret"}, "GET https://h/?sig=abc&access_token=s3cret"),
        ({"credential": "client:s3cret"}, "client_secret=s3cret"),
        ({"s3.session-token": "s3cret"}, "x-amz-security-token: s3cret"),
        ({"adls.connection-string": "AccountKey=s3cret"}, "AccountKey=s3cret"),
        ({"header.Authorization": "Bearer s3cret"}, "Bearer s3cret"),
    ],
)
def test_texts_without_secrets(options_: dict[str, str], text: str) -> None:
    assert "***" in without_secrets(text, options_)
    assert "s3cret" not in without_secrets(text, options_) and "s3 cret" not in without_secrets(text, options_)
