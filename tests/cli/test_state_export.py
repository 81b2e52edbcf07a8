"""`penstock state export` to Parquet, and keys whose tasks a partitioner chooses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow
import pytest
from pyarrow import parquet

from penstock.plugins.state.copies import contents
from penstock.plugins.testing.strategies import Line, Order
from penstock.stores.kinds import plain

from .applications import run
from .console import Console
from .test_state import EXPECTED, KINDS, kinds  # noqa: F401

PARTITIONED = """
from penstock import Application, Processor, Topology, key_value_store

class Keep(Processor):
    def process(self, record):
        self.context.get_store("kept").put(record.key, record.value)

def by_first_letter(topic, record, count):
    return ord(record.key[0]) % count

def by_value(topic, record, count):
    return len(record.value) % count

def application(partitioner):
    topology = (
        Topology()
        .add_source("in", "things", key_serde="str", value_serde="str")
        .add_repartition("by-letter", "in", partitions=3, partitioner=partitioner, key_serde="str", value_serde="str")
        .add_processor("keep", Keep, "by-letter", stores=[key_value_store("kept", key_serde="str", value_serde="str")])
    )
    return Application("partitioned", topology)

first, second = application(by_first_letter), application(by_value)
"""


def test_a_pipe_is_written_to_and_a_link_keeps_what_it_names(kinds: Console) -> None:  # noqa: F811
    """A device or a pipe that is replaced by a file is lost to all others: `/dev/null` to the whole machine."""
    target, store = "kinds:application", "numbers"
    run(target, subtopologies=1)
    lines = kinds("state", "export", target, store).stdout
    os.mkfifo("pipe")
    with open(os.open("pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
        kinds("state", "export", target, store, "--output", "pipe")
        assert pipe.read().decode() == lines and Path("pipe").is_fifo()
    Path("link").symlink_to("named")
    Path("named.tmp").write_text("of somebody else")
    kinds("state", "export", target, store, "--output", "link")
    assert Path("link").is_symlink() and Path("named").read_text() == lines
    assert Path("named.tmp").read_text() == "of somebody else"
    assert "choose another file" in kinds("state", "export", target, store, "--output", "no/file", code=1).stderr


def test_portions_of_large_values_end_by_their_bytes(kinds: Console, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """A portion had 20,000 entries of any size, all in memory."""
    target = "kinds:application"
    rows = [{"key": f"k{number:03}", "value": "x" * 1_000, "timestamp": number} for number in range(100)]
    monkeypatch.setattr(plain, "_PORTION_BYTES", 20_000)
    monkeypatch.setattr(contents, "_PORTION_BYTES", 20_000)
    times = {"windows": {"start": 0, "end": 10_000}, "sessions": {"start": 5, "end": 9}}
    for store in ("stamped", "windows", "sessions", "lists"):
        given = [{**row, **times.get(store, {})} for row in rows]
        kinds.write("all.jsonl", "".join(json.dumps(row) + "\n" for row in given))
        copy = ("--application-id", f"copy-of-{store}")
        kinds("state", "import", target, store, "all.jsonl", *copy)
        kinds("state", "export", target, store, "--output", "all.parquet", *copy)
        with parquet.ParquetFile("all.parquet") as file:
            groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        assert sum(groups) == 100 and max(groups) <= 20 + 32, store
        exported = kinds.json_lines("state", "export", target, store, *copy)
        for each, row in zip(exported, given, strict=True):
            assert each == {name: row[name] for name in each if name in row} | {
                name: each[name] for name in ("task", "version")
            }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x" * 500, 500),
        ({"a" * 100: [b"b" * 100, ("c" * 100, None)]}, 300),
        (Order(UUID(int=1), [Line("s" * 100)], {"n" * 50: Line("t" * 50)}), 200),
        (None, 0),
        (5, 0),
    ],
)
def test_the_size_of_a_value_is_about_known(value: Any, expected: int) -> None:
    assert expected <= contents._about_bytes(value, 4) < expected + 150


@pytest.mark.parametrize("store", ["stamped", "expiring", "windows", "sessions", "versions", "lists", "numbers"])
def test_parquet_has_what_json_lines_have(kinds: Console, store: str) -> None:  # noqa: F811
    """With the types of the serdes; those that Arrow does not have are JSON text."""
    target = "kinds:application"
    run(target, subtopologies=1)
    lines = kinds.json_lines("state", "export", target, store)
    assert lines
    kinds("state", "export", target, store, "--output", "all.parquet")
    table = parquet.read_table("all.parquet")
    found: list[dict[str, Any]] = table.to_pylist()
    if store == "numbers":
        assert table.schema.field("key").type == pyarrow.int64()
        found = [{**row, "value": json.loads(row["value"])} for row in found]
    assert found == lines
    assert {
        str(table.schema.field(name).type) for name in ("start", "end", "timestamp") if name in table.schema.names
    } <= {"int64"}


def test_timers_and_what_has_no_columns(kinds: Console) -> None:  # noqa: F811
    target = "kinds:application"
    run(target, subtopologies=1)
    kinds("state", "export", target, "keep.timers", "--output", "timers.parquet")
    found = [{**row, "key": json.loads(row["key"])} for row in parquet.read_table("timers.parquet").to_pylist()]
    assert found == kinds.json_lines("state", "export", target, "keep.timers")
    result = kinds("state", "export", target, "stamped", "--format", "parquet", code=2)
    assert "--format parquet: name the file with --output" in result.stderr


@pytest.mark.parametrize(("store", "options", "expected"), EXPECTED)
def test_a_time(kinds: Console, store: str, options: list[str], expected: list[object]) -> None:  # noqa: F811
    """`range` and `export` show the windows, sessions and versions of a time, as `get` does."""
    target = "kinds:application"
    run(target, subtopologies=1)
    for verb in ("range", "export"):
        json_option = ["--json"] if verb == "range" else []
        found = kinds.json_lines("state", verb, target, store, *options, *json_option)
        rest = [{name: each[name] for name in each if name not in ("task", "version", "key")} for each in found]
        assert rest == expected


def test_the_program_s_partitioner_finds_the_task(console: Console) -> None:
    console.write("partitioned.py", PARTITIONED)
    console("topics", "create", "things")
    lines = [f'{{"key": "{key}", "value": "{key}!"}}' for key in ("ax", "bx", "cx", "ay")]
    console("produce", "things", "--json-lines", "--key-serde", "str", stdin="\n".join(lines) + "\n")
    run("partitioned:first")
    for key in ("ax", "bx", "cx", "ay"):
        [found] = console.json_lines("state", "get", "partitioned:first", "kept", key, "--json")
        assert (found["value"], found["task"]) == (f"{key}!", f"1_{ord(key[0]) % 3}")
    result = console("state", "get", "partitioned:second", "kept", "ax", code=2)
    assert "the partitioner of sink 'by-letter-sink' needs more than the key" in result.stderr
    assert "--all-tasks" in result.stderr
    [found] = console.json_lines("state", "get", "partitioned:second", "kept", "ax", "--json", "--all-tasks")
    assert found["value"] == "ax!"


CLASSES = """
from dataclasses import dataclass, field
from enum import Enum
from typing import NotRequired, TypedDict

from penstock import Application, Processor, Topology, key_value_store
from penstock.serdes import of

class Colour(Enum):
    RED = "red"

class Note(TypedDict):
    text: str
    stars: NotRequired[int]

@dataclass
class Line:
    product: str
    count: int = 1

@dataclass
class Order:
    id: int
    lines: list[Line]
    note: Note
    price: float | None = None
    colour: Colour = Colour.RED
    former: list[int] = field(default_factory=list)

@dataclass
class Tree:
    leaves: list["Tree"] = field(default_factory=list)

OPTIONS = {"key_serde": "str"}
STORES = [
    key_value_store("orders", value_serde=of(Order), **OPTIONS),
    key_value_store("trees", value_serde=of(Tree), **OPTIONS),
    key_value_store("counts", value_serde=of(dict[str, int]), **OPTIONS),
]

class Keep(Processor):
    def process(self, record):
        orders = self.context.get_store("orders")
        orders.put(record.key, Order(1, [Line("tea"), Line("rum", 2)], {"text": "?"}))
        orders.put(record.key + "!", Order(2, [], {"text": "", "stars": 5}, 1.5, former=[1]))
        self.context.get_store("trees").put(record.key, Tree([Tree()]))
        self.context.get_store("counts").put(record.key, {"a": 1})

topology = (
    Topology()
    .add_source("in", "things", key_serde="str", value_serde="str")
    .add_processor("keep", Keep, "in", stores=STORES)
)
application = Application("classes", topology)
"""


def test_classes_are_columns_with_their_fields(console: Console) -> None:
    """And come back from them; what has no fixed fields, or itself as a part, is JSON text."""
    console.write("classes.py", CLASSES)
    console("topics", "create", "things")
    console("produce", "things", "--json-lines", stdin='{"key": "k", "value": "v"}\n')
    target, copy = "classes:application", ("--application-id", "copy")
    run(target, subtopologies=1)
    for store, is_struct in (("orders", True), ("trees", False), ("counts", False)):
        console("state", "export", target, store, "--output", "all.parquet")
        table = parquet.read_table("all.parquet")
        assert pyarrow.types.is_struct(table.schema.field("value").type) is is_struct
        console("state", "import", target, store, "all.parquet", *copy)
        rows = [console.json_lines("state", "export", target, store, *each) for each in ((), copy)]
        assert [each["value"] for each in rows[0]] == [each["value"] for each in rows[1]] != []
    orders = console.json_lines("state", "export", target, "orders", *copy)
    assert ["stars" in each["value"]["note"] for each in orders] == [False, True]
    console("state", "export", target, "orders", "--output", "all.parquet")
    first, second = parquet.read_table("all.parquet").column("value").to_pylist()
    assert first == {
        "id": 1,
        "lines": [{"product": "tea", "count": 1}, {"product": "rum", "count": 2}],
        "note": {"text": "?", "stars": None},
        "price": None,
        "colour": "red",
        "former": [],
    }
    assert (second["price"], second["note"]["stars"], second["former"]) == (1.5, 5, [1])
