"""The order in which Java's collections hand out names, which Kafka Streams' descriptions show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator


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
