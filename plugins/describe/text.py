"""A program as text: the format of Kafka Streams' `Topology.describe()`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from penstock import GlobalStore, Node, ProcessorNode, Program, SinkNode, SourceNode, Subtopology
from penstock.support.names import function_name


def to_text(program: Program) -> str:
    """Return the program as Kafka Streams' `Topology.describe()` prints it, byte for byte."""
    blocks = {store.id: _global_block(store) for store in program.global_stores}
    blocks.update((subtopology.id, _block(subtopology)) for subtopology in program.subtopologies)
    return "Topologies:\n " + "".join(f"  {blocks[number]}" for number in sorted(blocks))


def _global_block(store: GlobalStore) -> str:
    source, processor = store.source, store.processor
    return (
        f"Sub-topology: {store.id} for global store (will not generate tasks)\n"
        f"    {_entry(source, [processor.name], [])}\n"
        f"    {_entry(processor, [], [source.name])}\n"
    )


def _block(subtopology: Subtopology) -> str:
    layout = _PrintOrder(subtopology)
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


class _PrintOrder:
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


def hash_set_order(names: Iterable[str]) -> list[str]:
    """Return names in the order in which a Java HashSet iterates over them.

    Kafka Streams prints the topics of a source and the stores of a processor in that order, which is neither that of
    adding nor that of the alphabet. A HashSet goes through its table of buckets, and through each bucket in the order
    of adding; the bucket is the name's hash with its upper half folded in, modulo the table's size; the table starts at
    16 and doubles when it is more than three quarters full, which keeps the order within a bucket.

    >>> hash_set_order(["orders", "payments", "returns"])
    ['payments', 'orders', 'returns']
    """
    distinct = list(dict.fromkeys(names))
    size = 16
    while len(distinct) > size * 3 // 4:
        size *= 2
    return sorted(distinct, key=lambda name: _bucket(name, size))


def _bucket(name: str, size: int) -> int:
    units = name.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return (code ^ code >> 16) & (size - 1)


class TreeSet:
    """Java's TreeSet, for a rank that changes while names are in the set.

    Then where a new name goes depends on which of the others it is compared with, so on the shape of the tree: a
    red-black tree as in Cormen et al., Introduction to Algorithms, chapter 13, without deletion. A sorted list, or
    another balance, would put some names elsewhere.
    """

    def __init__(self, rank: Callable[[str], tuple[int, bytes]]) -> None:
        self._rank = rank
        self._root: _Branch | None = None

    def __iter__(self) -> Iterator[str]:
        return _names(self._root)

    def add(self, name: str) -> None:
        """Put a name in, which must not be there."""
        self._root = self._added(self._root, name)
        self._root.red = False

    def _added(self, top: _Branch | None, name: str) -> _Branch:
        if top is None:
            return _Branch(name)
        side = int(self._rank(name) > self._rank(top.name))
        child = top.child[side] = self._added(top.child[side], name)
        if top.red or not child.red:
            return top
        inner, outer, uncle = child.child[1 - side], child.child[side], top.child[1 - side]
        if not any(each is not None and each.red for each in (inner, outer)):
            return top
        if uncle is not None and uncle.red:
            top.red, child.red, uncle.red = True, False, False
            return top
        if inner is not None and inner.red:
            top.child[side] = _rotated(child, side)
        top.red = True
        above = _rotated(top, 1 - side)
        above.red = False
        return above


class _Branch:
    __slots__ = ("child", "name", "red")

    def __init__(self, name: str) -> None:
        self.name, self.red = name, True
        self.child: list[_Branch | None] = [None, None]


def _names(top: _Branch | None) -> Iterator[str]:
    if top is not None:
        yield from _names(top.child[0])
        yield top.name
        yield from _names(top.child[1])


def _rotated(down: _Branch, side: int) -> _Branch:
    """Move a branch down to its `side` (0: left), and its child of the other side into its place; return the child."""
    up = down.child[1 - side]
    assert up is not None
    down.child[1 - side], up.child[side] = up.child[side], down
    return up
