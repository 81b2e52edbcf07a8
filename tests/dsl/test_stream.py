"""What a notebook and a terminal show: drawings, tables of records, and data frames of what a program answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from penstock import ConfigError, Record, Topology, UnknownTopicError, Windowed, key_value_store
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
    lines = printed(capsys, {"a": 1, "name": "x"}, {"name": "longer"}, None, {"a": 2, "new": True})
    assert [line.removesuffix(f"1970-01-01 00:00:00.00{number}") for number, line in enumerate(lines[2:5])] == [
        "0   | 1 | x    | ",
        "1   | - | longer | ",
        "2   | - | -      | ",
    ]
    assert lines[0] == "key | a | name | timestamp"
    assert lines[5:] == [
        "key | a | name   | new  | timestamp",
        "----+---+--------+------+------------------------",
        "3   | 2 | -      | True | 1970-01-01 00:00:00.003",
    ]


def test_values_without_columns_and_keys_with_a_window(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, 5, None, "a\nb" + 80 * "c", key=lambda number: Windowed(number, 0, 10))
    assert lines[0] == "key    | value | timestamp"
    assert lines[2] == "0@0/10 |     5 | 1970-01-01 00:00:00.000"
    assert lines[3] == "1@0/10 | -     | 1970-01-01 00:00:00.001"
    assert lines[4].split(" | ")[1] == "a b" + 56 * "c" + "…"


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
