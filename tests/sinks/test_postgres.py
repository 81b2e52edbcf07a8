"""The sink to PostgreSQL, on a real server: what rows it writes, what it refuses, and servers that die or freeze."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from penstock import (
    Application,
    ConfigError,
    DeadLetter,
    SinkError,
    SinkPlace,
    SinkPosition,
    SinkRecord,
    SinkRefusedError,
    SinkUnavailableError,
    run,
)
from penstock.contrib.postgres import postgres as postgres_sink
from penstock.dsl import StreamsBuilder
from penstock.testing import TopologyTestDriver

from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .postgres_server import PostgresServer
from .programs import rows

PLACE = SinkPlace("app", "target", "in", 0)


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 3})
        yield made


def application(surroundings: Surroundings, topology: Any, **settings: Any) -> Application:
    return surroundings.application("app", topology, **{"engine": "embedded", "commit_interval": "10ms", **settings})


def program(dsn: str, **options: Any) -> StreamsBuilder:
    builder = StreamsBuilder()
    sink = postgres_sink(dsn, table="rows", columns={"name": "text", "value": "text"}, key="name", **options)
    builder.stream("in").map_values(str.upper).to_sink(sink, "target", value_serde="str")
    return builder


def write(sink: Any, *records: SinkRecord) -> None:
    writer = sink.open(PLACE)
    try:
        follows = writer.position
        writer.write(records, follows, SinkPosition("id", (follows.next_offset if follows else 0) + len(records)))
    finally:
        writer.close()


def record(key: Any, value: Any, timestamp: int = 0) -> SinkRecord:
    return SinkRecord(key, value, timestamp, (), 0)


# ---------------------------------------------------------------------------------------- rows


def test_inserts_upserts_and_deletions(postgres: PostgresServer) -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in").group_by_key().count().to_stream()
    counts.filter(lambda n: n < 3).to_sink(
        postgres_sink(postgres.dsn, table="every", columns={"word": "text", "n": "bigint", "at": "timestamptz"},
                      key="word", mode="insert", timestamp="at"),
        "every",
    )  # fmt: skip
    counts.map_values(lambda n: None if n == 3 else n).to_sink(
        "contrib.postgres", "last", dsn=postgres.dsn, table="last", columns={"word": "text", "n": "bigint"}, key="word"
    )
    with TopologyTestDriver(builder) as driver:
        for number, word in enumerate(["a", "b", "a", "a", "c", "c"]):
            driver.pipe("in", word, "", 1_000 * number)
        found = postgres.query("SELECT word, n, extract(epoch FROM at)::int FROM every ORDER BY at")
        assert found == [("a", 1, 0), ("b", 1, 1), ("a", 2, 2), ("c", 1, 4), ("c", 2, 5)]
        assert sorted(postgres.query("SELECT word, n FROM last")) == [("b", 1), ("c", 2)]
        driver.pipe("in", "a", "")
        assert sorted(postgres.query("SELECT word, n FROM last")) == [("a", 4), ("b", 1), ("c", 2)]
    positions = postgres.query("SELECT application, sink, topic, partition, next_offset FROM penstock_positions")
    assert sorted(positions) == [
        ("test", "every", "test-every-repartition", 0, 5), ("test", "last", "test-last-repartition", 0, 7),
    ]  # fmt: skip


def test_many_changes_of_a_key_in_one_write(postgres: PostgresServer) -> None:
    sink = postgres_sink(postgres.dsn, table="t", columns={"k": "text", "n": "int"}, key="k")
    write(sink, record("a", 1), record("b", 1), record("a", None), record("b", 2), record("c", None), record("a", 3))
    write(sink, record("b", None), record("d", 5), record("d", None))
    assert postgres.query("SELECT k, n FROM t") == [("a", 3)]


def test_a_table_of_nothing_but_its_key(postgres: PostgresServer) -> None:
    sink = postgres_sink(postgres.dsn, table="t", columns={"a": "text", "b": "int"}, key=["a", "b"])
    write(sink, record(("x", 1), {}), record(("x", 2), {}), record({"a": "x", "b": 1}, None), record(("x", 2), {}))
    assert postgres.query("SELECT a, b FROM t") == [("x", 2)]


@dataclass
class Order:
    id: int
    price: Decimal


def test_values_of_other_forms(postgres: PostgresServer) -> None:
    columns = {"id": "int", "price": "numeric"}
    sink = postgres_sink(postgres.dsn, table="t", columns=columns)
    write(sink, record(None, {"id": 1}), record(None, Order(2, Decimal("2.50"))))
    lines = postgres_sink(postgres.dsn, table="t", columns=columns, row=_row_of_text)
    write(lines, record(None, "3;4.5"))
    found = postgres.query("SELECT id, price FROM t ORDER BY id")
    assert found == [(1, None), (2, Decimal("2.50")), (3, Decimal("4.5"))]


def _row_of_text(record: SinkRecord) -> dict[str, Any]:
    number, _, price = record.value.partition(";")
    return {"id": int(number), "price": Decimal(price)}


def test_a_table_that_is_there(postgres: PostgresServer) -> None:
    postgres.query(
        'CREATE TABLE "Sales" (id serial PRIMARY KEY, "Name" varchar(3), n int, at timestamptz DEFAULT now())'
    )
    sink = postgres_sink(postgres.dsn, table="Sales", key="Name", mode="insert")
    write(sink, record("a", 1), record("b", {"n": 2}))
    # A column that comes later harms no connection, nor one that is dropped and is not written.
    writer = sink.open(PLACE)
    postgres.query('ALTER TABLE "Sales" ADD COLUMN more text')
    writer.write([record("c", 3)], SinkPosition("id", 2), SinkPosition("id", 3))
    writer.close()
    write(sink, record("d", {"n": 4, "more": "x"}))
    assert postgres.query('SELECT id, "Name", n, more FROM "Sales" ORDER BY id') == [
        (1, "a", 1, None), (2, "b", 2, None), (3, "c", 3, None), (4, "d", 4, "x"),
    ]  # fmt: skip
    with pytest.raises(SinkRefusedError, match="value too long for type character varying"):
        write(sink, record("long", {"n": 4}))


# ---------------------------------------------------------------------------------------- values

ZONE = timezone(timedelta(hours=2))
VALUES: list[tuple[str, Any, Any]] = [
    ("numeric", 0.1 + 0.2, Decimal("0.30000000000000004")),
    ("numeric", 1e22, Decimal("1e22")),
    ("numeric", np.float64(0.1), Decimal("0.1")),
    ("numeric", 10**30, Decimal(10**30)),
    ("numeric", Decimal("NaN"), "NaN"),
    ("double precision", 1, 1.0),
    ("double precision", np.float32(0.5), 0.5),
    ("double precision", math.inf, math.inf),
    ("double precision", 5e-324, 5e-324),
    ("bigint", np.int64(-(2**63)), -(2**63)),
    ("timestamptz", datetime(2024, 1, 1, 12, 0, 0, 5, ZONE), datetime(2024, 1, 1, 10, 0, 0, 5, UTC)),
    ("timestamptz", pd.Timestamp("2024-01-01 12:00", tz="Europe/Berlin"), datetime(2024, 1, 1, 11, tzinfo=UTC)),
    ("timestamp", datetime(2024, 1, 1, 12), datetime(2024, 1, 1, 12)),
    ("timestamptz", pd.NaT, None),
    ("timestamp", pd.NaT, None),
    ("date", date(2024, 2, 29), date(2024, 2, 29)),
    ("time", time(1, 2, 3, 4), time(1, 2, 3, 4)),
    ("interval", timedelta(days=-3, microseconds=7), timedelta(days=-3, microseconds=7)),
    ("boolean", np.bool_(True), True),
    ("bytea", b"\x00\\x\xff", b"\x00\\x\xff"),
    ("uuid", "12345678-1234-5678-1234-567812345678", UUID(int=0x12345678123456781234567812345678)),
    ("text", "\\N\t\n\\.日\U0001f600", "\\N\t\n\\.日\U0001f600"),
    ("text", "", ""),
    ("jsonb", {"a": [1, None, "\\", 0.1]}, {"a": [1, None, "\\", 0.1]}),
    ("json", "text", "text"),
    ("text[]", ["a", None, 'b"'], ["a", None, 'b"']),
]
REFUSED: list[tuple[str, Any, str]] = [
    ("integer", "1", r"column 'v' \(integer\): expected a whole number, found str '1'"),
    ("integer", 1.5, "expected a whole number"),
    ("integer", True, "expected a whole number"),
    ("integer", 2**31, "integer out of range|out of range for type integer"),
    ("numeric", "1", "expected a number"),
    ("numeric", np.datetime64("2024-01-01T00:00:00.000000001"), "expected a number, found datetime64"),
    ("double precision", np.timedelta64(5, "s"), "expected a number, found timedelta64"),
    ("double precision", np.complex64(1 + 2j), "expected a number, found complex64"),
    ("double precision", 2**53 + 1, "expected a number that a float has exactly"),
    ("text", 1, "expected a str"),
    ("text", "a\0b", "without the character 0"),
    ("text", "\ud800", "surrogates not allowed"),
    ("timestamptz", datetime(2024, 1, 1), "expected a datetime with a time zone"),
    ("timestamp", datetime(2024, 1, 1, tzinfo=UTC), "expected a datetime without a time zone"),
    ("timestamp", pd.Timestamp(5), "it has nanoseconds"),
    ("date", datetime(2024, 1, 1), "expected a date"),
    ("boolean", 1, "expected True or False"),
    ("bytea", "text", "expected bytes"),
    ("uuid", "no", "badly formed"),
    ("json", {1, 2}, "expected a value of JSON"),
    ("json", math.nan, "expected a value of JSON"),
    ("inet", object(), "cannot adapt type 'object'"),
]


@pytest.mark.parametrize("rows_in_all", [1, 40])
@pytest.mark.parametrize(("type_", "value", "expected"), VALUES)
def test_copy_and_insert_store_the_same(
    postgres: PostgresServer, type_: str, value: Any, expected: Any, rows_in_all: int
) -> None:
    sink = postgres_sink(postgres.dsn, table="t", columns={"k": "int", "v": type_}, key="k", mode="insert")
    write(sink, *(record(number, {"v": value}) for number in range(rows_in_all)))
    found = {repr(row[0]) for row in postgres.query("SELECT v FROM t")}
    if expected == "NaN":
        assert found == {"Decimal('NaN')"}
    elif (isinstance(expected, datetime) and expected.tzinfo is not None) or isinstance(expected, Decimal):
        assert {row[0] for row in postgres.query("SELECT v FROM t")} == {expected}
    else:
        assert found == {repr(expected)}


@pytest.mark.parametrize("rows_in_all", [1, 40])
@pytest.mark.parametrize(("type_", "value", "said"), REFUSED)
def test_a_value_that_does_not_fit_is_refused(
    postgres: PostgresServer, type_: str, value: Any, said: str, rows_in_all: int
) -> None:
    sink = postgres_sink(postgres.dsn, table="t", columns={"k": "int", "v": type_}, key="k", mode="insert")
    good = [record(number, {"v": None}) for number in range(rows_in_all - 1)]
    with pytest.raises(SinkRefusedError, match=said):
        write(sink, *good, record(99, {"v": value}))
    assert postgres.query("SELECT count(*) FROM t") == [(0,)]
    assert not postgres.query("SELECT * FROM penstock_positions")


def test_records_that_do_not_fit_the_table(postgres: PostgresServer) -> None:
    sink = postgres_sink(postgres.dsn, table="t", columns={"a": "text", "b": "int", "c": "int"}, key="a")
    for key, value, said in (
        ("x", 5, "its value is a int, 5, expected a mapping of columns: b, c"),
        ("x", {"d": 1}, "its value has d, and the table's columns are a, b, c"),
        (None, {"b": 1}, "its key is None: a row of a needs one"),
        (7, None, "expected a str"),
    ):
        with pytest.raises(SinkRefusedError, match=said):
            write(sink, record(key, value))
    with pytest.raises(SinkRefusedError, match='the mode is "insert"'):
        write(postgres_sink(postgres.dsn, table="t", key="a", mode="insert"), record("x", None))


def test_refused_rows_are_dead_letters(surroundings: Surroundings, postgres: PostgresServer) -> None:
    surroundings.create(dead=1)
    surroundings.put("in", rows(range(50)))
    builder = StreamsBuilder()
    sink = postgres_sink(
        postgres.dsn, table="rows", columns={"name": "text", "n": "smallint"}, key="name", mode="insert"
    )
    numbers = builder.stream("in").map_values(_number)
    numbers.to_sink(sink, "target", value_serde="json")
    run(application(surroundings, builder, production_handler=DeadLetter("dead")))
    assert sorted(n for (n,) in postgres.query("SELECT n FROM rows")) == [n for n in range(50) if n % 10]
    letters = [value for _, value, _ in surroundings.read("dead")[0]]
    assert sorted(letters) == sorted(str(n * 1_000_000 + 100_000) for n in range(0, 50, 10))  # type: ignore[type-var]


def _number(value: str) -> int:
    number = int(value[1:])
    return number if number % 10 else number * 1_000_000 + 100_000


# ---------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": ""}, "table: expected its name, or SCHEMA.TABLE"),
        ({"table": "t", "columns": "a"}, "columns: expected types by name"),
        ({"table": "t", "mode": "merge"}, "mode: expected 'insert' or 'upsert', found 'merge'"),
        ({"table": "t", "mode": "upsert"}, 'mode "upsert" needs key='),
        ({"table": "t", "columns": {"a": "int"}, "key": "b"}, "columns lacks b, which key or timestamp names"),
        ({"table": "t", "key": "a", "timestamp": "a"}, "name a column twice"),
        ({"table": "t", "row": 5}, "row: expected a function"),
    ],
)
def test_mistakes_in_options(options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        postgres_sink(**options)


def test_a_password_is_not_shown() -> None:
    sink = postgres_sink("host=/nowhere password=geheim", table="t", columns={"a": "int"})
    assert "geheim" not in f"{sink!r} {sink}"
    with pytest.raises(SinkUnavailableError) as raised:
        sink.open(PLACE)
    assert "geheim" not in str(raised.value)


def test_a_missing_package_is_an_error_of_the_program(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from penstock.dsl import StreamsBuilder\n"
        "StreamsBuilder().stream('in').to_sink('contrib.postgres', 'x', table='t')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MissingPackageError: to_sink 'x': sink 'contrib.postgres' needs the package psycopg" in done.stderr
    assert "[postgres]'" in done.stderr


def test_a_target_that_does_not_fit_ends_the_run(surroundings: Surroundings, postgres: PostgresServer) -> None:
    surroundings.put("in", rows(range(3)))
    postgres.query("CREATE TABLE rows (name text PRIMARY KEY, value int)")
    with pytest.raises(
        SinkError,
        match="external sink 'target': PostgreSQL table 'rows': column 'value' is of type integer",
    ):
        run(application(surroundings, program(postgres.dsn)))


def test_two_processes_of_tasks(surroundings: Surroundings, postgres: PostgresServer) -> None:
    surroundings.put("in", rows(range(60)))
    run(application(surroundings, program(postgres.dsn, mode="insert"), processes=2))
    assert sorted(postgres.query("SELECT name, value FROM rows")) == sorted(
        (f"k{number % 5}", f"V{number}") for number in range(60)
    )


# ---------------------------------------------------------------------------------------- a server that fails


@pytest.mark.parametrize("fault", ["kill", "freeze", "stop"])
def test_a_server_that_dies_or_freezes(
    surroundings: Surroundings, own_postgres: PostgresServer, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    total = 0

    def put(count: int) -> None:
        nonlocal total
        surroundings.put("in", rows(range(total, total + count)))
        total += count

    given = application(surroundings, program(own_postgres.dsn, mode="insert", timeout="1s"))
    put(100)
    with given.start("continuous") as running:
        for number in range(3):
            wait_until(lambda: count_of(own_postgres) >= total - 50 or running.state == "failed")
            put(500)
            getattr(own_postgres, fault)()
            put(100)
            if not number:  # such a line comes once a minute
                wait_until(lambda: "attempt" in caplog.text or running.state == "failed", "a task has found it away")
            own_postgres.wake() if fault == "freeze" else own_postgres.start()
        wait_until(lambda: count_of(own_postgres) >= total or running.state == "failed", seconds=120)
    running.wait()
    assert sorted(own_postgres.query("SELECT name, value FROM rows")) == sorted(
        (f"k{number % 5}", f"V{number}") for number in range(total)
    )


def count_of(server: PostgresServer) -> int:
    (there,) = server.query("SELECT to_regclass('rows')")
    if there[0] is None:
        return 0
    found: int = server.query("SELECT count(*) FROM rows")[0][0]
    return found


def test_a_frozen_server_is_away(own_postgres: PostgresServer) -> None:
    sink = postgres_sink(own_postgres.dsn, table="t", columns={"a": "int"}, timeout="1s")
    writer = sink.open(PLACE)
    own_postgres.freeze()
    with pytest.raises(SinkUnavailableError):
        writer.write([record(None, {"a": 1})], None, SinkPosition("id", 1))
    with pytest.raises(SinkUnavailableError):
        sink.open(PLACE)
    own_postgres.wake()
    writer.close()
    after = sink.open(PLACE)
    follows = after.position  # the server may have done what it had received
    after.write([record(None, {"a": 2})], follows, SinkPosition("id", 2))
    after.close()
    assert own_postgres.query("SELECT a FROM t WHERE a = 2") == [(2,)]
