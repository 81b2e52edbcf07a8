"""Descriptions of a program: as text in Kafka Streams' format, and as mermaid, dot and JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .nodes import GlobalStore, Node, ProcessorNode, SinkNode, SourceNode, Subtopology
from .program import Program

# ---------------------------------------------------------------- text


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

    Nodes go by size, the largest first, then by name; a node's size is 1 and the sizes of its children, so that a node which two paths
    reach counts twice. Successors and predecessors are kept in sorted sets by the same rule while sizes
    still grow, so their order is that of the sizes at the moment a node was put in. It only comes out the same when
    the nodes are gone through in the same order, which is that of Java's HashMap.
    """

    def __init__(self, subtopology: Subtopology) -> None:
        by_name = {node.name: node for node in subtopology.nodes}
        self._size = dict.fromkeys(by_name, 1)
        before: dict[str, _TreeSet] = {name: _TreeSet(self._rank) for name in by_name}
        after: dict[str, _TreeSet] = {name: _TreeSet(self._rank) for name in by_name}
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
        return -self._size[name], name.encode("utf-16-be")

    def _grow(self, name: str, by: int, before: dict[str, _TreeSet]) -> None:
        self._size[name] += by
        for parent in before[name]:
            self._grow(parent, by, before)


def hash_set_order(names: Iterable[str]) -> list[str]:
    """Return names in the order in which a Java HashSet iterates over them.

    Kafka Streams prints the topics of a source and the stores of a processor in that order, which is neither that of adding nor that of the
    alphabet. A HashSet goes through its table of buckets, and through each bucket in the order of adding; the bucket is the name's hash with its
    upper half folded in, modulo the table's size; the table starts at 16 and doubles when it is more than three
    quarters full, which keeps the order within a bucket.

    >>> hash_set_order(["orders", "payments", "returns"])
    ['payments', 'orders', 'returns']
    """
    distinct = list(dict.fromkeys(names))
    size = 16
    while len(distinct) > size * 3 // 4:
        size *= 2
    return sorted(distinct, key=lambda name: _bucket(name, size))


def _bucket(name: str, size: int) -> int:
    units = name.encode("utf-16-be")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return (code ^ code >> 16) & (size - 1)


class _TreeSet:
    """Java's TreeSet, for a rank that changes while names are in the set.

    Then where a new name goes depends on which of the others it is compared with, so on the shape of the tree: a red-black tree as in
    Cormen et al., Introduction to Algorithms, chapter 13, without deletion. A sorted list would put some names elsewhere.
    """

    def __init__(self, rank: Callable[[str], tuple[int, bytes]]) -> None:
        self._rank = rank
        self._root: _Branch | None = None

    def __iter__(self) -> Iterator[str]:
        path: list[_Branch] = []
        at = self._root
        while path or at is not None:
            while at is not None:
                path.append(at)
                at = at.child[0]
            at = path.pop()
            yield at.name
            at = at.child[1]

    def add(self, name: str) -> None:
        """Put a name in, which must not be there."""
        above: _Branch | None = None
        at, side = self._root, 0
        while at is not None:
            above, side = at, int(self._rank(name) > self._rank(at.name))
            at = at.child[side]
        new = _Branch(name, above)
        if above is None:
            self._root = new
        else:
            above.child[side] = new
        self._balance(new)

    def _balance(self, at: _Branch) -> None:
        while (above := at.above) is not None and above.red and (top := above.above) is not None:
            side = int(above is top.child[1])
            uncle = top.child[1 - side]
            if uncle is not None and uncle.red:
                above.red = uncle.red = False
                top.red = True
                at = top
                continue
            if at is above.child[1 - side]:
                self._rotate(above, side)
                at, above = above, at
            above.red, top.red = False, True
            self._rotate(top, 1 - side)
        if self._root is not None:
            self._root.red = False

    def _rotate(self, down: _Branch, side: int) -> None:
        """Move a branch down to its `side` (0: left), and its child of the other side into its place."""
        up = down.child[1 - side]
        assert up is not None
        down.child[1 - side] = moved = up.child[side]
        if moved is not None:
            moved.above = down
        up.above = down.above
        if down.above is None:
            self._root = up
        else:
            down.above.child[int(down is down.above.child[1])] = up
        up.child[side] = down
        down.above = up


class _Branch:
    __slots__ = ("name", "above", "child", "red")

    def __init__(self, name: str, above: _Branch | None) -> None:
        self.name, self.above, self.red = name, above, True
        self.child: list[_Branch | None] = [None, None]


def function_name(function: Any) -> str:
    """Return a name for a function or callable object that is the same in each run: no addresses."""
    if isinstance(function, functools.partial):
        return f"partial({function_name(function.func)})"
    if hasattr(function, "__qualname__"):
        return f"{function.__module__}.{function.__qualname__}"
    kind = type(function)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return f"{kind.__module__}.{kind.__qualname__}"
    return str(function)
