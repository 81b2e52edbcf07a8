"""Tables of databases as sources: positions, columns that are not unique, transactions that end late, exact values."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigError, Log
from penstock.copying import CopyError, CopySummary, PostgresRows, SqliteRows, copy
from penstock.plugins.logs.memory import MemoryLog
from penstock.serdes import PickleSerde

from ..sinks.postgres_server import PostgresServer
from .interrupting import Interrupted, Stop, ends_after, when_idle
from .reading import values


@pytest.fixture
def out(log: Log) -> Log:
    log.create_topic("out", 1)
    return log


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as made:
        made.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, day TEXT, cents)")
        yield made


def ids(log: Log) -> list[int]:
    return [json.loads(each)["id"] for each in values(log, "out") if each is not None]


# -- SQLite


def test_new_rows_of_a_table(database: sqlite3.Connection, out: Log, tmp_path: Path) -> None:
    orders = SqliteRows(tmp_path / "shop.db", "orders", column="id")
    assert copy(orders, "out", log=out) == CopySummary("orders", "out", 0, 0)
    database.executemany("INSERT INTO orders VALUES (?, ?, ?)", [(n, "d", 2**53 + n) for n in range(25)])
    with pytest.raises(Interrupted):
        copy(orders, "out", log=out, batch_rows=7, on_progress=ends_after(2))
    database.execute("DELETE FROM orders WHERE id < 10")  # copied rows may go
    database.execute("INSERT INTO orders VALUES (99, NULL, x'ff')")
    assert copy(orders, "out", log=out, batch_rows=7) == CopySummary("orders", "out", 12, 26)
    assert ids(out) == [*range(25), 99]
    assert values(out, "out")[-2:] == [
        b'{"id":24,"day":"d","cents":9007199254741016}',
        b'{"id":99,"day":null,"cents":"/w=="}',
    ]


def test_a_column_that_went_back_is_refused(database: sqlite3.Connection, out: Log, tmp_path: Path) -> None:
    orders = SqliteRows(tmp_path / "shop.db", "orders", column="id")
    database.executemany("INSERT INTO orders (id) VALUES (?)", [(n,) for n in range(5)])
    copy(orders, "out", log=out)
    database.execute("DELETE FROM orders")
    assert copy(orders, "out", log=out).rows == 0  # an outbox is emptied
    database.execute("INSERT INTO orders (id) VALUES (3)")
    with pytest.raises(CopyError, match="the greatest 'id' is 3, and rows up to 4 were copied: the column went back"):
        copy(orders, "out", log=out)
    with pytest.raises(CopyError, match="copied by the column 'id', and now the column is 'day'"):
        copy(SqliteRows(tmp_path / "shop.db", "orders", column="day"), "out", log=out)
    assert copy(orders, "out", log=out, restart=True).total == 1


@given(
    columns=st.lists(st.integers(0, 5), max_size=25).map(sorted),
    late=st.lists(st.integers(5, 7), max_size=5).map(sorted),
    ends=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), max_size=4),
    kind=st.sampled_from(["table", "query"]),
)
def test_rows_with_equal_values_are_copied_once(
    tmp_path_factory: pytest.TempPathFactory, columns: list[int], late: list[int], ends: list[Any], kind: str
) -> None:
    """All but those with the greatest value, which wait until there is a greater one."""
    path = tmp_path_factory.mktemp("equal") / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database, closing(MemoryLog()) as log:
        log.create_topic("out", 1)
        database.execute("CREATE TABLE o (id INTEGER PRIMARY KEY, n INTEGER)")
        rows = SqliteRows(path, "o", column="n") if kind == "table" else SqliteRows(
            path, query="SELECT * FROM o;", column="n"
        )  # fmt: skip
        for number, values_now in enumerate((columns, late, [9])):
            database.executemany("INSERT INTO o (n) VALUES (?)", [(each,) for each in values_now])
            for commits, size in ends if number < 2 else []:
                try:
                    copy(rows, "out", log=log, name="o", batch_rows=size, on_progress=ends_after(commits))
                except Interrupted:
                    pass
            copy(rows, "out", log=log, name="o")
        assert sorted(ids(log)) == list(range(1, len(columns) + len(late) + 1))


COLLATED = [
    "CREATE TABLE o (id INT, n TEXT COLLATE NOCASE)",
    "CREATE TABLE o (id INT, n TEXT COLLATE NOCASE); CREATE UNIQUE INDEX i ON o (n COLLATE BINARY)",
    "CREATE TABLE o (id INT, n TEXT COLLATE NOCASE, PRIMARY KEY (n COLLATE BINARY))",
    "CREATE TABLE o (id INT, n TEXT COLLATE NOCASE, PRIMARY KEY (n COLLATE BINARY)) WITHOUT ROWID",
]


@pytest.mark.parametrize("tables", COLLATED)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_texts_that_the_column_calls_equal_are_copied_once(out: Log, tmp_path: Path, tables: str, size: int) -> None:
    rows = SqliteRows(tmp_path / "o.db", "o", column="n")
    with closing(sqlite3.connect(tmp_path / "o.db", isolation_level=None)) as database:
        database.executescript(tables)
        for number, text in enumerate(["a", "b", "B", "c", "C"]):
            database.execute("INSERT INTO o VALUES (?, ?)", (number, text))
            copy(rows, "out", log=out, name="each", batch_rows=size)
        database.execute("INSERT INTO o VALUES (5, 'd')")
        copy(rows, "out", log=out, name="each", batch_rows=size)
        assert sorted(ids(out)) == [0, 1, 2, 3, 4]
        copy(rows, "out", log=out, name="at-once", batch_rows=size)
        assert sorted(ids(out)[5:]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "tables",
    [
        "CREATE TABLE o (id INT, n TEXT PRIMARY KEY)",
        "CREATE TABLE o (id INT, n TEXT COLLATE NOCASE PRIMARY KEY) WITHOUT ROWID",
        "CREATE TABLE o (id INT, n INTEGER PRIMARY KEY)",
        "CREATE TABLE o (id INT, n INTEGER PRIMARY KEY DESC)",
        "CREATE TABLE o (id INT, n TEXT COLLATE NOCASE); CREATE UNIQUE INDEX i ON o (n)",
    ],
)
def test_rows_of_a_unique_column_do_not_wait(out: Log, tmp_path: Path, tables: str) -> None:
    with closing(sqlite3.connect(tmp_path / "o.db", isolation_level=None)) as database:
        database.executescript(tables)
        database.execute("INSERT INTO o VALUES (1, 1), (2, 2)")
    copy(SqliteRows(tmp_path / "o.db", "o", column="n"), "out", log=out)
    assert ids(out) == [1, 2]


def test_null_in_the_column_is_refused(database: sqlite3.Connection, out: Log, tmp_path: Path) -> None:
    database.execute("INSERT INTO orders VALUES (1, NULL, 2)")
    with pytest.raises(CopyError, match=r"'day' of some rows is null.*WHERE day IS NOT NULL"):
        copy(SqliteRows(tmp_path / "shop.db", "orders", column="day"), "out", log=out)


def test_mistakes(database: sqlite3.Connection, out: Log, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    for source, what in [
        (SqliteRows(path, "nothing", column="id"), "no such table: nothing"),
        (SqliteRows(path, "orders", column="nothing"), "no such column|has no column 'nothing'"),
        (SqliteRows(tmp_path / "no.db", "orders", column="id"), "there is no SQLite file"),
        (SqliteRows(path, query="SELECT 1 AS id; DROP TABLE orders", column="id"), "syntax error"),
        (SqliteRows(path, query="DELETE FROM orders RETURNING id", column="id"), "syntax error"),
    ]:
        with pytest.raises(CopyError, match=what):
            copy(source, "out", log=out, name="rows")
    for table, query in ((None, None), ("a", "b")):
        with pytest.raises(ConfigError, match="needs a table or a query, and not both"):
            SqliteRows(path, table, query=query, column="id")
    with pytest.raises(ConfigError, match="settled"):
        SqliteRows(path, "orders", column="id", settled="soon")


def test_a_growing_table_is_followed(database: sqlite3.Connection, out: Log, tmp_path: Path) -> None:
    orders = SqliteRows(tmp_path / "shop.db", "orders", column="id")

    def add(*numbers: int) -> Callable[[], object]:
        return lambda: database.executemany("INSERT INTO orders (id) VALUES (?)", [(each,) for each in numbers])

    with pytest.raises(Stop):
        copy(orders, "out", log=out, follow=True, on_progress=when_idle(add(1, 2), add(3), add(7, 8)))
    assert ids(out) == [1, 2, 3, 7, 8]
    with pytest.raises(CopyError, match="went back"):

        def renumber() -> None:
            database.execute("DELETE FROM orders")
            add(1)()

        copy(orders, "out", log=out, follow=True, on_progress=when_idle(renumber))


def test_a_column_that_is_not_unique_is_followed(database: sqlite3.Connection, out: Log, tmp_path: Path) -> None:
    database.execute("CREATE TABLE o (id INTEGER, day TEXT)")
    orders = SqliteRows(tmp_path / "shop.db", "o", column="day")

    def add(*rows: tuple[int, str | None]) -> Callable[[], object]:
        return lambda: database.executemany("INSERT INTO o VALUES (?, ?)", rows)

    add((1, "mon"), (2, "mon"))()
    acts = add((3, "tue"), (4, "mon")), add((5, "tue")), add((6, "wed"), (7, "tue"))
    with pytest.raises(Stop):
        copy(orders, "out", log=out, follow=True, on_progress=when_idle(*acts))
    assert sorted(ids(out)) == [1, 2, 3, 4, 5, 7]  # "tue" is above "mon", and those of "wed" wait
    with pytest.raises(CopyError, match="is null"):
        copy(orders, "out", log=out, follow=True, on_progress=when_idle(add((8, None), (9, "x"))))


def test_a_database_with_a_write_ahead_log(database: sqlite3.Connection, out: Log, tmp_path: Path) -> None:
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("INSERT INTO orders (id) VALUES (1)")
    orders = SqliteRows(tmp_path / "shop.db", "orders", column="id")
    assert copy(orders, "out", log=out).rows == 1
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT INTO orders (id) VALUES (2)")
    assert copy(orders, "out", log=out).rows == 0
    database.execute("COMMIT")
    database.close()
    assert copy(orders, "out", log=out).rows == 1


# -- PostgreSQL


def orders_of(server: PostgresServer, **options: Any) -> PostgresRows:
    return PostgresRows(server.dsn, "orders", column="id", **{"settled": "0ms", **options})


def test_values_of_postgres_are_exact(postgres: PostgresServer, out: Log) -> None:
    postgres.query(
        """CREATE TABLE "Or ders%" AS SELECT 1 AS id, 9007199254740993::bigint AS big, 1.50::numeric AS price,
        'NaN'::float8 AS nan, 0.1::float4 AS single, '2024-02-29'::date AS day, '12:30:00.000001'::time AS time,
        '2024-05-01 12:00:00+02'::timestamptz AS at, '2024-05-01 12:00:00'::timestamp AS naive,
        '1 month 2 days'::interval AS lasts, '\\xff00'::bytea AS data, 'a'::char(3) AS padded, true AS yes,
        '{"n": 9007199254740993, "x": 1.5}'::jsonb AS doc, ARRAY[1, NULL] AS list, NULL::int AS none,
        'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid AS uuid"""
    )
    rows = PostgresRows(postgres.dsn, "public.Or ders%", column="id", settled="0ms", unique=True)
    copy(rows, "out", log=out, value_serde="pickle")
    (data,) = values(out, "out")
    assert data is not None
    row = PickleSerde().deserialize(data)
    assert str(row.pop("nan")) == "nan"
    assert row == {
        "id": 1, "big": 9007199254740993, "price": Decimal("1.50"), "single": 0.1, "day": date(2024, 2, 29),
        "time": time(12, 30, 0, 1), "at": datetime(2024, 5, 1, 10, tzinfo=UTC), "naive": datetime(2024, 5, 1, 12),
        "lasts": "P1M2D", "data": b"\xff\x00", "padded": "a  ", "yes": True,
        "doc": {"n": 9007199254740993, "x": 1.5}, "list": [1, None], "none": None,
        "uuid": UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    }  # fmt: skip
    query = "SELECT id, price, at, lasts, data, uuid FROM \"Or ders%\" WHERE 'a%' LIKE 'a%'"
    copy(PostgresRows(postgres.dsn, query=query, column="id", settled="0ms", unique=True), "out", log=out, name="query")
    assert values(out, "out")[1] == (
        b'{"id":1,"price":"1.50","at":"2024-05-01T10:00:00Z","lasts":"P1M2D","data":"/wA=",'
        b'"uuid":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}'
    )


def test_values_that_python_does_not_hold_are_refused(postgres: PostgresServer, out: Log) -> None:
    for number, value in enumerate(["'infinity'::timestamptz", "'-infinity'::date", "'0.12345678901234567890'::jsonb"]):
        rows = PostgresRows(postgres.dsn, query=f"SELECT 1 AS id, {value} AS x", column="id", unique=True)
        with pytest.raises(CopyError, match="the query: .*(infin|too large|too small|is not a float)"):
            copy(rows, "out", log=out, name=f"rows{number}")
    assert values(out, "out") == []


def test_a_row_that_is_committed_late_is_waited_for(postgres: PostgresServer, out: Log) -> None:
    """Its transaction took a lower id, and perhaps no id yet, when the one with the greatest id had ended."""
    postgres.query("CREATE TABLE orders (id bigserial PRIMARY KEY, n int)")
    with psycopg.connect(postgres.dsn) as late, psycopg.connect(postgres.dsn) as later:
        late.execute("INSERT INTO orders (n) VALUES (1)")
        later.execute("INSERT INTO orders (n) VALUES (2)")
        postgres.query("INSERT INTO orders (n) VALUES (3)")
        # A transaction that only reads, and one that begins later, delay nothing.
        with psycopg.connect(postgres.dsn) as reading, psycopg.connect(postgres.dsn) as begun_later:
            reading.execute("SELECT * FROM orders")
            reasons: list[str] = []

            def listen(summary: CopySummary, reason: str) -> None:
                if reason:
                    assert ids(out) == []
                    reasons.append(reason)
                    if len(reasons) == 1:
                        begun_later.execute("INSERT INTO orders (n) VALUES (4)")
                        late.commit()
                    elif len(reasons) == 3:
                        later.rollback()

            assert copy(orders_of(postgres), "out", log=out, on_progress=listen).rows == 2
            assert len(reasons) == 3 and "transactions that are writing, before rows up to 3 are read" in reasons[0]
    assert ids(out) == [1, 3]
    assert copy(orders_of(postgres), "out", log=out).rows == 1  # the block above has committed the fourth
    assert ids(out) == [1, 3, 4]


def test_an_id_that_no_row_has_yet_is_waited_for_as_long_as_said(postgres: PostgresServer, out: Log) -> None:
    postgres.query("CREATE TABLE orders (id bigserial PRIMARY KEY, n int)")
    ((taken,),) = postgres.query("SELECT nextval('orders_id_seq')")
    postgres.query("INSERT INTO orders (n) VALUES (2)")

    def insert(summary: CopySummary, reason: str) -> None:
        if reason and taken not in [each for (each,) in postgres.query("SELECT id FROM orders")]:
            postgres.query("INSERT INTO orders VALUES (%s, 1)", taken)

    copy(orders_of(postgres, settled="1s"), "out", log=out, on_progress=insert)
    assert ids(out) == [1, 2]


def test_uniqueness_is_asked_of_the_database(postgres: PostgresServer, out: Log) -> None:
    postgres.query("CREATE TABLE orders (id int, other int, part int UNIQUE, PRIMARY KEY (id, other))")
    postgres.query("CREATE UNIQUE INDEX ON orders (other) WHERE id > 5")
    postgres.query("INSERT INTO orders VALUES (1, 1, 1), (2, 2, 2), (2, 3, 3)")
    for column, count in (("id", 1), ("other", 2), ("part", 3)):
        rows = PostgresRows(postgres.dsn, "orders", column=column, settled="0ms")
        assert copy(rows, "out", log=out, name=column).total == count
    postgres.query("INSERT INTO orders VALUES (2, 4, 4), (3, 5, 5)")
    rows = PostgresRows(postgres.dsn, "orders", column="id", settled="0ms")
    assert copy(rows, "out", log=out, name="id", batch_rows=1).total == 4


def test_texts_that_postgres_calls_equal_are_copied_once(postgres: PostgresServer, out: Log) -> None:
    postgres.query("CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    postgres.query("CREATE TABLE orders (id int, n text COLLATE any_case)")
    postgres.query("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'B'), (4, 'c'), (5, 'd')")
    copy(PostgresRows(postgres.dsn, "orders", column="n", settled="0ms"), "out", log=out, batch_rows=2)
    assert sorted(ids(out)) == [1, 2, 3, 4]


def test_mistakes_with_postgres(postgres: PostgresServer, out: Log) -> None:
    postgres.query("CREATE TABLE orders (id int)")
    postgres.query("CREATE SEQUENCE ids")
    for source, what in [
        (PostgresRows(postgres.dsn, "nothing", column="id"), 'relation "nothing" does not exist'),
        (PostgresRows(postgres.dsn, "orders", column="nothing"), 'column "nothing" does not exist'),
        (PostgresRows("host=/nowhere password=hidden", "orders", column="id"), "PostgreSQL: .*nowhere"),
        (PostgresRows(postgres.dsn, query="DELETE FROM orders", column="id"), "syntax error"),
        (PostgresRows(postgres.dsn, query="SELECT 1 AS id, 2 AS id", column="id"), '"id" is ambiguous'),
        (PostgresRows(postgres.dsn, query="SELECT 1 AS id, 2 a, 3 a", column="id", unique=True), "have the name 'a'"),
        (PostgresRows(postgres.dsn, query="SELECT nextval('ids') AS id", column="id"), "read-only"),
    ]:
        with pytest.raises(CopyError, match=what) as error:
            copy(source, "out", log=out, name="rows")
        assert "hidden" not in str(error.value)
    postgres.query("INSERT INTO orders VALUES (5)")
    copy(orders_of(postgres, unique=True), "out", log=out)
    postgres.query("UPDATE orders SET id = 2")
    with pytest.raises(CopyError, match="the column went back"):
        copy(orders_of(postgres), "out", log=out)
    postgres.query("INSERT INTO orders VALUES (NULL)")
    with pytest.raises(CopyError, match="is null, and they would never be copied"):
        copy(orders_of(postgres), "out", log=out)


def test_a_server_that_goes_away_ends_a_copy_which_continues_later(own_postgres: PostgresServer, out: Log) -> None:
    own_postgres.query("CREATE TABLE orders (id bigserial PRIMARY KEY, n int)")
    own_postgres.query("INSERT INTO orders (n) SELECT generate_series(1, 5)")
    with pytest.raises(CopyError, match="table 'orders': .*rows copied before it: 5"):
        copy(orders_of(own_postgres), "out", log=out, follow=True, on_progress=when_idle(own_postgres.kill))
    own_postgres.start()
    own_postgres.query("INSERT INTO orders (n) VALUES (6)")
    assert copy(orders_of(own_postgres), "out", log=out) == CopySummary("orders", "out", 1, 6)
    assert len(ids(out)) == 6
