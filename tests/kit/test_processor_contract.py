"""ProcessorContract passes right programs, and finds each planted bug."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st

from penstock import BatchProcessor, ConfigError, Record, Topology
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing.contracts.processor import ProcessorContract
from penstock.plugins.testing.strategies import streams
from penstock.settings.application import TopologyBuilder

from ..rotation import of_today
from .planted_cases import CASES, RIGHT, Case
from .planted_programs import SUMS, Sum, counting, running_sums, sums_with_headers
from .planted_visitors import VISITORS, Doubles

LATE = streams(late="5s")
SEEDS = range(int(os.environ.get("PENSTOCK_PLANTED_SEEDS", "1")))
"""`PENSTOCK_PLANTED_SEEDS=10`: each planted bug has to be found with each of ten seeds."""
TESTS = [name for name in vars(ProcessorContract) if name.startswith("test_")]

FINDS = {
    **dict.fromkeys(("WindowsKept", "AllTags", "SchedulesForEachRecord"), "test_state_does_not_grow_for_ever"),
    **dict.fromkeys(("KeepsAllTimes", "KeepsAllInAnAttribute"), "test_state_does_not_grow_for_ever"),
    **dict.fromkeys(
        ("Mails", "CountsCalls", "Sampled", "KeepsDeletedUsers"), "test_records_are_processed_again_after_a_crash"
    ),
    **dict.fromkeys(("InTheClass", "InAClosure", "InAnAttribute", "InTheModule"), "test_tasks_are_reopened"),
    **dict.fromkeys(("InADefault", "FirstSeen", "RandomKey", "SendsAgain"), "test_tasks_are_reopened"),
    **dict.fromkeys(("RoutesByTask", "OnlyInTheSecondTask", "OldUsersOnly"), "test_any_batches"),
    "HashOfTheKey": "test_a_second_process_continues",
    "Unlogged": "test_tasks_move",
    **dict.fromkeys(("NotInTheMorning", "NotOnSundays", "NotAtMidnight", "LocalDays"), "test_in_other_surroundings"),
    **dict.fromkeys(("ThirtyTwoBits", "NothingOfLastYear", "UpToTheNextWeek"), "test_at_other_times"),
    "SharedCache": "test_two_of_it_share_nothing",
    "AHundredAtMost": "test_many_records",
    **{bug.__name__: "test_visits_are_interrupted" for bug in VISITORS},
}
"""The one test that finds it, which is tried first, since the others take long."""


class TestRight(ProcessorContract):
    program = staticmethod(lambda: counting(Sum))
    reference = staticmethod(sums_with_headers)
    records = LATE
    examples = 20


class SumInBatches(Sum, BatchProcessor):
    max_records = 3

    def process_batch(self, records: Sequence[Record]) -> None:
        for record in records:
            self.process(record)


class TestInBatches(TestRight):
    program = staticmethod(lambda: counting(SumInBatches))


def _word_count() -> TopologyBuilder:
    builder = StreamsBuilder()
    lines = builder.stream("lines", value_serde="str").filter(lambda line: line is not None)
    lines.flat_map_values(str.split).group_by(lambda word: word).count(store="counts").to_stream().to(
        "counts", value_serde="int"
    )
    return builder


def _words(records: Iterable[Record]) -> list[tuple[str, int]]:
    seen: dict[str, int] = {}
    answers = []
    for record in records:
        for word in (record.value or "").split():
            seen[word] = seen.get(word, 0) + 1
            answers.append((word, seen[word]))
    return answers


class TestThroughARepartitionTopic(ProcessorContract):
    program = staticmethod(_word_count)
    reference = staticmethod(_words)
    records = streams(values=st.lists(st.sampled_from(["to", "be"]), max_size=3).map(" ".join))
    by_partition = False
    options = {"statestore_cache_max_bytes": 0}
    examples = 10


@pytest.mark.parametrize("name", of_today(list(RIGHT), 2))
def test_a_right_program_passes(name: str) -> None:
    for test in TESTS:
        getattr(_suite(RIGHT[name], examples=3)(), test)()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_a_planted_bug_is_found(name: str, seed: int) -> None:
    suite = _suite(CASES[name], seed=seed)
    tests = sorted(TESTS, key=lambda test: test != FINDS.get(name))
    found = next(filter(None, (_message(getattr(suite(), test)) for test in tests)), "")
    assert found, f"no test of the suite found this: {CASES[name].bug}"


def _suite(case: Case, **attributes: Any) -> type[ProcessorContract]:
    made = {"program": staticmethod(case.program), "reference": staticmethod(case.reference), "records": case.records}
    return type("Suite", (ProcessorContract,), {**made, "shrinks": False, **case.attributes, **attributes})


def _message(test: Callable[[], None]) -> str:
    try:
        test()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def test_a_failure_says_what_was_sent_and_how_to_repeat_it() -> None:
    class Suite(ProcessorContract):
        program = staticmethod(lambda: counting(next(each for each in SUMS if each.__name__ == "InAClosure")))
        reference = staticmethod(running_sums)
        records = LATE
        shrinks = False

    with pytest.raises(AssertionError) as caught:
        Suite().test_tasks_are_reopened()
    text, notes = str(caught.value), "\n".join(caught.value.__notes__)
    assert "the program answered" in text and "Record(" in text and "'sums' was changed while tasks ran" in text
    version, blob = re.search(r"set `replay = \('([^']*)', b'([^']*)'\)`", notes).groups()  # type: ignore[union-attr]
    Suite.replay = version, blob.encode()
    with pytest.raises(AssertionError, match=r"the program answered"):
        Suite().test_tasks_are_reopened()


def test_two_topics_need_two_strategies() -> None:
    class Suite(ProcessorContract):
        program = staticmethod(lambda: Topology().add_source("in", "one", "two").add_sink("out", "all", "in"))
        reference = staticmethod(running_sums)

    with pytest.raises(ConfigError, match=r"reads the topics \['one', 'two'\]: let `records` be a mapping"):
        Suite().test_it_answers_as_the_reference()


def test_each_task_takes_the_records_of_several_topics_in_its_own_order() -> None:
    """The record of another task is late, and before one of this task in its topic: it holds nothing up."""
    users = [Record("other", 1, 10), Record("anna", 2, 5)]

    class Suite(ProcessorContract):
        program = staticmethod(RIGHT["joins"].program)
        reference = staticmethod(RIGHT["joins"].reference)
        records: ClassVar = {"users": st.just(users), "clicks": st.just([Record("anna", 3, 7)])}
        examples = 10

    Suite().test_any_batches()


def test_a_visitor_with_an_argument_needs_one() -> None:
    class Suite(ProcessorContract):
        program = staticmethod(lambda: counting(Doubles))
        reference = staticmethod(running_sums)

    with pytest.raises(ConfigError, match=r"visitors \['count.double'\] of the program take an argument"):
        Suite().test_visits_are_interrupted()


def test_a_program_without_topics_by_name_is_refused() -> None:
    class Suite(ProcessorContract):
        program = staticmethod(lambda: Topology().add_source("in", "one").add_sink("out", lambda record, _: "x", "in"))
        reference = staticmethod(running_sums)

    with pytest.raises(ConfigError, match="writes topics by name"):
        Suite().test_it_answers_as_the_reference()


@pytest.mark.parametrize("answer", [3, "text", ("alone",), None])
def test_a_reference_that_returns_bare_values_is_refused(answer: Any) -> None:
    class Suite(ProcessorContract):
        program = staticmethod(lambda: counting(Sum))
        reference = staticmethod(lambda records: [answer for _ in records])
        records = LATE
        shrinks = False

    with pytest.raises(ConfigError, match=rf"the reference of Suite returned {re.escape(repr(answer))} among its outp"):
        Suite().test_it_answers_as_the_reference()
