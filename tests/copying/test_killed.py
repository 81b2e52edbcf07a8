"""SIGKILL at any moment: after the last start each row is in the topic once, in order per key."""

from __future__ import annotations

import json
import random
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Settings
from penstock.plugins.engine.task.locations import open_log

from ..kafka.names import fresh_name
from ..processes import Child
from .reading import records

ROUNDS = 10


def place_of(kind: str, rows: int, directory: Path, request: pytest.FixtureRequest) -> str:
    """Write the rows, and return the place of the source."""
    if kind == "lines":
        file = directory / "rows.jsonl"
        file.write_text("".join(f'{{"id": {n % 7}, "n": {n}}}\n' for n in range(rows)))
        return str(file)
    if kind == "parquet":
        (directory / "rows").mkdir()
        for first in range(0, rows, 5_000):
            numbers = range(first, first + 5_000)
            table = pa.table({"id": [n % 7 for n in numbers], "n": list(numbers)})
            pq.write_table(table, directory / "rows" / f"{first:06}.parquet", row_group_size=640)
        return str(directory / "rows")
    server = request.getfixturevalue("postgres")
    server.query("CREATE TABLE orders (id int, n int PRIMARY KEY)")
    server.query("INSERT INTO orders SELECT n %% 7, n FROM generate_series(0, %s) AS n", rows - 1)
    return str(server.dsn)


@pytest.mark.parametrize(
    ("name", "kind", "rows"),
    [
        ("local", "lines", 40_000),
        ("local", "parquet", 40_000),
        pytest.param("kafka", "postgres", 8_000, marks=pytest.mark.broker),
    ],
)
def test_each_row_is_written_once_whenever_it_is_killed(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, kind: str, rows: int
) -> None:
    choices = random.Random(f"{name} {kind}")
    place = place_of(kind, rows, tmp_path, request)
    at = f"local:{tmp_path}/log" if name == "local" else f"kafka:{request.getfixturevalue('broker').bootstrap}"
    topic = fresh_name("out")
    with closing(open_log(Settings(log=at))) as log:
        log.create_topic(topic, 3)
        for _ in range(ROUNDS):
            with Child("-m", "tests.copying.killed", at, topic, kind, place) as child:
                assert child.line()  # it copies
                # Some time of a few commits later, in the middle of anything.
                threading.Event().wait(choices.uniform(0, 0.08))
                assert child.poll() is None
        with Child("-m", "tests.copying.killed", at, topic, kind, place) as child:
            assert child.stdout is not None
            assert child.stdout.read().split()[-1] == "done"
        check(records(log, topic), rows)


def check(found: dict[int, list[Any]], rows: int) -> None:
    by_key: dict[bytes, list[int]] = {}
    for partition in found.values():
        for record in partition:
            by_key.setdefault(record.key, []).append(json.loads(record.value)["n"])
    assert by_key == {key.to_bytes(8, "big"): [*range(key, rows, 7)] for key in range(7)}
