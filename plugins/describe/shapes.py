"""The parts of a drawing: shapes, their groups, and edges; and a drawing as text, for Graphviz and for mermaid."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock import Node, ProcessorNode, Program, SinkNode, SourceNode
from penstock.support.names import function_name


@dataclass(frozen=True)
class Shape:
    """Something drawn, with a made-up `id`; `kind` is node, store, topic or open (not one topic)."""

    id: str
    kind: str
    text: str


@dataclass
class Drawing:
    """The parts that all languages draw.

    `groups` hold the shapes inside them, `topics` lie outside; `edges` are (record, store or chosen, from, to).
    """

    program: Program
    groups: list[tuple[str, list[Shape]]] = field(default_factory=list)
    topics: dict[str, Shape] = field(default_factory=dict)
    edges: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids = {name: f"node{number}" for number, name in enumerate(self.program.nodes)}
        blocks: dict[int, tuple[str, tuple[Node, ...]]] = {
            subtopology.id: (f"Sub-topology {subtopology.id}", subtopology.nodes)
            for subtopology in self.program.subtopologies
        }
        for store in self.program.global_stores:
            blocks[store.id] = (f"Sub-topology {store.id}: global store", (store.source, store.processor))
        for _, (title, nodes) in sorted(blocks.items()):
            self._group(title, nodes)

    def _group(self, title: str, nodes: tuple[Node, ...]) -> None:
        shapes = [Shape(self._ids[node.name], "node", node.name) for node in nodes]
        stores: dict[str, Shape] = {}
        for node in nodes:
            for parent in node.parents:
                self._edge("record", self._ids[parent], self._ids[node.name])
            match node:
                case SourceNode():
                    for topic in node.topics:
                        self._edge("record", self._topic(topic).id, self._ids[node.name])
                    if node.pattern is not None:
                        matched = self._open_topic(node, f"all topics like {node.pattern.pattern}")
                        self._edge("chosen", matched.id, self._ids[node.name])
                case ProcessorNode():
                    for store in node.stores:
                        # No clash: a store belongs to one group, and the groups before are drawn.
                        shape = stores.setdefault(
                            store, Shape(f"store{len(self.groups)}_{len(stores)}", "store", store)
                        )
                        self._edge("store", self._ids[node.name], shape.id)
                case SinkNode(topic=str() as topic):
                    self._edge("record", self._ids[node.name], self._topic(topic).id)
                case SinkNode():
                    chosen = self._open_topic(node, f"chosen by {function_name(node.topic)}")
                    self._edge("chosen", self._ids[node.name], chosen.id)
        self.groups.append((title, [*shapes, *stores.values()]))

    def _edge(self, kind: str, one: str, other: str) -> None:
        self.edges.append((kind, one, other))

    def _topic(self, name: str) -> Shape:
        return self.topics.setdefault(name, Shape(f"topic{len(self.topics)}", "topic", name))

    def _open_topic(self, node: Node, text: str) -> Shape:
        # Keyed by something that no topic's name can be.
        return self.topics.setdefault(f" {node.name}", Shape(f"topic{len(self.topics)}", "open", text))


def to_dot(program: Program) -> str:
    """Return the program in Graphviz' language (https://graphviz.org/doc/info/lang.html)."""

    def text(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    def shape(shape: Shape) -> str:
        form = {"node": "", "store": ", shape=cylinder", "topic": ", shape=cds", "open": ", shape=cds, style=dotted"}
        return f"{shape.id} [label={text(shape.text)}{form[shape.kind]}];"

    def group(number: int, title: str) -> tuple[str, ...]:
        return f"  subgraph cluster_{number} {{", f"    label={text(title)};"

    styles = {"record": "", "store": " [dir=none, style=dashed]", "chosen": " [style=dotted]"}
    drawing = Drawing(program)
    edges = [f"  {one} -> {other}{styles[kind]};" for kind, one, other in drawing.edges]
    start = ("digraph topology {", "  node [shape=box];")
    return "\n".join([*start, *_shape_lines(drawing, group, "  }", shape), *edges, "}"]) + "\n"


def to_mermaid(program: Program) -> str:
    """Return the program as a mermaid flowchart (https://mermaid.js.org/syntax/flowchart.html)."""

    def text(text: str) -> str:
        # Labels are Markdown and then HTML. A dot or dash before a space starts a list there.
        return re.sub(r"[^\w .:-]|[.-](?= )", lambda found: f"#{ord(found[0])};", text)

    def shape(shape: Shape) -> str:
        sides = {"node": ("[", "]"), "store": ("[(", ")]"), "topic": ("([", "])"), "open": ("([", "])")}
        left, right = sides[shape.kind]
        return f'{shape.id}{left}"{text(shape.text)}"{right}'

    def group(number: int, title: str) -> tuple[str, ...]:
        return (f'  subgraph group{number}["{text(title)}"]',)

    arrows = {"record": "-->", "store": "---", "chosen": "-.->"}
    drawing = Drawing(program)
    edges = [f"  {one} {arrows[kind]} {other}" for kind, one, other in drawing.edges]
    return "\n".join(["flowchart TD", *_shape_lines(drawing, group, "  end", shape), *edges]) + "\n"


def _shape_lines(
    drawing: Drawing, group: Callable[[int, str], tuple[str, ...]], end: str, shape: Callable[[Shape], str]
) -> list[str]:
    """Return the lines of the groups, each with its shapes, then those of the topics."""
    lines: list[str] = []
    for number, (title, shapes) in enumerate(drawing.groups):
        lines += [*group(number, title), *(f"    {shape(each)}" for each in shapes), end]
    return lines + [f"  {shape(topic)}" for topic in drawing.topics.values()]
