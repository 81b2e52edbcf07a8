"""`connect`: two streams in one processor, with shared stores and timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import STREAM_TIME, Application, Record, TopologyError, key_value_store
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver

KEPT = [key_value_store("kept")]
STEPS = st.lists(
    st.tuples(st.sampled_from(["first", "second"]), st.sampled_from("ab"), st.none() | st.integers(0, 5)), max_size=20
)


def remember(record: Record, context: Any) -> None:
    """Keep the values of the key, which are changed in place afterwards."""
    kept = context.get_store("kept")
    values = kept.get(record.key) or []
    values.append(record.value)
    kept.put(record.key, values)
    context.timer(record.key, record.timestamp + 5, STREAM_TIME)
    values.append("changed")


def answer(record: Record, context: Any) -> None:
    context.forward(record.with_value([record.value, context.get_store("kept").get(record.key)]))


def forget(key: Any, at: int, context: Any) -> None:
    context.get_store("kept").delete(key)
    context.forward(Record(key, "forgotten", at))


def connected(**options: Any) -> StreamsBuilder:
    builder = StreamsBuilder()
    first, second = builder.stream("first", value_serde="json"), builder.stream("second", value_serde="json")
    both = first.connect(second).process(remember, answer, stores=KEPT, name="match", **options)
    both.to("out", key_serde="str", value_serde="json")
    return builder


@pytest.mark.parametrize("reopen", [False, True], ids=["", "reopened"])
@given(STEPS)
def test_results_are_those_of_plain_python(reopen: bool, steps: list[tuple[str, str, Any]]) -> None:
    kept: dict[str, list[Any]] = {}
    due: dict[str, int] = {}
    expected: list[Any] = []
    with TopologyTestDriver(connected(on_timer=forget), reopen_tasks=reopen) as driver:
        for number, (topic, key, value) in enumerate(steps):
            time = number * 2
            driver.pipe(topic, key, value, time)
            if topic == "first":
                kept.setdefault(key, []).append(value)
                due[key] = time + 5
            else:
                expected.append((key, [value, [*kept[key]] if key in kept else None], time))
            for each, at in sorted(due.items(), key=lambda item: item[1]):
                if at <= time:
                    del due[each], kept[each]
                    expected.append((each, "forgotten", at))
        assert [record[:3] for record in driver.read_all("out")] == expected


@pytest.mark.parametrize("names", [{}, {"name": "match"}], ids=["numbered", "named"])
def test_streams_with_other_keys_are_repartitioned(names: dict[str, str]) -> None:
    builder = StreamsBuilder()
    first = builder.stream("first").map(lambda value: (value[0], value))
    second = builder.stream("second").select_key(lambda value: value[0])
    first.connect(second).process(remember, answer, on_timer=forget, stores=KEPT, **names).to("out", value_serde="json")
    partitions = {"first": 1, "second": 3}
    with TopologyTestDriver(builder, partitions=partitions) as driver:
        driver.pipe("first", "x", "a1", 0)
        driver.pipe("second", "y", "a2", 1)
        assert driver.read_values("out") == [["a2", ["a1"]]]
        if names:
            assert {
                "match-first-repartition",
                "match-second-repartition",
            } <= builder.build().build().internal_topics.keys()


def test_a_stream_is_connected_with_itself() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("first", value_serde="json")
    stream.connect(stream).process(remember, answer, on_timer=forget, stores=KEPT).to("out", value_serde="json")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("first", "a", 1, 0)
        assert driver.read_values("out") == [[1, [1]]]


def test_the_numbers_of_partitions_are_checked() -> None:
    with pytest.raises(TopologyError, match=r"first.*second|second.*first"):
        TopologyTestDriver(connected(), partitions={"first": 1, "second": 2})


def returns(record: Record, context: Any) -> Any:
    return record


def yields(record: Record, context: Any) -> Any:
    yield record


def test_a_record_that_is_returned_is_an_error() -> None:
    builder = StreamsBuilder()
    builder.stream("first").connect(builder.stream("second")).process(returns, answer, name="match").to("out")
    with TopologyTestDriver(builder) as driver, pytest.raises(Exception, match="returned a Record") as raised:
        driver.pipe("first", "a", "x")
    assert "match" in str(raised.value)


def test_a_timer_without_a_function_names_the_node() -> None:
    with TopologyTestDriver(connected()) as driver, pytest.raises(Exception, match="'match'"):
        driver.pipe("first", "a", 1)


WRONG: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "table": (lambda b, s: s.connect(b.table("t")), "connect: expected a KStream, found a KTable.*to_stream"),
    "list": (lambda b, s: s.connect([s]), "connect: expected a KStream"),
    "other builder": (lambda b, s: s.connect(StreamsBuilder().stream("x")), "connect: .*another StreamsBuilder"),
    "keys": (
        lambda b, s: b.stream("x", key_serde="int").connect(b.stream("y", key_serde="str")),
        "connect: the keys of the first stream .*of the second stream",
    ),
    "keys of the application": (
        lambda b, s: s.connect(b.stream("y", key_serde="int")).process(answer, answer),
        "connect: the keys of the first stream .*of the second stream",
    ),
    "one argument": (
        lambda b, s: s.connect(s).process(lambda record: None, answer),
        r"connect\(...\).process: its on_first is called with \(record, context\)",
    ),
    "generator": (lambda b, s: s.connect(s).process(answer, yields), "on_second is a generator"),
    "timer": (lambda b, s: s.connect(s).process(answer, answer, on_timer=answer), r"on_timer .*\(key, at, context\)"),
    "stores": (lambda b, s: s.connect(s).process(answer, answer, stores="kept"), "stores is a list"),
    "verb": (lambda b, s: s.connect(s).count(), "group_by_key"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_when_the_program_is_built(case: str) -> None:
    write, message = WRONG[case]
    builder = StreamsBuilder()
    with pytest.raises((TopologyError, AttributeError), match=message):
        write(builder, builder.stream("in"))
        Application("app", builder)
