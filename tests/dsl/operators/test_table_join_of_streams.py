"""Joins of a stream with tables equal a look-up at the right time, and mistakes are said at the verb."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Application, TopologyError, versioned_store
from penstock.plugins.dsl import KStream, StreamsBuilder, within
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples

Input = tuple[str, str, str | None, int]
"""Topic, key, value and time."""
Row = tuple[Any, str, int]

INPUTS = st.lists(
    st.tuples(
        st.sampled_from(["stream", "table"]),
        st.sampled_from(["a", "b", "long" * 100]),
        st.sampled_from(["x", "y", "z", None]),
        st.integers(0, 40),
    ),
    max_size=25,
)


def joined(builder: StreamsBuilder, table: Any, kind: str, **options: Any) -> StreamsBuilder:
    join: Any = KStream.left_join if kind == "left" else KStream.join
    stream = builder.stream("stream", value_serde="str")
    join(stream, table, lambda one, two: f"{one}|{two}", name="j", **options).to("out", value_serde="str")
    return builder


def results(builder: StreamsBuilder, inputs: list[Input], **driver_options: Any) -> list[Row]:
    application = Application("joined", builder, key_serde="str", value_serde="str", store_backend="memory")
    with TopologyTestDriver(application, **driver_options) as driver:
        for topic, key, value, time in inputs:
            driver.pipe(topic, key, value, time)
        return [(record.key, record.value, record.timestamp) for record in driver.read_all("out")]


@pytest.mark.parametrize("kind", ["inner", "left"])
@pytest.mark.parametrize("form", ["table", "global"])
@given(inputs=INPUTS)
@settings(max_examples=15, deadline=None)
def test_each_record_gets_the_value_that_the_table_has_when_it_is_processed(
    kind: str, form: str, inputs: list[Input]
) -> None:
    def program() -> StreamsBuilder:
        builder = StreamsBuilder()
        table: Any = builder.table("table") if form == "table" else builder.global_table("table", "gt")
        return joined(builder, table, kind)

    rows: dict[str, str | None] = {}
    expected: list[Row] = []
    for topic, key, value, time in inputs:
        if topic == "table":
            rows[key] = value
        elif value is not None and (kind == "left" or rows.get(key) is not None):
            expected.append((key, f"{value}|{rows.get(key)}", time))
    assert results(program(), inputs) == expected
    assert results(program(), inputs, reopen_tasks=True) == expected


@pytest.mark.parametrize("kind", ["inner", "left"])
@given(inputs=INPUTS, grace=st.none() | st.integers(0, 15))
@settings(max_examples=examples(25), deadline=None)
def test_a_versioned_table_is_read_as_of_the_record_after_the_grace(
    kind: str, inputs: list[Input], grace: int | None
) -> None:
    def program() -> StreamsBuilder:
        builder = StreamsBuilder()
        table = builder.table("table", versioned_store("t", history_retention="1h"))
        return joined(builder, table, kind, **({} if grace is None else {"grace": f"{grace}ms"}))

    versions: dict[str, dict[int, str | None]] = {}
    waiting: list[tuple[int, str, int, str]] = []
    expected: list[Row] = []

    def join(key: str, value: str, time: int) -> None:
        past = {at: each for at, each in versions.get(key, {}).items() if at <= time}
        found = past[max(past)] if past else None
        if kind == "left" or found is not None:
            expected.append((key, f"{value}|{found}", time))

    inputs = [*inputs, ("stream", "z", "end", 1_000)]
    stream_time = -1
    for number, (topic, key, value, time) in enumerate(inputs):
        if topic == "table":
            versions.setdefault(key, {})[time] = value
        elif value is not None:
            if grace is None or time < stream_time - grace:
                join(key, value, time)
                continue
            stream_time = max(stream_time, time)
            waiting.append((time, key, number, value))
            due = sorted(each for each in waiting if each[0] <= stream_time - grace)
            waiting = [each for each in waiting if each not in due]
            for at, of, _, each in due:
                join(of, each, at)
    assert results(program(), inputs) == expected
    assert results(program(), inputs, reopen_tasks=True) == expected


def test_headers_survive_the_wait() -> None:
    builder = StreamsBuilder()
    table = builder.table("table", versioned_store("t", history_retention="1h"))
    joined(builder, table, "left", grace="10ms")
    with TopologyTestDriver(Application("joined", builder)) as driver:
        driver.pipe("stream", "a", "one", 0, (("h", b"1"), ("none", None)))
        driver.pipe("stream", "a", "two", 20)
        (record,) = driver.read_all("out")
    assert record.headers == (("h", b"1"), ("none", None))


def test_a_global_table_is_joined_by_any_key() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("table")
    stream = builder.stream("stream")
    joined = stream.left_join(
        table, lambda key, left, right: f"{key} {left} {right}", select_key=lambda key, value: value[:1], with_key=True
    )
    joined.to("out", value_serde="str")
    with TopologyTestDriver(Application("joined", builder)) as driver:
        driver.pipe("table", "x", "found")
        driver.pipe("stream", None, "x1")
        driver.pipe("stream", "a", "y1")
        assert [record.value for record in driver.read_all("out")] == ["None x1 found", "a y1 None"]


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["table", "stream"]),
            st.sampled_from(["a", "b", "c", None]),
            st.sampled_from(["a1", "b2", "c3", "", None]),
        )
    ),
    st.booleans(),
)
def test_a_joiner_with_both_keys_gets_those_of_the_record_and_of_the_row(
    inputs: list[tuple[str, str | None, str | None]], keeps_unmatched: bool
) -> None:
    """Law: a result is of the record's key, the selected key, the record's value, and the row that this key has."""

    def select(key: str | None, value: str) -> str | None:
        return value[:1] or None

    builder = StreamsBuilder()
    stream, table = builder.stream("stream"), builder.global_table("table")
    if keeps_unmatched:
        out = stream.left_join(table, lambda *given: repr(given), select_key=select, with_both_keys=True)
    else:
        out = stream.join(table, lambda *given: repr(given), select_key=select, with_both_keys=True)
    out.to("out", value_serde="str")
    rows: dict[str | None, str | None] = {}
    expected: list[tuple[str | None, str]] = []
    for topic, key, value in inputs:
        if topic == "table":
            if key is not None:
                rows[key] = value
        elif value is not None:
            wanted = select(key, value)
            row = None if wanted is None else rows.get(wanted)
            if row is not None or keeps_unmatched:
                expected.append((key, repr((key, wanted, value, row))))
    with TopologyTestDriver(Application("joined", builder)) as driver:
        for topic, key, value in inputs:
            driver.pipe(topic, key, value)
        assert [(record.key, record.value) for record in driver.read_all("out")] == expected


def test_without_select_key_both_keys_are_the_records() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("stream"), builder.global_table("table")
    stream.join(table, lambda *given: repr(given), with_both_keys=True).to("out", value_serde="str")
    with TopologyTestDriver(Application("joined", builder)) as driver:
        driver.pipe("table", "a", "row")
        driver.pipe("stream", "a", "x")
        assert [record.value for record in driver.read_all("out")] == ["('a', 'a', 'x', 'row')"]


# ------------------------------------------------------------------ names and mistakes


def test_both_keys_are_for_global_tables() -> None:
    builder, nothing = StreamsBuilder(), (lambda *given: None)
    stream, table, whole = builder.stream("stream"), builder.table("table"), builder.global_table("whole")
    with pytest.raises(TopologyError, match=r"with_both_keys=True is for joins with a global table.*with_key=True"):
        stream.join(table, nothing, with_both_keys=True)  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="leave the first out"):
        stream.join(whole, nothing, with_key=True, with_both_keys=True)  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match=r"its joiner is called with \(key, row_key, left, right\)"):
        stream.join(whole, lambda key, left, right: None, with_both_keys=True)  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match=r"its select_key is called with \(key, value\)"):
        stream.join(whole, nothing, select_key=str.upper, with_both_keys=True)  # type: ignore[call-overload]


def test_a_rekeyed_stream_goes_through_a_topic_with_the_keys_of_the_table() -> None:
    builder = StreamsBuilder()
    table = builder.table("table", key_serde="int")
    builder.stream("stream").select_key(int).join(table, lambda one, two: two, name="j").to("out")
    program = builder.build().build()
    assert set(program.internal_topics) == {"j-repartition"}
    assert getattr(program.nodes["j-repartition-sink"], "key_serde") == "int"  # noqa: B009


def test_a_join_with_a_table_has_no_window() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("stream"), builder.table("table")
    with pytest.raises(TopologyError, match=r"a join with a table has no window.*table.to_stream\(\)"):
        stream.join(table, lambda one, two: None, within("1s", grace="0s"))  # type: ignore[call-overload]


def test_outer_join_takes_a_stream() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("stream"), builder.table("table")
    with pytest.raises(TopologyError, match="outer_join: expected a KStream, found"):
        stream.outer_join(table, lambda one, two: None, within("1s", grace="0s"))  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="join: expected a KStream, a KTable or a GlobalKTable, found 'table'"):
        stream.join("table", lambda one, two: None)  # type: ignore[call-overload]


def test_grace_needs_versions() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("stream"), builder.table("table")
    with pytest.raises(TopologyError, match="grace needs a table that keeps versions; write"):
        stream.join(table, lambda one, two: None, grace="1s")


def test_options_of_another_join() -> None:
    builder = StreamsBuilder()
    stream, table, whole = builder.stream("stream"), builder.table("table"), builder.global_table("whole")
    with pytest.raises(TopologyError, match="there is no option 'retention' here"):
        stream.join(table, lambda one, two: None, retention="1h")  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="there is no option 'grace' here; there is: select_key"):
        stream.join(whole, lambda one, two: None, grace="1h")  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="its select_key is called with"):
        stream.join(whole, lambda one, two: None, select_key=lambda: None)  # type: ignore[misc, arg-type]


def test_a_global_table_keeps_no_versions() -> None:
    with pytest.raises(TopologyError, match=r"table\(TOPIC, versioned_store"):
        StreamsBuilder().global_table("table", versioned_store("t", history_retention="1h"))


def test_keys_of_stream_and_table_have_one_serde() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("stream", key_serde="str"), builder.table("table", key_serde="int")
    with pytest.raises(TopologyError, match="equal keys would be in different partitions"):
        stream.join(table, lambda one, two: None)
