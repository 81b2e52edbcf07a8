"""`Program.resolve` case by case; its laws are in test_topology_laws.py."""

from __future__ import annotations

import re

import pytest

from penstock import Assignment, TaskId, TopicPartition, Topology, TopologyError, key_value_store

from .programs import Pass


def counted(topology: Topology, **partitions: int) -> Assignment:
    """Resolve; in the names of topics "_" stands for "-"."""
    return topology.build().resolve({name.replace("_", "-"): count for name, count in partitions.items()}, "app")


def merging() -> Topology:
    return Topology().add_source("a", "a").add_source("b", "b").add_processor("p", Pass, ["a", "b"])


def test_a_subtopology_has_as_many_tasks_as_its_largest_topic() -> None:
    assignment = counted(merging(), a=3, b=1)
    assert assignment.tasks == {
        TaskId(0, 0): (TopicPartition("a", 0), TopicPartition("b", 0)),
        TaskId(0, 1): (TopicPartition("a", 1),),
        TaskId(0, 2): (TopicPartition("a", 2),),
    }
    assert assignment.sources == {0: {"a": "a", "b": "b"}}
    assert assignment.partitions() == {"a": 3, "b": 1}


def test_missing_topics_are_all_named_with_their_sources() -> None:
    topology = merging().add_global_store(key_value_store("gs"), "gsrc", "g", "gfill", Pass)
    with pytest.raises(TopologyError, match=r"no topics 'a' \(source 'a'\), 'g' \(source 'gsrc'\); create them"):
        counted(topology, b=1)
    with pytest.raises(TopologyError, match=r"no topic 'g' \(source 'gsrc'\); create it \(`penstock topics create`\)"):
        counted(topology, a=1, b=1)


def test_a_global_topic_is_read_whole_and_makes_no_task() -> None:
    topology = Topology().add_global_store(key_value_store("gs"), "gsrc", "g", "gfill", Pass)
    assignment = counted(topology, g=2)
    assert assignment.globals == (TopicPartition("g", 0), TopicPartition("g", 1))
    assert assignment.tasks == {}


# ---------------------------------------------------------------- patterns


def test_a_pattern_matches_whole_names() -> None:
    topology = Topology().add_source("s", pattern=r"ab\d")
    assert counted(topology, ab2=1, ab1=2, xab1=1, ab1x=1, ab=1).partitions() == {"ab1": 2, "ab2": 1}


def test_a_pattern_may_match_nothing_yet() -> None:
    assert counted(Topology().add_source("s", pattern="x"), a=1).tasks == {}


def test_a_pattern_leaves_out_the_internal_topics_of_its_application() -> None:
    topology = Topology().add_source("s", pattern=".*").add_repartition("r", "s")
    topology.add_internal_topic("mine").add_sink("out", "mine", "s").add_source("in", "mine")
    found = counted(
        topology,
        a=2,
        app_mine=2,
        app_r_repartition=2,
        app_older_repartition=1,
        app_counts_changelog=1,
        app_x=1,
        apple_repartition=1,
    )
    assert list(found.sources[0]) == ["a", "app-x", "apple-repartition"]


def test_a_topic_that_two_patterns_match_is_refused() -> None:
    topology = Topology().add_source("s", pattern="a.*").add_source("t", pattern=".*b")
    assert counted(topology, a=1, b=1).sources == {0: {"a": "s"}, 1: {"b": "t"}}
    with pytest.raises(TopologyError, match="'ab' matches the pattern of source 't' and belongs to source 's' already"):
        counted(topology, ab=1)


# ---------------------------------------------------------------- co-partitioning


STORE_MESSAGE = (
    "equal numbers of partitions because their records meet in store 's', but 'a' has 3, 'b' has 2; create them"
)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (merging().connect("p", "s").add_store(key_value_store("s")), STORE_MESSAGE),
        (
            Topology()
            .add_source("a", "a")
            .add_source("b", "b")
            .add_processor("p", Pass, "a")
            .add_processor("q", Pass, "b")
            .add_store(key_value_store("s"), "p", "q"),
            STORE_MESSAGE,
        ),
        (Topology().add_source("ab", "a", "b").add_processor("p", Pass, "ab", stores=[key_value_store("s")]), STORE_MESSAGE),
        (Topology().add_source("ab", pattern="[ab]").add_processor("p", Pass, "ab", stores=[key_value_store("s")]), STORE_MESSAGE),
        (merging().copartition("a", "b"), "because sources a, b are declared to be co-partitioned, but"),
    ],
    ids=["two sources", "shared store", "two topics", "pattern", "declared"],
)  # fmt: skip
def test_topics_that_must_be_copartitioned_and_are_not(topology: Topology, message: str) -> None:
    with pytest.raises(TopologyError, match=re.escape(message)):
        counted(topology, a=3, b=2)
    assert len(counted(topology, a=3, b=3).tasks) == 3


def test_only_the_topics_that_meet_in_a_store_need_equal_counts() -> None:
    topology = Topology().add_source("a", "a").add_source("b", "b")
    topology.add_processor("count", Pass, "a", stores=[key_value_store("s")]).add_sink("out", "out", ["count", "b"])
    assert len(counted(topology, a=3, b=2).tasks) == 3


# ---------------------------------------------------------------- internal topics


def test_a_repartition_takes_the_largest_count_upstream() -> None:
    topology = merging().add_repartition("r", "p").add_repartition("second", "r")
    assignment = counted(topology, a=2, b=5, app_r_repartition=5)
    assert assignment.internal == {"app-r-repartition": 5, "app-second-repartition": 5}
    assert assignment.missing == {"app-second-repartition": 5}


def test_a_repartition_with_a_count_passes_it_on() -> None:
    topology = merging().add_repartition("r", "p", partitions=7).add_repartition("second", "r")
    assert counted(topology, a=2, b=5).internal == {"app-r-repartition": 7, "app-second-repartition": 7}


def test_a_repartition_takes_the_count_of_what_it_is_copartitioned_with() -> None:
    topology = merging().add_repartition("r", "p").add_source("t", "t").copartition("r", "t")
    assert counted(topology, a=2, b=5, t=3).internal == {"app-r-repartition": 3}


def test_copartitioned_repartitions_take_the_largest_of_theirs() -> None:
    topology = Topology().add_source("a", "a").add_source("b", "b").add_repartition("x", "a").add_repartition("y", "b")
    topology.add_processor("join", Pass, ["x", "y"], stores=[key_value_store("s")])
    assert counted(topology, a=2, b=5).internal == {"app-x-repartition": 5, "app-y-repartition": 5}


def test_given_counts_that_contradict_are_refused() -> None:
    topology = merging().add_repartition("r", "p", partitions=4).add_source("t", "t").copartition("r", "t")
    with pytest.raises(TopologyError, match="'app-r-repartition' has 4, 't' has 3"):
        counted(topology, a=1, b=1, t=3)


def test_a_subtopology_that_reads_what_it_writes() -> None:
    topology = Topology().add_source("a", "a").add_repartition("r", "a").add_sink("out", "out", ["a", "r"])
    assert counted(topology, a=3).internal == {"app-r-repartition": 3}


def loop() -> Topology:
    """Two sub-topologies, each of which reads what the other writes, and nothing else."""
    topology = Topology().add_internal_topic("there").add_internal_topic("back")
    topology.add_source("x", "there").add_sink("x-out", "back", "x")
    return topology.add_source("y", "back").add_sink("y-out", "there", "y")


def test_a_loop_that_has_no_count_is_refused() -> None:
    with pytest.raises(TopologyError, match="topics 'app-there', 'app-back' take the .* in a loop, .*give partitions="):
        counted(loop())
    entered = loop().add_source("a", "a").add_sink("a-out", "there", "a")
    assert counted(entered, a=2).internal == {"app-there": 2, "app-back": 2}


def test_a_pattern_that_matches_nothing_gives_no_count() -> None:
    with pytest.raises(TopologyError, match="'app-r-repartition' takes the number .* a pattern matches no topic yet"):
        counted(Topology().add_source("s", pattern="x").add_repartition("r", "s"), a=1)


def test_an_internal_topic_that_exists_with_another_count_is_refused() -> None:
    topology = merging().add_repartition("r", "p")
    with pytest.raises(
        TopologyError, match=r"exists with 4 partitions and the program needs 8 \(its sources' topics have"
    ):
        counted(topology, a=8, b=8, app_r_repartition=4)
    topology = merging().add_repartition("r", "p", partitions=2)
    with pytest.raises(
        TopologyError, match=r"exists with 4 partitions .* needs 2 \(partitions=2 is given\); .* set partitions=4"
    ):
        counted(topology, a=8, b=8, app_r_repartition=4)
