"""`with_timestamp` and `with_headers`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Application, Record, TopologyError, skip
from penstock.plugins.dsl import StreamsBuilder, tumbling
from penstock.plugins.testing import TopologyTestDriver

HEADERS = st.lists(st.tuples(st.sampled_from("xy"), st.none() | st.binary(max_size=2)), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(Record, st.none() | st.text(max_size=2), st.none() | st.integers(0, 99), st.integers(0, 99), HEADERS)
)


@given(RECORDS, HEADERS)
def test_other_parts_stay(records: list[Record], headers: Any) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", value_serde="int")
    stream.with_timestamp(lambda value: (value or 0) * 10).to("value")
    stream.with_timestamp(lambda key, value: len(key or ""), with_key=True).to("key")
    stream.with_timestamp(lambda record: record.timestamp + len(record.headers), with_record=True).to("record")
    stream.with_headers(lambda value: headers).to("headers", value_serde="int")
    stream.with_headers(lambda record: [*record.headers, ("x", b"1")], with_record=True).to("more")
    stream.with_headers(lambda key, value: dict(headers), with_key=True).to("mapping")
    with TopologyTestDriver(builder) as driver:
        for each in records:
            driver.pipe("in", *each)
        assert driver.read_all("value") == [each.with_timestamp((each.value or 0) * 10) for each in records]
        assert driver.read_all("key") == [each.with_timestamp(len(each.key or "")) for each in records]
        expected = [each.with_timestamp(each.timestamp + len(each.headers)) for each in records]
        assert driver.read_all("record") == expected
        assert driver.read_all("headers") == [each.with_headers(headers) for each in records]
        assert driver.read_all("more") == [each.with_headers((*each.headers, ("x", b"1"))) for each in records]
        assert driver.read_all("mapping") == [each.with_headers(tuple(dict(headers).items())) for each in records]


def test_verbs_behind_have_the_timestamp() -> None:
    builder = StreamsBuilder()
    timed = builder.stream("in", value_serde="int").with_timestamp(lambda value: value)
    counts = timed.group_by_key().windowed_by(tumbling("10ms", grace="1s")).count("counts")
    counts.to_stream(lambda key, _: key.start, with_key=True).to("out", key_serde="int")
    with TopologyTestDriver(builder) as driver:
        driver.pipe_many("in", [("a", 5), ("a", 15), ("a", 7)])
        assert driver.read_pairs("out") == [(0, 1), (10, 1), (0, 2)]


@pytest.mark.parametrize("made", [None, -1, 1.5, True, "5"])
def test_a_wrong_timestamp_is_a_failed_record(made: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in").with_timestamp(lambda value: made, name="stamp").to("out")
    with TopologyTestDriver(Application("app", builder, processing_handler=skip)) as driver:
        driver.pipe("in", "a", "x")
        assert driver.read_all("out") == []
    with TopologyTestDriver(builder) as driver, pytest.raises(Exception, match="stamp"):
        driver.pipe("in", "a", "x")


@pytest.mark.parametrize(
    "made", [None, "x", b"x", [("x",)], [("x", "text")], {"x": 1}, [(b"x", b"")], {"x": "text"}, 1]
)
def test_wrong_headers_are_a_failed_record(made: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in").with_headers(lambda value: made, name="head").to("out")
    with TopologyTestDriver(builder) as driver, pytest.raises(Exception, match="head"):
        driver.pipe("in", "a", "x")


@pytest.mark.parametrize("verb", ["with_timestamp", "with_headers"])
def test_wrong_functions_are_refused(verb: str) -> None:
    write = getattr(StreamsBuilder().stream("in"), verb)
    with pytest.raises(TopologyError, match=rf"{verb}: its function is called with \(record\)"):
        write(lambda key, value: 1, with_record=True)
    with pytest.raises(TopologyError, match=f"{verb}: with_record=True"):
        write(lambda record: 1, with_record=True, with_key=True)
