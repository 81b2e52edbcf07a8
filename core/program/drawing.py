"""Drawings of a program, with its topics and stores: mermaid flowcharts and Graphviz dot."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..names import function_name
from .nodes import Graph, Node, ProcessorNode, SinkNode, SourceNode


def to_mermaid(program: Graph) -> str:
    """Return the program as a mermaid flowchart (https://mermaid.js.org/syntax/flowchart.html)."""
    drawing = _Drawing(program)
    lines = ["flowchart TD"]
    for number, (title, shapes) in enumerate(drawing.groups):
        lines.append(f'  subgraph group{number}["{_mermaid_text(title)}"]')
        lines += [f"    {_mermaid_shape(shape)}" for shape in shapes]
        lines.append("  end")
    lines += [f"  {_mermaid_shape(shape)}" for shape in drawing.topics.values()]
    arrows = {"record": "-->", "store": "---", "chosen": "-.->"}
    lines += [f"  {one} {arrows[kind]} {other}" for kind, one, other in drawing.edges]
    return "\n".join(lines) + "\n"


def to_dot(program: Graph) -> str:
    """Return the program in Graphviz' language (https://graphviz.org/doc/info/lang.html)."""
    drawing = _Drawing(program)
    lines = ["digraph topology {", "  node [shape=box];"]
    for number, (title, shapes) in enumerate(drawing.groups):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_dot_text(title)};"]
        lines += [f"    {_dot_shape(shape)}" for shape in shapes]
        lines.append("  }")
    lines += [f"  {_dot_shape(shape)}" for shape in drawing.topics.values()]
    styles = {"record": "", "store": " [dir=none, style=dashed]", "chosen": " [style=dotted]"}
    lines += [f"  {one} -> {other}{styles[kind]};" for kind, one, other in drawing.edges]
    return "\n".join([*lines, "}"]) + "\n"


@dataclass(frozen=True)
class _Shape:
    """Something drawn.

    `id` is made up, since names may hold anything; `kind` is node, store, topic or open (not one topic).
    """

    id: str
    kind: str
    text: str


@dataclass
class _Drawing:
    """What either language draws.

    `groups` hold the shapes inside them, `topics` lie outside; `edges` are (record, store or chosen, from, to).
    """

    program: Graph
    groups: list[tuple[str, list[_Shape]]] = field(default_factory=list)
    topics: dict[str, _Shape] = field(default_factory=dict)
    edges: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids = {name: f"node{number}" for number, name in enumerate(self.program.nodes)}
        blocks: dict[int, tuple[str, tuple[Node, ...]]] = {
            each.id: (f"Sub-topology {each.id}", each.nodes) for each in self.program.subtopologies
        }
        for store in self.program.global_stores:
            blocks[store.id] = (f"Sub-topology {store.id}: global store", (store.source, store.processor))
        for _, (title, nodes) in sorted(blocks.items()):
            self._group(title, nodes)

    def _group(self, title: str, nodes: tuple[Node, ...]) -> None:
        shapes = [_Shape(self._ids[node.name], "node", node.name) for node in nodes]
        stores: dict[str, _Shape] = {}
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
                            store, _Shape(f"store{len(self.groups)}_{len(stores)}", "store", store)
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

    def _topic(self, name: str) -> _Shape:
        return self.topics.setdefault(name, _Shape(f"topic{len(self.topics)}", "topic", name))

    def _open_topic(self, node: Node, text: str) -> _Shape:
        # Keyed by something that no topic's name can be.
        return self.topics.setdefault(f" {node.name}", _Shape(f"topic{len(self.topics)}", "open", text))


def _mermaid_shape(shape: _Shape) -> str:
    left, right = {"node": ("[", "]"), "store": ("[(", ")]"), "topic": ("([", "])"), "open": ("([", "])")}[shape.kind]
    return f'{shape.id}{left}"{_mermaid_text(shape.text)}"{right}'


def _mermaid_text(text: str) -> str:
    # Labels are Markdown and then HTML. A dot or dash before a space starts a list there.
    return re.sub(r"[^\w .:-]|[.-](?= )", lambda found: f"#{ord(found[0])};", text)


def _dot_shape(shape: _Shape) -> str:
    form = {"node": "", "store": ", shape=cylinder", "topic": ", shape=cds", "open": ", shape=cds, style=dotted"}[
        shape.kind
    ]
    return f"{shape.id} [label={_dot_text(shape.text)}{form}];"


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
