"""What a notebook and a terminal show: drawings, tables of records, and data frames of what a program answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from penstock import ConfigError, Record, Topology, TopologyError, UnknownTopicError, Windowed, key_value_store
from penstock.plugins.dsl import KStream, StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver


def test_everything_that_has_a_program_draws_it(caplog: pytest.LogCaptureFixture) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("words").filter(str.isalpha)
    table = stream.group_by(lambda value: value).count()
    table.to_stream().to("counts", value_serde="int")
    caplog.set_level(logging.INFO)
    shown = builder._repr_mimebundle_()
    assert not caplog.records, "to look at a program is not to run it"
    topology = builder.build()
    assert "numbered names" in caplog.text
    assert shown["text/plain"] == topology.build().describe()
    drawn = ElementTree.fromstring(shown["image/svg+xml"])
    texts = {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}title")}
    assert {"words", "counts", "KSTREAM-FILTER-0000000001", "KSTREAM-AGGREGATE-STATE-STORE-0000000003"} <= texts
    for each in (stream, table, topology, topology.build()):
        assert each._repr_mimebundle_(include=None) == shown


def test_what_is_not_complete_says_so() -> None:
    why = "the topology is empty: builder.stream(TOPIC) is the first step"
    assert StreamsBuilder()._repr_mimebundle_() == {"text/plain": f"StreamsBuilder, which is not complete: {why}"}
    topology = Topology().add_source("s", "in").add_store(key_value_store("counts"))
    assert topology._repr_mimebundle_()["text/plain"].startswith("Topology, which is not complete: store 'counts' is")


# -- tables of records


def printed(capsys: pytest.CaptureFixture[str], *values: Any, key: Callable[[Any], Any] = str) -> list[str]:
    """What is printed for values, each with its place as key."""
    builder = StreamsBuilder()
    stream = builder.stream("in", value_serde="msgpack")
    stream.map(lambda value: (key(value[0]), value[1])).print_table(name="shown")
    with TopologyTestDriver(builder) as driver:
        for number, value in enumerate(values):
            driver.pipe("in", None, (number, value), number)
    return capsys.readouterr().out.splitlines()


def test_a_table_has_a_column_for_each_entry_and_gets_wider(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, {"a": 1, "name": "x"}, {"name": "longer name"}, None, {"a": 2, "new": True})
    assert [line.partition("| 1970")[0].rstrip() for line in lines] == [
        "[KSTREAM-MAP-0000000001]",
        "key      | a        | name     | timestamp",
        "---------+----------+----------+------------------------",
        "0        |        1 | x",
        "key      | a        | name        | timestamp",
        "---------+----------+-------------+------------------------",
        "1        | -        | longer name",
        "2        | -        | -",
        "key      | a        | name        | new      | timestamp",
        "---------+----------+-------------+----------+------------------------",
        "3        |        2 | -           | True",
    ]


def test_every_row_has_its_columns_above_it_whatever_other_tables_print(capsys: pytest.CaptureFixture[str]) -> None:
    builder = StreamsBuilder()
    for topic in ("one", "two"):
        builder.stream(topic, value_serde="json").print_table(label=topic, columns=["b"])
    with TopologyTestDriver(builder) as driver:
        for topic in ("one", "one", "two", "one"):
            driver.pipe(topic, topic, {"a": 1, "b": 2}, 0)
    lines = capsys.readouterr().out.splitlines()
    heads = ["key      | b        | timestamp", "---------+----------+------------------------"]
    row = "{}      |        2 | 1970-01-01 00:00:00.000"
    assert lines == [
        *("[one]", *heads, row.format("one"), row.format("one")),
        *("[two]", *heads, row.format("two")),
        *("[one]", *heads, row.format("one")),
    ]


def test_values_without_columns_and_keys_with_a_window(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, 5, None, "a\nb" + 80 * "c", key=lambda number: Windowed(number, 0, 10))
    assert lines[1] == "key      | value    | timestamp"
    assert lines[3] == "[0@0/10] |        5 | 1970-01-01 00:00:00.000"
    assert lines[4] == "[1@0/10] | -        | 1970-01-01 00:00:00.001"
    assert lines[7].split(" | ")[1] == "a b" + 56 * "c" + "…"


def test_columns_of_a_table_are_names() -> None:
    with pytest.raises(TopologyError, match="print_table: columns: expected names of entries in a list, found 'b'"):
        StreamsBuilder().stream("in").print_table(columns="b")


# -- what a terminal shows of a part of a program


def test_a_part_of_a_program_says_what_it_is() -> None:
    builder = StreamsBuilder()
    assert repr(builder).startswith("<StreamsBuilder, which is not complete: the topology is empty")
    stream = builder.stream("words")
    grouped = stream.group_by(lambda word: word, name="by-word")
    table = grouped.count("counts")
    table.to_stream().to("counts", value_serde="int")
    assert repr(stream) == "<KStream of KSTREAM-SOURCE-0000000000>"
    assert repr(grouped) == "<KGroupedStream>"
    assert repr(table) == "<KTable of KSTREAM-AGGREGATE-0000000002, store 'counts'>"
    assert repr(builder.global_table("users", "users")) == "<GlobalKTable, store 'users'>"
    shown = "10 nodes, 2 stores, 2 sub-topologies; reads words, users; writes counts>"
    assert repr(builder) == f"<StreamsBuilder: {shown}"
    assert repr(builder.build()) == f"<Topology: {shown}"
    assert repr(builder.build().build()) == f"<Program: {shown}"


def test_a_topology_describes_itself() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    assert builder.describe() == builder.build().describe() == builder.build().build().describe()
    with pytest.raises(TopologyError, match="the topology is empty"):
        StreamsBuilder().describe()


# -- data frames


def rows(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    times = frame.select_dtypes("datetimetz").columns
    plain = frame.assign(**{name: frame[name].astype("int64") // 10**6 for name in times})
    return [tuple(row) for row in plain.itertuples(index=False)]


def test_a_data_frame_has_the_records_of_any_stream_of_a_program() -> None:
    builder = StreamsBuilder()
    words = builder.stream("words").flat_map_values(str.split)
    upper = words.map_values(str.upper)
    counts = words.group_by(lambda word: word).count().to_stream()
    counts.to("counts", value_serde="int")
    shown = builder._repr_mimebundle_()
    records = [("k", "a b", 5), ("k", "a", 9)]
    assert rows(words.to_pandas({"words": records})) == [("k", "a", 5), ("k", "b", 5), ("k", "a", 9)]
    assert rows(upper.to_pandas({"words": records}, limit=2)) == [("k", "A", 5), ("k", "B", 5)]
    assert rows(counts.to_pandas({"words": records}, topology_optimization="all")) == [
        ("a", 1, 5),
        ("b", 1, 5),
        ("a", 2, 9),
    ]
    assert rows(builder.stream("words").to_pandas({"words": records}, limit=1)) == [("k", "a b", 5)]
    assert builder._repr_mimebundle_()["text/plain"].count("Processor") == shown["text/plain"].count("Processor")


def test_a_data_frame_of_a_table_has_its_rows_at_the_end() -> None:
    builder = StreamsBuilder()
    table = builder.table("users", value_serde="json", key_serde="json").filter(lambda user: user["age"] > 17)
    given = [
        ({"id": 1}, {"age": 20}, 1),
        ({"id": 2}, {"age": 30}, 2),
        ({"id": 1}, {"age": 40}, 3),
        ({"id": 2}, None, 4),
    ]
    assert rows(table.to_pandas({"users": given})) == [({"id": 1}, 40, 3)]
    assert rows(table.to_pandas({"users": given}, limit=2)) == [({"id": 1}, 20, 1), ({"id": 2}, 30, 2)]
    assert "to-pandas" not in builder.describe()


def test_topics_are_read_in_the_order_of_time_and_no_further_than_needed() -> None:
    builder = StreamsBuilder()
    both = builder.stream("a", "b")
    given: dict[str, Any] = {"b": [("x", "1", 4), ("x", "2", 1)], "a": [("y", "3", 4), Record("y", "4", 3)]}
    assert rows(both.to_pandas(given)) == [("x", "1", 4), ("x", "2", 1), ("y", "3", 4), ("y", "4", 3)]

    def forever() -> Any:
        number = 0
        while True:
            yield "k", str(number), number
            number += 1

    frame = both.to_pandas({"a": forever(), "b": [("z", "z")]}, limit=3)
    assert (frame["key"].to_list(), frame["value"].to_list()) == (["z", "k", "k"], ["z", "0", "1"])


@dataclass
class Order:
    key: str
    amount: int


def test_columns_of_values_and_windows() -> None:
    def frame(function: Callable[[str], Any], values: str = "ab") -> pd.DataFrame:
        stream: KStream[Any, Any] = StreamsBuilder().stream("in").map(function)
        return stream.to_pandas({"in": [("k", value, 7) for value in values]})

    orders = frame(lambda value: (Windowed("k", 0, 10), Order(value, 3)))
    assert list(orders.columns) == ["key", "window_start", "window_end", "value.key", "amount", "timestamp"]
    assert rows(orders) == [("k", 0, 10, "a", 3, 7), ("k", 0, 10, "b", 3, 7)]
    mixed = frame(lambda value: ("k", {"x": 1} if value == "a" else 5))
    assert rows(mixed) == [("k", {"x": 1}, 7), ("k", 5, 7)]
    assert list(frame(lambda value: ("k", None)).columns) == ["key", "value", "timestamp"]
    empty = frame(lambda value: ("k", value), "")
    assert (list(empty.columns), len(empty)) == (["key", "value", "timestamp"], 0)


@pytest.mark.parametrize(
    ("inputs", "limit", "message"),
    [
        ([("k", "v")], None, r"to_pandas: expected records by topic, \{TOPIC: \[\(key, value, timestamp\)\]\}"),
        ({"in": ["v"]}, None, r"topic 'in': expected a Record, \(key, value\).* found 'v'"),
        ({"in": []}, -1, "limit is a number of records, found -1"),
        ({"other": [("k", "v")]}, None, "no source reads topic 'other'; the sources read: in"),
    ],
)
def test_what_is_no_input(inputs: Any, limit: Any, message: str) -> None:
    with pytest.raises((ConfigError, UnknownTopicError), match=message):
        StreamsBuilder().stream("in").to_pandas(inputs, limit=limit)
