"""Descriptions of a program: as text in Kafka Streams' format, and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..names import function_name
from ..store import StoreBuilder
from .java_order import TreeSet, hash_set_order
from .nodes import GlobalStore, Graph, Node, ProcessorNode, SinkNode, SourceNode, Subtopology
from .serdes import serde_name

# ---------------------------------------------------------------- text


def to_text(program: Graph) -> str:
    """Return the program as Kafka Streams' `Topology.describe()` prints it, byte for byte."""
    blocks = {each.id: _global_block(each) for each in program.global_stores}
    blocks.update((each.id, _block(each)) for each in program.subtopologies)
    return "Topologies:\n " + "".join(f"  {blocks[number]}" for number in sorted(blocks))


def _global_block(store: GlobalStore) -> str:
    source, processor = store.source, store.processor
    return (
        f"Sub-topology: {store.id} for global store (will not generate tasks)\n"
        f"    {_entry(source, [processor.name], [])}\n"
        f"    {_entry(processor, [], [source.name])}\n"
    )


def _block(subtopology: Subtopology) -> str:
    layout = _Layout(subtopology)
    entries = "".join(
        f"    {_entry(node, layout.successors[node.name], layout.predecessors[node.name])}\n" for node in layout.nodes
    )
    return f"Sub-topology: {subtopology.id}\n{entries}\n"


def _entry(node: Node, successors: Sequence[str], predecessors: Sequence[str]) -> str:
    to, by = ", ".join(successors) or "none", ", ".join(predecessors) or "none"
    match node:
        case SourceNode():
            topics = node.pattern.pattern if node.pattern else f"[{', '.join(hash_set_order(node.topics))}]"
            return f"Source: {node.name} (topics: {topics})\n      --> {to}"
        case ProcessorNode():
            stores = ", ".join(hash_set_order(node.stores))
            return f"Processor: {node.name} (stores: [{stores}])\n      --> {to}\n      <-- {by}"
        case SinkNode():
            topic = (
                f"topic: {node.topic}"
                if isinstance(node.topic, str)
                else f"extractor class: {function_name(node.topic)}"
            )
            return f"Sink: {node.name} ({topic})\n      <-- {by}"


class _Layout:
    """The order in which Kafka Streams prints nodes, their successors and their predecessors.

    Nodes go by size, the largest first, then by name; a node's size is 1 and the sizes of its children, so that a node
    which two paths reach counts twice. Successors and predecessors are kept in sorted sets by the same rule while sizes
    still grow, so their order is that of the sizes at the moment a node was put in. It only comes out the same when the
    nodes are gone through in the same order, which is that of Java's HashMap.
    """

    def __init__(self, subtopology: Subtopology) -> None:
        by_name = {node.name: node for node in subtopology.nodes}
        self._size = dict.fromkeys(by_name, 1)
        before: dict[str, TreeSet] = {name: TreeSet(self._rank) for name in by_name}
        after: dict[str, TreeSet] = {name: TreeSet(self._rank) for name in by_name}
        # Kafka Streams keeps names in a HashSet and fills a HashMap from it.
        for name in hash_set_order(hash_set_order(by_name)):
            for parent in by_name[name].parents:
                before[name].add(parent)
                after[parent].add(name)
                self._grow(parent, self._size[name], before)
        self.predecessors = {name: list(each) for name, each in before.items()}
        self.successors = {name: list(each) for name, each in after.items()}
        self.nodes = sorted(subtopology.nodes, key=lambda node: self._rank(node.name))

    def _rank(self, name: str) -> tuple[int, bytes]:
        # Java compares text by UTF-16 units.
        return -self._size[name], name.encode("utf-16-be", "surrogatepass")

    def _grow(self, name: str, by: int, before: dict[str, TreeSet]) -> None:
        self._size[name] += by
        for parent in before[name]:
            self._grow(parent, by, before)


# ---------------------------------------------------------------- data


def to_data(program: Graph) -> dict[str, Any]:
    """Return the program as plain data, whose form `Program.to_json` documents."""
    everything = [
        *((each.id, False, each.nodes) for each in program.subtopologies),
        *((each.id, True, (each.source, each.processor)) for each in program.global_stores),
    ]
    home = {node.name: number for number, _, nodes in everything for node in nodes}
    return {
        "format": 1,
        "subtopologies": [
            {"id": number, "generates_tasks": not is_global, "nodes": [_node_data(program, node) for node in nodes]}
            for number, is_global, nodes in sorted(everything, key=lambda each: each[0])
        ],
        "stores": [_store_data(program, home, store) for store in program.all_stores()],
        "topics": _topics_data(program),
    }


def _node_data(program: Graph, node: Node) -> dict[str, Any]:
    children = [each.name for each in program.nodes.values() if node.name in each.parents]
    data: dict[str, Any] = {"name": node.name, "kind": type(node).__name__.removesuffix("Node").lower()}
    match node:
        case SourceNode():
            data |= {
                "topics": list(node.topics),
                "pattern": node.pattern.pattern if node.pattern else None,
                "children": children,
                "key_serde": serde_name(node.key_serde),
                "value_serde": serde_name(node.value_serde),
                "timestamp_extractor": function_name(node.timestamp_extractor) if node.timestamp_extractor else None,
                "offset_reset": node.offset_reset,
            }
        case ProcessorNode():
            data |= {
                "supplier": node.supplier if isinstance(node.supplier, str) else function_name(node.supplier),
                "plugin": isinstance(node.supplier, str),
                "stores": list(node.stores),
                "parents": list(node.parents),
                "children": children,
            }
        case SinkNode():
            data |= {
                "topic": node.topic if isinstance(node.topic, str) else None,
                "topic_chooser": None if isinstance(node.topic, str) else function_name(node.topic),
                "parents": list(node.parents),
                "key_serde": serde_name(node.key_serde),
                "value_serde": serde_name(node.value_serde),
                "partitioner": function_name(node.partitioner) if node.partitioner else None,
            }
    return data


def _store_data(program: Graph, home: Mapping[str, int], store: StoreBuilder) -> dict[str, Any]:
    users = [
        each.name for each in program.nodes.values() if isinstance(each, ProcessorNode) and store.name in each.stores
    ]
    is_global = store.name not in program.stores
    return {
        "name": store.name,
        "kind": type(store).__name__,
        "global": is_global,
        "subtopology": home[users[0]],
        "processors": users,
        "backend": store.backend,
        "logged": store.logged and not is_global,
        "key_serde": serde_name(getattr(store, "key_serde", None)),
        "value_serde": serde_name(getattr(store, "value_serde", None)),
    }


def _topics_data(program: Graph) -> list[dict[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for node in program.nodes.values():
        named = node.topics if isinstance(node, SourceNode) else ()
        if isinstance(node, SinkNode) and isinstance(node.topic, str):
            named = (node.topic,)
        for name in named:
            internal = program.internal_topics.get(name)
            entry = {
                "name": name,
                "internal": internal is not None,
                "partitions": internal.partitions if internal else None,
                "sources": [],
                "sinks": [],
            }
            topics.setdefault(name, entry)["sources" if isinstance(node, SourceNode) else "sinks"].append(node.name)
    return list(topics.values())
