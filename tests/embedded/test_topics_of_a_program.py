"""`Application.produce` and `read`: rows with the serdes of the program, on the embedded engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Application, ConfigError, Record, SerdeError, UnknownTopicError
from penstock.dsl import StreamsBuilder, tumbling

ROWS = st.lists(
    st.builds(
        Record,
        st.none() | st.text(max_size=3),
        st.none() | st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2),
        st.integers(0, 10**6),
        st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=2)), max_size=2).map(tuple),
    ),
    max_size=8,
)


def shop(directory: Path, **options: Any) -> Application:
    builder = StreamsBuilder()
    orders = builder.stream("orders", value_serde="json")
    orders.map_values(lambda order: None if order is None else len(order)).to("sizes", value_serde="int")
    counts = orders.group_by_key().windowed_by(tumbling("1s", grace="1h")).count("counts")
    counts.to_stream().to("counts")
    builder.stream(pattern="more-.*", value_serde="float").map_values(round).to("sizes", value_serde="int")
    return Application("shop", builder, engine="embedded", data_dir=str(directory), **options)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(rows=ROWS, partitions=st.integers(1, 3))
def test_rows_are_read_as_they_were_written(
    rows: list[Record], partitions: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    app = shop(tmp_path_factory.mktemp("log"))
    assert app.produce("orders", iter(rows), partitions=partitions) == len(rows)
    found = app.read("orders")
    assert sorted(found, key=repr) == sorted(rows, key=repr)
    for key in {row.key for row in rows if row.key is not None}:
        assert [each for each in found if each.key == key] == [row for row in rows if row.key == key]
    assert [each for number in range(partitions) for each in app.read("orders", partition=number)] == found
    assert app.read("orders", limit=2) == found[:2]


def test_a_run_between(tmp_path: Path) -> None:
    app = shop(tmp_path)
    assert app.produce("orders", [("a", {"x": 1}, 5), ("a", {}, 1_500)], partitions=1) == 2
    for topic in ("sizes", "counts", "more-1"):
        assert app.produce(topic, (), partitions=1) == 0
    assert app.run().records_in == 2 and app.run("available_now").records_in == 0
    assert app.read("sizes") == [Record("a", 1, 5), Record("a", 0, 1_500)]
    windows = [(each.key.key, each.key.start, each.value) for each in app.read("counts")]
    assert windows == [("a", 0, 1), ("a", 1_000, 1)]
    app.produce("orders", [("b", {"y": 2}, 2_000)], partitions=7)  # it is there already
    with app.start() as running:
        app.produce("more-1", [("c", 1.0, 0)])
        assert app.read("more-1") == [Record("c", 1.0, 0)]
        assert running.state
    assert app.read("sizes", value_serde="bytes")[0].value == (1).to_bytes(8, "big")


def test_long_iterators_are_written_by_thousands(tmp_path: Path) -> None:
    app = shop(tmp_path)
    seen: list[int] = []

    def rows() -> Any:
        for number in range(2_500):
            if number in (999, 1_000):
                seen.append(len(app.read("orders")))
            yield ("a", {"n": number}, number) if number != 2_200 else ("a", object())

    with pytest.raises(SerdeError, match="'orders', row 2200: the value") as raised:
        app.produce("orders", rows(), partitions=1)
    assert raised.value.__notes__ == ["the first 2,000 rows are in topic 'orders'"]
    assert len(app.read("orders")) == 2_000 and seen == [0, 1_000]


WRONG: dict[str, tuple[Callable[[Application], Any], type[Exception], str]] = {
    "no topic": (lambda app: app.produce("order", [("a", {})]), UnknownTopicError, "'orders'.*partitions=1"),
    "read no topic": (lambda app: app.read("order"), UnknownTopicError, "orders"),
    "no row": (lambda app: app.produce("orders", cast("Any", ["a"])), ConfigError, "row 0: expected a Record"),
    "value": (lambda app: app.produce("orders", [("a", {}), ("b", object())]), SerdeError, "row 1: the value"),
    "headers": (lambda app: app.produce("orders", [("a", {}, 0, {"x": b""})]), ConfigError, "row 0: headers are pairs"),
    "time": (lambda app: app.produce("orders", [("a", {}, "now")]), ConfigError, "row 0: timestamp"),
    "partition": (lambda app: app.produce("orders", [("a", {})], partition=3), ConfigError, "expected 0 to 0"),
    "read partition": (lambda app: app.read("orders", partition=1), ConfigError, "expected 0 to 0"),
    "limit": (lambda app: app.read("orders", limit=-1), ConfigError, "limit"),
    "serde": (lambda app: app.read("orders", value_serde="int"), SerdeError, "partition 0, offset 0.*value_serde"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str, tmp_path: Path) -> None:
    call, kind, message = WRONG[case]
    app = shop(tmp_path)
    app.produce("orders", [("a", {"x": 1})], partitions=1)
    with pytest.raises(kind, match=message):
        call(app)
    assert len(app.read("orders")) == 1


@pytest.mark.parametrize("call", [lambda app: app.produce("orders", [], partitions=1), lambda app: app.read("orders")])
def test_a_log_that_is_gone_with_its_handle_is_refused(call: Callable[[Application], Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memory:.*local:PATH"):
        call(shop(tmp_path, log="memory:"))
