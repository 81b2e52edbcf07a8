"""Mermaid, dot and JSON: what is drawn is read back and compared with the program."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ProcessorNode, Program, SinkNode, SourceNode, StrSerde, Topology, key_value_store

from .programs import ChosenTopic, Pass, law, topologies

Drawn = tuple[list[str], set[tuple[str, str]]]
"""The text of every shape and group, and the edges by text."""


def read_mermaid(text: str) -> Drawn:
    lines = text.rstrip("\n").split("\n")
    assert lines[0] == "flowchart TD"
    shape = re.compile(r'(?:subgraph )?(\w+)(\[|\[\(|\(\[)"([^"]*)"(\]|\)\]|\]\))')
    shapes: dict[str, str] = {}
    edges = set()
    for line in map(str.strip, lines[1:]):
        if found := shape.fullmatch(line):
            assert found[2] == found[4][::-1].translate(str.maketrans(")]", "([")), line
            assert not re.search(r"[^\w #;.:-]", found[3]), "anything else may mean something to mermaid"
            assert not re.match(r"(-|\w+\.) ", found[3]), "mermaid takes it for an item of a list"
            shapes[found[1]] = re.sub(r"#(\d+);", lambda code: chr(int(code[1])), found[3])
        elif found := re.fullmatch(r"(\w+) (?:-->|---|-\.->) (\w+)", line):
            edges.add((shapes[found[1]], shapes[found[2]]))
        else:
            assert line == "end"
    return list(shapes.values()), edges


def read_dot(text: str) -> Drawn:
    lines = text.rstrip("\n").split("\n")
    assert (lines[0], lines[1].strip(), lines[-1]) == ("digraph topology {", "node [shape=box];", "}")
    label = r'"((?:[^"\\]|\\["\\n])*)"'
    shapes: dict[str, str] = {}
    edges = set()
    for line in map(str.strip, lines[2:-1]):
        if found := re.fullmatch(rf"(\w+) \[label={label}(?:, shape=\w+(?:, style=dotted)?)?\];", line):
            shapes[found[1]] = plain(found[2])
        elif found := re.fullmatch(rf"label={label};", line):
            shapes[f"group {len(shapes)}"] = plain(found[1])
        elif found := re.fullmatch(r"(\w+) -> (\w+)(?: \[(?:dir=none, style=dashed|style=dotted)\])?;", line):
            edges.add((shapes[found[1]], shapes[found[2]]))
        else:
            assert re.fullmatch(r"subgraph cluster_\d+ \{|\}", line)
    return list(shapes.values()), edges


def plain(label: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label)


def expected(program: Program) -> Drawn:
    shapes = [f"Sub-topology {each.id}" for each in program.subtopologies]
    shapes += [f"Sub-topology {each.id}: global store" for each in program.global_stores]
    shapes += [*program.nodes, *(store.name for store in program.all_stores())]
    topics, edges = set(), set()
    for node in program.nodes.values():
        edges |= {(parent, node.name) for parent in node.parents}
        if isinstance(node, SourceNode):
            topics |= {*node.topics}
            edges |= {(topic, node.name) for topic in node.topics}
        elif isinstance(node, ProcessorNode):
            edges |= {(node.name, store) for store in node.stores}
        elif isinstance(node, SinkNode) and isinstance(node.topic, str):
            topics.add(node.topic)
            edges.add((node.name, node.topic))
    return [*shapes, *topics], edges


@pytest.mark.parametrize(
    ("draw", "read"), [(Program.to_mermaid, read_mermaid), (Program.to_dot, read_dot)], ids=["mermaid", "dot"]
)
@law
@given(topology=topologies())
def test_everything_is_drawn_once_and_joined_rightly(
    draw: Callable[[Program], str], read: Callable[[str], Drawn], topology: Topology
) -> None:
    program = topology.build()
    shapes, edges = read(draw(program))
    wanted, wanted_edges = expected(program)
    assert sorted(shapes) == sorted(wanted)
    assert edges == wanted_edges


@pytest.mark.parametrize(
    ("draw", "read"), [(Program.to_mermaid, read_mermaid), (Program.to_dot, read_dot)], ids=["mermaid", "dot"]
)
@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda name: name != "s"))
def test_any_name_can_be_drawn(draw: Callable[[Program], str], read: Callable[[str], Drawn], name: str) -> None:
    text = draw(Topology().add_source("s", "t").add_processor(name, Pass, "s").build())
    shapes, edges = read(text)
    assert name in shapes
    assert ("s", name) in edges


def test_a_name_that_looks_like_an_item_of_a_list() -> None:
    topology = Topology().add_source("1. first", "t").add_processor("- second", Pass, "1. first")
    assert {"1. first", "- second"} <= {*read_mermaid(topology.build().to_mermaid())[0]}


def test_patterns_and_chosen_topics_are_drawn() -> None:
    topology = Topology().add_source("s", pattern=r'a"\d').add_sink("t", ChosenTopic("chooser"), "s")
    for shapes, edges in (read_mermaid(topology.build().to_mermaid()), read_dot(topology.build().to_dot())):
        assert {r'all topics like a"\d', "chosen by chooser"} <= {*shapes}
        assert edges == {(r'all topics like a"\d', "s"), ("s", "t"), ("t", "chosen by chooser")}


def test_json_holds_what_its_documentation_says() -> None:
    topology = Topology().add_source("src", "in", key_serde="str", value_serde=StrSerde(), offset_reset="latest")
    topology.add_processor("p", Pass, "src", stores=[key_value_store("s", backend="memory", key_serde="int")])
    topology.add_sink("chosen", ChosenTopic("chooser"), "p").add_repartition("r", "p", partitions=2)
    topology.add_global_store(key_value_store("gs"), "gsrc", "g", "gfill", Pass)
    document: dict[str, Any] = json.loads(topology.build().to_json())
    assert {key: len(value) for key, value in document.items() if key != "format"} == {
        "subtopologies": 3,
        "stores": 2,
        "topics": 3,
    }
    assert document["format"] == 1
    first, second, third = document["subtopologies"]
    pass_name = f"{Pass.__module__}.Pass"
    assert [(each["id"], each["generates_tasks"]) for each in (first, second, third)] == [
        (0, True),
        (1, True),
        (2, False),
    ]
    assert first["nodes"][:3] == [
        {
            "name": "src",
            "kind": "source",
            "topics": ["in"],
            "pattern": None,
            "children": ["p"],
            "key_serde": "str",
            "value_serde": "penstock.serde.StrSerde",
            "timestamp_extractor": None,
            "offset_reset": "latest",
        },
        {
            "name": "p",
            "kind": "processor",
            "supplier": pass_name,
            "plugin": False,
            "stores": ["s"],
            "parents": ["src"],
            "children": ["chosen", "r-filter"],
        },
        {
            "name": "chosen",
            "kind": "sink",
            "topic": None,
            "topic_chooser": "chooser",
            "parents": ["p"],
            "key_serde": None,
            "value_serde": None,
            "partitioner": None,
        },
    ]
    assert [node["name"] for node in second["nodes"]] == ["r"]
    assert [node["name"] for node in third["nodes"]] == ["gsrc", "gfill"]
    store = {
        "name": "s",
        "kind": "KeyValueStoreSpec",
        "global": False,
        "subtopology": 0,
        "processors": ["p"],
        "backend": "memory",
        "logged": True,
        "key_serde": "int",
        "value_serde": None,
    }
    filled = {"name": "gs", "global": True, "subtopology": 2, "processors": ["gfill"], "backend": None, "logged": False}
    assert document["stores"] == [store, store | filled | {"key_serde": None}]
    assert document["topics"] == [
        {"name": "in", "internal": False, "partitions": None, "sources": ["src"], "sinks": []},
        {"name": "r-repartition", "internal": True, "partitions": 2, "sources": ["r"], "sinks": ["r-sink"]},
        {"name": "g", "internal": False, "partitions": None, "sources": ["gsrc"], "sinks": []},
    ]


@law
@given(topologies())
def test_json_of_any_program(topology: Topology) -> None:
    program = topology.build()
    document = json.loads(program.to_json())
    assert sorted(node["name"] for each in document["subtopologies"] for node in each["nodes"]) == sorted(program.nodes)
    assert {store["name"] for store in document["stores"]} == {store.name for store in program.all_stores()}
    for store in document["stores"]:
        (home,) = [each for each in document["subtopologies"] if each["id"] == store["subtopology"]]
        assert {*store["processors"]} <= {node["name"] for node in home["nodes"]}
