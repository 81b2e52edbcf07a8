"""ProcessorContract passes right programs, and finds each planted bug."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import strategies as st

from penstock import ConfigError, Processor, Record, Topology
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing.contracts.processor import ProcessorContract
from penstock.plugins.testing.strategies import streams
from penstock.settings.topology_builder import TopologyBuilder

from .planted_programs import PLANTED, Sum, counting, running_sums


class TestRight(ProcessorContract):
    program = staticmethod(lambda: counting(Sum))
    reference = staticmethod(running_sums)
    records = streams(late="5s")


def _word_count() -> TopologyBuilder:
    builder = StreamsBuilder()
    words = builder.stream("lines", value_serde="str").flat_map_values(str.split)
    words.group_by(lambda word: word).count(store="counts").to_stream().to("counts", value_serde="int")
    return builder


def _words(records: Iterable[Record]) -> list[tuple[str, int]]:
    seen: dict[str, int] = {}
    answers = []
    for record in records:
        for word in record.value.split():
            seen[word] = seen.get(word, 0) + 1
            answers.append((word, seen[word]))
    return answers


class TestThroughARepartitionTopic(ProcessorContract):
    program = staticmethod(_word_count)
    reference = staticmethod(_words)
    records = streams(values=st.lists(st.sampled_from(["to", "be"]), max_size=3).map(" ".join))
    by_partition = False
    options = {"statestore_cache_max_bytes": 0}


TESTS = [name for name in vars(ProcessorContract) if name.startswith("test_")]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: each.__name__)
def test_a_planted_bug_is_found(planted: type[Processor]) -> None:
    class Suite(ProcessorContract):
        program = staticmethod(lambda: counting(planted, **PLANTED[planted]))
        reference = staticmethod(running_sums)
        shrinks = False

    found = next(filter(None, (_message(getattr(Suite(), name)) for name in TESTS)), "")
    assert found, f"no test of the suite found this: {planted.__doc__}"
    assert "the program answered" in found and "records [" in found


def _message(test: Callable[[], None]) -> str:
    try:
        test()
    except AssertionError as error:
        return str(error)
    return ""


def test_a_program_with_two_topics_is_refused() -> None:
    class Suite(ProcessorContract):
        program = staticmethod(lambda: Topology().add_source("in", "one", "two").add_sink("out", "all", "in"))
        reference = staticmethod(running_sums)

    with pytest.raises(ConfigError, match=r"reads one topic and writes one, found \['one', 'two'\]"):
        Suite().test_it_answers_as_the_reference()
