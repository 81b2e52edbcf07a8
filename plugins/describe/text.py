"""A program as text: the format of Kafka Streams' `Topology.describe()`."""

from __future__ import annotations

from collections.abc import Sequence, Set

from penstock import GlobalStore, Node, ProcessorNode, Program, SinkNode, SourceNode, Subtopology
from penstock.support.names import function_name

from .java_order import TreeSet, hash_set_order


def to_text(program: Program) -> str:
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
    extra = {store.name for store in subtopology.stores if store.traits.is_extra}
    entries = "".join(
        f"    {_entry(node, layout.successors[node.name], layout.predecessors[node.name], extra)}\n"
        for node in layout.nodes
    )
    return f"Sub-topology: {subtopology.id}\n{entries}\n"


def _entry(node: Node, successors: Sequence[str], predecessors: Sequence[str], extra: Set[str] = frozenset()) -> str:
    to, by = ", ".join(successors) or "none", ", ".join(predecessors) or "none"
    match node:
        case SourceNode():
            topics = node.pattern.pattern if node.pattern else f"[{', '.join(hash_set_order(node.topics))}]"
            return f"Source: {node.name} (topics: {topics})\n      --> {to}"
        case ProcessorNode():
            stores = ", ".join(hash_set_order([store for store in node.stores if store not in extra]))
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
