"""The test driver's batches: which records a task takes before it commits, and what a commit shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigError, Processor, Record, SerdeError, Topology
from penstock.plugins.testing import TopologyTestDriver
from penstock.plugins.testing.driver import oldest_first
from penstock.plugins.testing.strategies import streams
from penstock.record import TopicPartition

from .planted_programs import LastOfTheCommit, Sum, counting, running_sums

WAITING = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["one", "two"]), st.integers(0, 2)),
    st.lists(st.integers(0, 9), min_size=1, max_size=5).map(
        lambda stamps: [(stamp, offset + 1) for offset, stamp in enumerate(stamps)]
    ),
    max_size=4,
)


@given(waiting=WAITING, most=st.integers(1, 12))
def test_the_oldest_records_are_taken(waiting: dict[TopicPartition, list[tuple[int, int]]], most: int) -> None:
    ends = oldest_first(waiting, most)
    assert sum(ends.values()) == min(most, sum(map(len, waiting.values())))
    for each, end in ends.items():
        last = max(stamp for stamp, _ in waiting[each][:end])
        for other in waiting:
            if (left := waiting[other][ends.get(other, 0) :]) and other not in ends:
                assert left[0][0] >= min(stamp for stamp, _ in waiting[each][:end]), (ends, last)


@given(sent=streams(late="5s"), commit_every=st.integers(1, 5), together=st.booleans())
def test_answers_do_not_depend_on_batches(sent: list[Record], commit_every: int, together: bool) -> None:
    with TopologyTestDriver(counting(Sum), commit_every=commit_every) as driver:
        if together:
            driver.pipe_many("words", sent)
        else:
            driver.pipe_all("words", sent)
        assert [tuple(record[:3]) for record in driver.read_all("counts")] == running_sums(sent)


@pytest.mark.parametrize(("commit_every", "expected"), [(1, [1, 3, 6, 10, 15]), (2, [3, 10, 15]), (5, [15]), (9, [15])])
def test_a_cached_store_forwards_at_each_commit(commit_every: int, expected: list[int]) -> None:
    program = counting(LastOfTheCommit, cached=True)
    with TopologyTestDriver(program, commit_every=commit_every) as driver:
        driver.pipe_many("words", [Record("k", value, value) for value in range(1, 6)])
        assert [record.value for record in driver.read_all("counts")] == expected


class Commits(Processor):
    """Asks for a commit with each record."""

    def process(self, record: Record) -> None:
        self.context.forward(record)


def test_records_of_several_topics_are_there_before_one_is_processed() -> None:
    topology = Topology().add_source("in", "late", "early", value_serde="int")
    topology = topology.add_processor("pass", Commits, "in").add_sink("out", "all", "pass", value_serde="int")
    with TopologyTestDriver(topology, commit_every=3) as driver:
        late, early = [Record("k", 2, 20), Record("k", 4, 40)], [Record("k", 1, 10), Record("k", 3, 30)]
        driver.pipe_many({"late": late, "early": early})
        assert [record.value for record in driver.read_all("all")] == [1, 2, 3, 4]
        assert driver.sent("early") == [early]


def test_nothing_is_sent_when_a_record_cannot_be() -> None:
    with TopologyTestDriver(counting(Sum)) as driver:
        with pytest.raises(SerdeError):
            driver.pipe_many("words", [Record("k", 1, 0), Record("k", "one", 0)])
        assert driver.sent("words") == [[]]


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3"])
def test_a_number_of_records_is_asked_for(wrong: object) -> None:
    with pytest.raises(ConfigError, match=f"commit_every: expected a number of records from 1 on, found {wrong!r}"):
        TopologyTestDriver(counting(Sum), commit_every=wrong)  # type: ignore[arg-type]


class Greets(Processor):
    def process(self, record: Record) -> None:
        self.context.metrics.user["greeted"] += 1


def test_counters_of_a_processor_add_up_over_batches() -> None:
    topology = Topology().add_source("in", "in").add_processor("greets", Greets, "in")
    with TopologyTestDriver(topology) as driver:
        driver.pipe("in", "a", "x")
        driver.pipe("in", "a", "y")
        assert driver.metrics()["greets"].user == {"greeted": 2}
