"""`Program.describe()` against what Kafka Streams printed, and the order of Java's collections behind it.

`descriptions.json` holds the distinct texts among the 203 recorded with Kafka Streams 4.3.1, `java_order.json` what a
Java 17 made of random names.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Topology, key_value_store
from penstock.plugins.describe.text import TreeSet, hash_set_order
from penstock.support.names import function_name

from .programs import ChosenTopic, Pass, law, parse, rebuild, topologies

HERE = Path(__file__).parent
DESCRIPTIONS = json.loads((HERE / "descriptions.json").read_text(encoding="utf-8"))["descriptions"]
JAVA = json.loads((HERE / "java_order.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("recorded", DESCRIPTIONS, ids=lambda recorded: recorded["case"])
def test_a_description_is_that_of_kafka_streams_byte_for_byte(recorded: dict[str, Any]) -> None:
    assert rebuild(recorded["describe"]).build().describe() == recorded["describe"]


def one_processor(*topics: str, store: str | None = None) -> Topology:
    topology = Topology().add_source("src", *topics)
    topology.add_processor("p", Pass, "src", stores=[key_value_store(store)] if store else [])
    return topology.add_sink("sink", "out", "p")


def forward_children() -> Topology:
    topology = Topology().add_source("src", "in").add_processor("p", Pass, "src")
    topology.add_processor("even", Pass, "p").add_processor("odd", Pass, "p")
    topology.add_sink("s1", "out-even", "even").add_sink("s2", "out-odd", "odd")
    return topology.add_sink("s3", "out-all", ["even", "odd"])


def depth_first() -> Topology:
    topology = Topology().add_source("src", "in").add_processor("a", Pass, "src")
    return topology.add_processor("b", Pass, "a").add_processor("c", Pass, "a").add_sink("s", "out", ["b", "c"])


def shared_store() -> Topology:
    topology = Topology().add_source("src1", "in").add_processor("writer", Pass, "src1").add_source("src2", "lookup")
    topology.add_processor("reader", Pass, "src2").add_store(key_value_store("s"), "writer", "reader")
    return topology.add_sink("s", "out", "reader")


def global_store() -> Topology:
    source, filler = "KSTREAM-SOURCE-0000000000", "KTABLE-SOURCE-0000000001"
    topology = Topology().add_global_store(key_value_store("gs"), source, "g", filler, Pass)
    topology.add_source("KSTREAM-SOURCE-0000000002", "in")
    topology.add_processor("KSTREAM-PROCESSOR-0000000003", Pass, "KSTREAM-SOURCE-0000000002")
    return topology.add_sink("KSTREAM-SINK-0000000004", "out", "KSTREAM-PROCESSOR-0000000003")


BY_HAND = {
    "papi_metadata": lambda: one_processor("in", "in2"),
    "papi_headers": lambda: one_processor("in"),
    "papi_kv_store": lambda: one_processor("in", store="s"),
    "papi_punctuate": lambda: one_processor("in", store="cnt"),
    "papi_forward_children": forward_children,
    "papi_depth_first": depth_first,
    "papi_shared_store": shared_store,
    "papi_global_store": global_store,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_topologies_of_the_processor_api(name: str) -> None:
    (recorded,) = [each["describe"] for each in DESCRIPTIONS if each["topology"] == name]
    assert BY_HAND[name]().build().describe() == recorded


def test_patterns_and_chosen_topics() -> None:
    topology = Topology().add_source("s", pattern=r"orders-\d+").add_sink("t", ChosenTopic("a chooser"), "s")
    assert topology.build().describe() == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: s (topics: orders-\\d+)\n"
        "      --> t\n"
        "    Sink: t (extractor class: a chooser)\n"
        "      <-- s\n"
        "\n"
    )


def test_subtopologies_and_global_stores_are_printed_by_number() -> None:
    topology = Topology().add_source("b", "b").add_global_store(key_value_store("g1"), "y", "y", "y-fill", Pass)
    topology.add_source("a", "a").add_global_store(key_value_store("g2"), "x", "x", "x-fill", Pass)
    heads = [line.strip() for line in topology.build().describe().split("\n") if "Sub-topology" in line]
    assert heads == [
        "Sub-topology: 0",
        "Sub-topology: 1 for global store (will not generate tasks)",
        "Sub-topology: 2",
        "Sub-topology: 3 for global store (will not generate tasks)",
    ]


@law
@given(topologies())
def test_a_description_tells_every_node_store_topic_and_edge(topology: Topology) -> None:
    program = topology.build()
    entries = [entry for _, block in parse(program.describe()) for entry in block]
    assert sorted(entry.name for entry in entries) == sorted(program.nodes)
    for entry in entries:
        node = program.nodes[entry.name]
        assert sorted(entry.predecessors) == sorted(node.parents)
        children = [each.name for each in program.nodes.values() if entry.name in each.parents]
        assert sorted(entry.successors) == sorted(children)
        if entry.what in ("topics", "stores"):
            assert sorted(entry.listed()) == sorted(getattr(node, entry.what))


# ---------------------------------------------------------------- Java's collections


@pytest.mark.parametrize("recorded", JAVA["hash_sets"], ids=lambda recorded: f"{len(recorded['names'])} names")
def test_hash_set_order_is_that_of_java(recorded: dict[str, Any]) -> None:
    assert hash_set_order(recorded["names"]) == recorded["order"]


@pytest.mark.parametrize("recorded", JAVA["tree_sets"], ids=lambda recorded: f"{len(recorded['order'])} names")
def test_tree_set_order_is_that_of_java_when_ranks_change(recorded: dict[str, Any]) -> None:
    size: dict[str, int] = {}
    tree = TreeSet(lambda name: (-size.get(name, 1), name.encode("utf-16-be")))
    for step, name, *by in recorded["steps"]:
        if step == "grow":
            size[name] = size.get(name, 1) + by[0]
        else:
            tree.add(name)
    assert list(tree) == recorded["order"]


@given(st.lists(st.text(), unique=True))
def test_a_tree_set_whose_ranks_stand_still_is_sorted(names: list[str]) -> None:
    tree = TreeSet(lambda name: (0, name.encode("utf-16-be", "surrogatepass")))
    for name in names:
        tree.add(name)
    assert list(tree) == sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


# ---------------------------------------------------------------- names of functions


class Chooser:
    def __call__(self) -> str:
        return ""


def test_a_function_is_named_alike_in_every_run() -> None:
    assert function_name(one_processor) == f"{__name__}.one_processor"
    assert function_name(Chooser) == f"{__name__}.Chooser"
    assert function_name(Chooser()) == f"{__name__}.Chooser"
    assert function_name(functools.partial(one_processor, "x")) == f"partial({__name__}.one_processor)"
    assert function_name(ChosenTopic("as it prints")) == "as it prints"
