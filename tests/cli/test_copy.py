"""`penstock copy`: rows of files and tables, its options, errors and ends."""

from __future__ import annotations

import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import ManualClock
from penstock.copying import CopySummary
from penstock.plugins.operate.cli.copy import _Listener
from penstock.plugins.operate.cli.output import ProgressMeter

from ..kit.command_contract import CommandContract
from ..sinks.conftest import postgres, shared_postgres
from ..sinks.postgres_server import PostgresServer
from ..waiting import wait_until
from .console import Console

__all__ = ["postgres", "shared_postgres"]


class TestCommand(CommandContract):
    place = "penstock.plugins.operate.cli.copy:copy"
    refused = {
        ("nowhere.jsonl", "out", "--partitions", "1"): "there is no file 'nowhere.jsonl'",
        ("rows.jsonl", "out", "--column", "id"): "--column is for a database",
        ("rows.jsonl", "out", "--header", "x"): "--header 'x': expected NAME=VALUE",
        ("sqlite:x.db", "out", "--table", "t"): "a database needs --column, and --table or --query",
        ("sqlite:x.db", "out", "--table", "t", "--query", "q", "--column", "c"): "and --table or --query",
        ("sqlite:x.db", "out", "--format", "parquet"): "--format is for files",
        ("sqlite:x.db", "out", "--table", "t", "--column", "c", "--settled", "soon"): "settled",
        ("rows.jsonl", "out"): "topic 'out' does not exist",
        ("rows.jsonl", "out", "--tombstones"): "name it as the value",
    }

    @pytest.fixture(autouse=True)
    def in_a_directory(self, console: Console) -> None:
        """Run the commands in the directory of `console`."""


def test_lines_are_copied_and_continued(console: Console) -> None:
    console.write("rows.jsonl", '{"id": "a", "n": 1}\n{"id": "b", "n": 2}\n')
    said = console("copy", "rows.jsonl", "out", "-k", "id", "-p", "1", "-H", "from=test", "--batch", "1").stderr
    assert re.search(r"copied 2 rows to out in [\d.]+ s; in all 2\n$", said)
    console.write("rows.jsonl", '{"id": "a", "n": 1}\n{"id": "b", "n": 2}\n{"id": "c", "n": 3}\n')
    arguments = ["copy", "rows.jsonl", "out", "--key", "id", "--json"]
    summary = console.json(*arguments)
    assert summary.pop("seconds") >= 0
    assert summary == {"name": "rows.jsonl", "topic": "out", "rows": 1, "total": 3}
    printed = console.json_lines("consume", "out", "--json", "--value-serde", "json")
    assert [(each["key"], each["value"]["n"]) for each in printed] == [("a", 1), ("b", 2), ("c", 3)]
    assert [each["headers"] for each in printed] == [[["from", "test"]], [["from", "test"]], []]
    console.write("rows.jsonl", '{"id": "A", "n": 1}\n{"id": "b", "n": 2}\n{"id": "c", "n": 3}\n')
    error = console(*arguments, code=1).stderr
    assert "its first 60 bytes (3 lines) are not those that were copied" in error
    assert console.json(*arguments, "--name", "other")["rows"] == 3
    assert console.json(*arguments, "--restart")["total"] == 3
    assert console("copy", "rows.jsonl", "out", "--quiet").stderr == ""


def test_parquet_by_its_name_or_by_the_option(console: Console) -> None:
    table = pa.table({"id": [1, 2], "at": pa.array([1000, 2000], pa.timestamp("ms")), "text": ["x", None]})
    pq.write_table(table, console.directory / "rows.parquet")
    (console.directory / "d").mkdir()
    pq.write_table(table, console.directory / "d" / "x.parquet")
    pq.write_table(table, console.directory / "rows.data")
    console("topics", "create", "out")
    options = ["--key", "id", "--key-serde", "int", "--value", "text", "--value-serde", "str", "--timestamp", "at"]
    options += ["--tombstones", "--quiet"]
    for arguments in (["rows.parquet"], ["d"], ["rows.data", "--format", "parquet"]):
        console("copy", arguments[0], "out", *arguments[1:], *options)
    printed = console.json_lines("consume", "out", "--json", "--key-serde", "int")
    parts = [(each["key"], each["value"], each["timestamp"]) for each in printed]
    assert parts == [(1, "x", 1000), (2, None, 2000)] * 3


def test_tables(console: Console, postgres: PostgresServer) -> None:
    with closing(sqlite3.connect(console.directory / "shop.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, n INT)")
        database.execute("INSERT INTO orders VALUES (1, 10)")
    postgres.query("CREATE TABLE orders (id int PRIMARY KEY, n int)")
    postgres.query("INSERT INTO orders VALUES (2, 20)")
    console("topics", "create", "out")
    options = ["--column", "id", "--header-column", "n", "--quiet"]
    console("copy", "sqlite:shop.db", "out", "--table", "orders", *options)
    url = f"postgresql://penstock@/postgres?host={postgres.directory}"
    console("copy", url, "out", "--table", "public.orders", "--settled", "0ms", *options)
    query = ["--query", "SELECT id + 1 AS id, n FROM orders", "--unique", "--name", "next"]
    console("copy", f"postgresql:{postgres.dsn}", "out", *query, *options)
    printed = console.json_lines("consume", "out", "--json", "--value-serde", "json")
    assert [(each["value"], each["headers"]) for each in printed] == [
        ({"id": 1, "n": 10}, [["n", "10"]]),
        ({"id": 2, "n": 20}, [["n", "20"]]),
        ({"id": 3, "n": 20}, [["n", "20"]]),
    ]


def test_what_it_waits_for_is_said_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    with ProgressMeter("copying", quiet=True, clock=clock) as meter:
        listener = _Listener(meter, quiet=False)
        for reason in ("", "writers", "writers", "writers", "writers", "", "writers"):
            listener(CopySummary("a", "out", 1, 1), reason)
            clock.advance("4s")
    assert capsys.readouterr().err == "waiting for writers\n"


def test_the_serdes_of_an_application_are_used(console: Console) -> None:
    console.write(
        "app.py",
        "from penstock import Application, Topology\n"
        "topology = Topology().add_source('in', 'out', key_serde='int', value_serde='msgpack')\n"
        "application = Application('app', topology, log='local:mine')\n",
    )
    console.write("rows.jsonl", '{"id": 7}\n')
    console("copy", "rows.jsonl", "out", "--key", "id", "--partitions", "1", "--app", "app:application")
    shown = console.json_lines("consume", "out", "--json", "--app", "app:application")
    assert [(each["key"], each["value"]) for each in shown] == [(7, {"id": 7})]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_followed_file_until_it_is_ended(console: Console, number: int, code: int) -> None:
    file: Path = console.write("rows.jsonl", '{"n": 1}\n')
    process = console.start("copy", "rows.jsonl", "out", "--partitions", "1", "--follow")
    wait_until(lambda: (console.directory / ".penstock" / "log").exists(), "it has begun")

    def copied(count: int) -> bool:
        listed = console.json("topics", "list", "--json")
        return bool(listed) and listed[0]["records"] == count

    wait_until(lambda: copied(1), "the first line is copied")
    with file.open("a") as opened:
        opened.write('{"n": 2}\n')
    wait_until(lambda: copied(2), "the second line is copied")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out == "" and "Traceback" not in err
