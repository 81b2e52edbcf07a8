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
    red-black tree as in Cormen et al., Introduction to Algorithms, chapter 13, without deletion. A sorted list would
    put some names elsewhere.
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
