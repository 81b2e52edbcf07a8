"""Optimised and plain forms of one program answer the same."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Application
from penstock.plugins.dsl import KStream, StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples

Stream = KStream[Any, Any]

STEPS: dict[str, Any] = {
    "upper": lambda stream: stream.map_values(str.upper),
    "longer": lambda stream: stream.map_values(lambda value: value + "!"),
    "without a": lambda stream: stream.filter(lambda value: "a" not in value.lower()),
    "peek": lambda stream: stream.peek(lambda value: None),
    "by length": lambda stream: stream.select_key(lambda value: str(len(value))),
}

MERGES = {"merge": lambda stream, more: stream.merge(more), "merge into": lambda stream, more: more.merge(stream)}

Program = tuple[bool, list[tuple[list[str], str]]]
"""Whether two streams are merged first, and for each consumer its steps and what it does."""

PROGRAMS: st.SearchStrategy[Program] = st.tuples(
    st.booleans(),
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(sorted([*STEPS, *MERGES])), max_size=3), st.sampled_from(["count", "reduce", "to"])
        ),
        min_size=1,
        max_size=4,
    ),
)


def written(program: Program) -> StreamsBuilder:
    merges, consumers = program
    builder = StreamsBuilder()
    rekeyed: Stream = builder.stream("in").select_key(lambda value: value[:1] or None)
    more = builder.stream("more").select_key(lambda value: value[-1:] or None)
    if merges:
        rekeyed = rekeyed.merge(more)
    for number, (steps, what) in enumerate(consumers):
        stream: Any = rekeyed
        for step in steps:
            stream = MERGES[step](stream, more) if step in MERGES else STEPS[step](stream)
        if what == "count":
            stream = stream.group_by_key().count(f"s{number}").to_stream().map_values(str)
        elif what == "reduce":
            stream = stream.group_by_key().reduce(lambda one, two: one + two, f"s{number}").to_stream()
        stream.to(f"out-{number}")
    return builder


def answers(program: Program, records: list[tuple[bool, str]], optimization: str) -> dict[str, list[tuple[Any, Any]]]:
    application = Application("app", written(program), topology_optimization=optimization)
    with TopologyTestDriver(application, partitions=2) as driver:
        for number, (is_more, value) in enumerate(records):
            driver.pipe("more" if is_more else "in", None, value, timestamp=number)
        found = {topic: driver.read_all(topic) for topic in driver.output_topics()}
    return {topic: sorted((str(each.key), each.value) for each in some) for topic, some in found.items()}


BOTH = [(is_more, value) for value in ("ab", "ba", "b", "aab") for is_more in (False, True)]


@settings(max_examples=examples(30), deadline=None)
@given(PROGRAMS, st.lists(st.tuples(st.booleans(), st.text("ab", max_size=3)), max_size=8))
@example((False, [(["without a"], "count"), (["without a", "merge"], "count")]), BOTH)
@example((False, [([], "count"), (["merge"], "count")]), BOTH)
@example((False, [([], "reduce"), (["peek", "merge into"], "count"), (["by length", "merge"], "reduce")]), BOTH)
def test_the_same_answers_with_merged_repartition_topics(program: Program, records: list[tuple[bool, str]]) -> None:
    assert answers(program, records, "all") == answers(program, records, "none")


def test_consumers_of_one_change_of_keys_share_a_topic() -> None:
    consumers: Program = (False, [(["peek"], "count"), (["without a"], "reduce"), (["upper"], "count")])

    def topics(optimization: str) -> list[str]:
        application = Application("app", written(consumers), topology_optimization=optimization)
        return list(application.program.internal_topics)

    assert topics("none") == ["s0-repartition", "s1-repartition", "s2-repartition"]
    # What changes values in between keeps a topic of its own: another value is written to it.
    assert topics("all") == ["s0-repartition", "s2-repartition"]


def test_two_groupings_behind_one_verb_share_a_topic() -> None:
    builder = StreamsBuilder()
    kept = builder.stream("in").select_key(lambda value: value[:1]).filter(lambda value: "b" not in value)
    for number in range(2):
        kept.group_by_key().count(f"s{number}").to_stream().map_values(str).to(f"out-{number}")
    application = Application("app", builder, topology_optimization="all")
    assert list(application.program.internal_topics) == ["s0-repartition"]
    with TopologyTestDriver(application, partitions=2) as driver:
        for value in ("a", "ab", "a"):
            driver.pipe("in", None, value)
        for number in range(2):
            assert [(each.key, each.value) for each in driver.read_all(f"out-{number}")] == [("a", "1"), ("a", "2")]


def test_the_nodes_of_a_merged_topic_are_named_after_it() -> None:
    builder = StreamsBuilder()
    builder.stream("in").select_key(lambda value: value).to_table("t").to_stream().to("out")
    nodes = Application("app", builder, topology_optimization="all").program.nodes
    topic = "KSTREAM-TOTABLE-0000000002-repartition"
    assert {f"{topic}-filter", f"{topic}-sink", f"{topic}-source"} < set(nodes)
