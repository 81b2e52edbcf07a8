"""Laws that hold for every topology: how it is divided into sub-topologies, and those into tasks."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock import (
    Assignment,
    ProcessorNode,
    Program,
    SinkNode,
    SourceNode,
    TopicPartition,
    Topology,
    TopologyError,
    key_value_store,
)

from .programs import Pass, law, topologies


@law
@given(topologies())
def test_each_node_is_in_one_subtopology_or_belongs_to_a_global_store(topology: Topology) -> None:
    program = topology.build()
    names = [node.name for each in program.subtopologies for node in each.nodes]
    names += [node.name for each in program.global_stores for node in (each.source, each.processor)]
    assert sorted(names) == sorted(program.nodes)


@law
@given(topologies())
def test_edges_and_stores_connect_a_subtopology_and_nothing_else_does(topology: Topology) -> None:
    program = topology.build()
    for subtopology in program.subtopologies:
        inside = {node.name for node in subtopology.nodes}
        neighbours: dict[str, set[str]] = {name: set() for name in inside}
        for node in subtopology.nodes:
            for parent in node.parents:
                neighbours[node.name].add(parent)
                neighbours[parent].add(node.name)
            for other in subtopology.nodes:
                if (
                    isinstance(node, ProcessorNode)
                    and isinstance(other, ProcessorNode)
                    and {*node.stores} & {*other.stores}
                ):
                    neighbours[node.name].add(other.name)
        reached = [subtopology.nodes[0].name]
        for name in reached:
            reached += [each for each in neighbours[name] if each not in reached]
        assert set(reached) == inside
    homes = [store.name for each in program.subtopologies for store in each.stores]
    assert sorted(homes) == sorted(program.stores), "each store is in one sub-topology"


@law
@given(topologies())
def test_subtopologies_are_numbered_by_their_first_nodes_and_keep_the_order_of_adding(topology: Topology) -> None:
    program = topology.build()
    order = list(program.nodes)
    first = {each.id: order.index(each.nodes[0].name) for each in program.subtopologies}
    first |= {each.id: order.index(each.source.name) for each in program.global_stores}
    assert sorted(first) == list(range(len(first)))
    assert sorted(first, key=lambda number: first[number]) == sorted(first)
    for subtopology in program.subtopologies:
        names = [node.name for node in subtopology.nodes]
        assert names == sorted(names, key=order.index)
        for position, node in enumerate(subtopology.nodes):
            assert {*node.parents} <= {*names[:position]}
        for parent, children in subtopology.children.items():
            assert list(children) == [node.name for node in subtopology.nodes if parent in node.parents]


@law
@given(topologies(), st.data())
def test_every_partition_is_read_by_the_task_of_its_number(topology: Topology, data: st.DataObject) -> None:
    program = topology.build()
    counts, assignment = laid_over(program, data)
    counts = {**counts, **assignment.internal}
    read = Counter(each for partitions in assignment.tasks.values() for each in partitions)
    topics = {topic for sources in assignment.sources.values() for topic in sources}
    assert read == {TopicPartition(topic, n): 1 for topic in topics for n in range(counts[topic])}
    for task, partitions in assignment.tasks.items():
        assert partitions, "no task without input"
        assert {partition.partition for partition in partitions} == {task.partition}
        assert all(partition.topic in assignment.sources[task.subtopology] for partition in partitions)
    for subtopology in program.subtopologies:
        numbers = [task.partition for task in assignment.tasks if task.subtopology == subtopology.id]
        assert numbers == list(range(max(counts[topic] for topic in assignment.sources[subtopology.id])))
    for store in program.global_stores:
        topic = store.source.topics[0]
        assert [each for each in assignment.globals if each.topic == topic] == [
            (topic, n) for n in range(counts[topic])
        ]


@law
@given(topologies(), st.data())
def test_topics_that_meet_in_a_store_have_equal_counts(topology: Topology, data: st.DataObject) -> None:
    program = topology.build()
    counts, assignment = laid_over(program, data)
    counts = {**counts, **assignment.internal}
    for subtopology in program.subtopologies:
        feeds: dict[str, set[str]] = {}
        for node in subtopology.nodes:
            feeds[node.name] = set().union(*(feeds[parent] for parent in node.parents))
            if isinstance(node, SourceNode):
                feeds[node.name] = {
                    topic for topic, name in assignment.sources[subtopology.id].items() if name == node.name
                }
        for store in subtopology.stores:
            users = [n for n in subtopology.nodes if isinstance(n, ProcessorNode) and store.name in n.stores]
            assert len({counts[topic] for user in users for topic in feeds[user.name]}) == 1


@law
@given(topologies(max_nodes=10), st.data())
def test_an_internal_topic_without_a_count_takes_the_largest_upstream(topology: Topology, data: st.DataObject) -> None:
    program = topology.build()
    assume(not program.stores)  # these add reasons of their own, see the law above
    counts, assignment = laid_over(program, data)
    counts = {**counts, **assignment.internal}
    for topic in program.internal_topics.values():
        writers = [each for each in program.subtopologies if any(sink.topic == topic.name for sink in each.sinks)]
        upstream = max(counts[above] for each in writers for above in assignment.sources[each.id])
        assert assignment.internal[f"app-{topic.name}"] == (topic.partitions or upstream)


@law
@given(topologies(), st.data())
def test_a_second_start_creates_nothing_and_changes_nothing(topology: Topology, data: st.DataObject) -> None:
    program = topology.build()
    counts, first = laid_over(program, data)
    assert first.missing == first.internal
    second = program.resolve({**counts, **first.missing}, "app")
    assert not second.missing
    assert (second.tasks, second.internal, second.sources) == (first.tasks, first.internal, first.sources)


@law
@given(topologies(), topologies(max_nodes=4))
def test_what_is_added_behind_leaves_the_numbers_as_they_were(topology: Topology, other: Topology) -> None:
    before = topology.build()
    for node in other.build().nodes.values():
        if isinstance(node, SourceNode):
            topology.add_source(f"later-{node.name}", *(f"later-{topic}" for topic in node.topics))
        elif isinstance(node, SinkNode):
            topology.add_sink(f"later-{node.name}", "later-out", [f"later-{each}" for each in node.parents])
        else:
            topology.add_processor(f"later-{node.name}", Pass, [f"later-{each}" for each in node.parents])
    after = topology.build()
    assert after.subtopologies[: len(before.subtopologies)] == before.subtopologies
    assert after.global_stores == before.global_stores


def laid_over(program: Program, data: st.DataObject) -> tuple[dict[str, int], Assignment]:
    """Lay a program over a log: with drawn counts if they fit, else with one for all."""
    topics = [*program.topics(), "unrelated"]
    counts = dict(
        zip(topics, data.draw(st.lists(st.integers(1, 6), min_size=len(topics), max_size=len(topics))), strict=True)
    )
    with suppress(TopologyError):
        return counts, program.resolve(counts, "app")
    counts = dict.fromkeys(topics, data.draw(st.integers(1, 6)))
    try:
        return counts, program.resolve(counts, "app")
    except TopologyError:
        # The only reason left: given counts of repartition topics that contradict.
        assume(not any(topic.partitions for topic in program.internal_topics.values()))
        raise


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_sources_of_a_shared_store_are_one_subtopology(order: str) -> None:
    topology = Topology()
    for name in order:
        topology.add_source(name, name).add_processor(f"p{name}", Pass, name)
    topology.add_store(key_value_store("s"), "pa", "pb")
    assert [each.id for each in topology.build().subtopologies] == [0]
