"""The parts of a drawing, in whatever language: shapes, their groups, and edges."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock import Node, ProcessorNode, Program, SinkNode, SourceNode
from penstock.support.names import function_name


@dataclass(frozen=True)
class Shape:
    """Something drawn.

    `id` is made up, since names may hold anything; `kind` is node, store, topic or open (not one topic).
    """

    id: str
    kind: str
    text: str


@dataclass
class Drawing:
    """The parts that both languages draw.

    `groups` hold the shapes inside them, `topics` lie outside; `edges` are (record, store or chosen, from, to).
    """

    program: Program
    groups: list[tuple[str, list[Shape]]] = field(default_factory=list)
    topics: dict[str, Shape] = field(default_factory=dict)
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
