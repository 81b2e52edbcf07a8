"""Mermaid, dot, SVG and JSON: what is drawn is read back and compared with the program."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ProcessorNode, Program, SinkNode, SourceNode, StrSerde, Topology, key_value_store
from penstock.plugins.describe.layout import Box, lay_out
from penstock.plugins.describe.shapes import Drawing
from penstock.plugins.dsl import StreamsBuilder, tumbling

from .programs import ChosenTopic, Pass, law, topologies

SVG = "{http://www.w3.org/2000/svg}"
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


def read_svg(text: str) -> Drawn:
    root = ElementTree.fromstring(text)
    shapes = {each.get("data-id", ""): each.findtext(f"{SVG}title", "") for each in root.iter(f"{SVG}g")}
    frames = [each.text or "" for each in root.findall(f"{SVG}text")]
    edges = [each for each in root.iter(f"{SVG}path") if each.get("data-from")]
    pairs = {(shapes[each.get("data-from", "")], shapes[each.get("data-to", "")]) for each in edges}
    return [*frames, *shapes.values()], pairs


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
    ("draw", "read"),
    [(Program.to_mermaid, read_mermaid), (Program.to_dot, read_dot), (Program.to_svg, read_svg)],
    ids=["mermaid", "dot", "svg"],
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
    ("draw", "read"),
    [(Program.to_mermaid, read_mermaid), (Program.to_dot, read_dot), (Program.to_svg, read_svg)],
    ids=["mermaid", "dot", "svg"],
)
@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda name: name != "s"))
def test_any_name_can_be_drawn(draw: Callable[[Program], str], read: Callable[[str], Drawn], name: str) -> None:
    text = draw(Topology().add_source("s", "t").add_processor(name, Pass, "s").build())
    shapes, edges = read(text)
    if read is read_svg:
        name = re.sub(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]", "\ufffd", name)
    assert name in shapes
    assert ("s", name) in edges


def test_a_name_that_looks_like_an_item_of_a_list() -> None:
    topology = Topology().add_source("1. first", "t").add_processor("- second", Pass, "1. first")
    assert {"1. first", "- second"} <= {*read_mermaid(topology.build().to_mermaid())[0]}


def test_patterns_and_chosen_topics_are_drawn() -> None:
    topology = Topology().add_source("s", pattern=r'a"\d').add_sink("t", ChosenTopic("chooser"), "s")
    program = topology.build()
    drawn = read_mermaid(program.to_mermaid()), read_dot(program.to_dot()), read_svg(program.to_svg())
    for shapes, edges in drawn:
        assert {r'all topics like a"\d', "chosen by chooser"} <= {*shapes}
        assert edges == {(r'all topics like a"\d', "s"), ("s", "t"), ("t", "chosen by chooser")}


@law
@given(topologies())
def test_boxes_of_an_image_do_not_overlap_and_arrows_lead_downwards(topology: Topology) -> None:
    program = topology.build()
    drawing = Drawing(program)
    layout = lay_out(drawing)
    boxes = list(layout.boxes.values())
    assert all(box.x >= 0 and box.x + box.width <= layout.width for box in [*boxes, *layout.frames])
    assert all(box.y >= 0 and box.y + box.height <= layout.height for box in [*boxes, *layout.frames])
    assert all(0 <= x <= layout.width and 0 <= y <= layout.height for each in layout.lines.values() for x, y in each)
    for every in (boxes, layout.frames):
        assert not any(overlap(one, other) for one, other in combinations(every, 2))
    for frame, (_, shapes) in zip(layout.frames, drawing.groups, strict=True):
        inside = {shape.id for shape in shapes}
        assert {shape for shape, box in layout.boxes.items() if overlap(box, frame)} == inside
        for kind, one, other in drawing.edges:
            if kind == "record" and {one, other} <= inside:
                assert layout.boxes[one].bottom < layout.boxes[other].y


def overlap(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def test_an_image_of_a_program_that_feeds_itself() -> None:
    program = Topology().add_source("s", "loop").add_processor("p", Pass, "s").add_sink("t", "loop", "p").build()
    layout = lay_out(Drawing(program))
    assert [layout.boxes[each].y for each in ("topic0", "node0", "node1", "node2")] == sorted(
        box.y for box in layout.boxes.values()
    )
    assert ("t", "loop") in read_svg(program.to_svg())[1]
    # The line back goes beside everything.
    assert max(x for x, _ in layout.lines["node2", "topic0"]) > layout.frames[0].x + layout.frames[0].width


def wide_program(parts: int) -> Program:
    """Return a program of so many parts, each with a join, a window and two sub-topologies, under the longest names."""
    builder = StreamsBuilder()
    for number in range(parts):
        stream, table = builder.stream(f"stream-{number}"), builder.table(f"table-{number}")
        joined = stream.filter(str.isalpha).map_values(str.upper).join(table, max)
        windows = joined.group_by(str.lower).windowed_by(tumbling("1m", grace="5s"))
        windows.count().suppress("window_closes").to_stream(lambda key, _: key.key, with_key=True).to("counts")
        joined.to(f"joined-{number}")
    return builder.build().build()


@pytest.mark.parametrize("parts", [1, 4, 10])
def test_an_image_fits_a_page(parts: int) -> None:
    program = wide_program(parts)
    layout = lay_out(Drawing(program))
    assert layout.width <= 900 + 10 * max(0, parts - 4), f"{len(program.nodes)} nodes"


def passes(points: Sequence[tuple[float, float]], box: tuple[float, float, float, float]) -> bool:
    """Whether a piece of a line that goes straight down passes through a box (x, y, width, height)."""
    x, y, width, height = box
    return any(
        a == b and x < a < x + width and min(c, d) < y + height and y < max(c, d) for (a, c), (b, d) in pairwise(points)
    )


def test_no_line_goes_through_a_title_or_past_a_frame_that_is_not_its_own() -> None:
    program = wide_program(4)
    layout = lay_out(Drawing(program))
    texts = ElementTree.fromstring(program.to_svg()).findall(f"{SVG}text")
    titles = [
        (float(each.get("x", 0)), float(each.get("y", 0)) - 12, 7.3 * len(each.text or ""), 14.0) for each in texts
    ]
    assert len(titles) == len(layout.frames) == 8
    assert not [title for title in titles for points in layout.lines.values() if passes(points, title)]
    for frame in layout.frames:
        around = (frame.x, frame.y, frame.width, frame.height)
        own = {each for each, box in layout.boxes.items() if overlap(box, frame)}
        foreign = [points for (one, other), points in layout.lines.items() if not {one, other} & own]
        assert not any(passes(points, around) for points in foreign)


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
            "partition_by": None,
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
        "filled_from": None,
        "key_serde": "int",
        "value_serde": None,
    }
    filled = {"name": "gs", "global": True, "subtopology": 2, "processors": ["gfill"], "backend": None, "logged": False}
    assert document["stores"] == [store, store | filled | {"filled_from": "g", "key_serde": None}]
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
