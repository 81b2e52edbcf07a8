"""Distinct keys in order, in which adding one costs about a microsecond however many there are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator

_BLOCK = 512


class SortedKeys:
    """Byte strings in order, each once, kept in blocks.

    One sorted list would move half of itself for each new key; a store that is written and scanned in turn adds one
    key between any two scans.
    """

    def __init__(self, keys: Collection[bytes] = ()) -> None:
        self._blocks: list[list[bytes]] = []
        self._firsts: list[bytes] = []
        self._length = 0
        self._rebuild(sorted(keys))

    def __len__(self) -> int:
        return self._length

    def update(self, keys: Collection[bytes]) -> None:
        """Add keys that are not in it."""
        if len(keys) * 8 > self._length:
            ordered = [key for block in self._blocks for key in block]
            ordered += sorted(keys)
            ordered.sort()
            self._rebuild(ordered)
        else:
            for key in keys:
                self.add(key)

    def add(self, key: bytes) -> None:
        """Add a key that is not in it."""
        self._length += 1
        if not self._blocks:
            self._blocks, self._firsts = [[key]], [key]
            return
        index = max(bisect_right(self._firsts, key) - 1, 0)
        block = self._blocks[index]
        insort(block, key)
        self._firsts[index] = block[0]
        if len(block) > 2 * _BLOCK:
            self._blocks.insert(index + 1, block[_BLOCK:])
            self._firsts.insert(index + 1, block[_BLOCK])
            del block[_BLOCK:]

    def remove(self, key: bytes) -> None:
        """Remove a key that is in it."""
        index = bisect_right(self._firsts, key) - 1
        block = self._blocks[index]
        del block[bisect_left(block, key)]
        self._length -= 1
        if block:
            self._firsts[index] = block[0]
        else:
            del self._blocks[index], self._firsts[index]

    def range(self, start: bytes | None, end: bytes | None, *, reverse: bool) -> Iterator[bytes]:
        """Yield the keys in start <= key < end in order or reversed; adding and removing meanwhile is fine."""
        chunk = self._from(start, end, reverse)
        while chunk:
            yield from chunk
            if reverse:
                end = chunk[-1]
            else:
                start = chunk[-1] + b"\x00"
            chunk = self._from(start, end, reverse)

    def _from(self, start: bytes | None, end: bytes | None, reverse: bool) -> list[bytes]:
        """Return a copy of the range's keys in the first block (if reversed, the last) that has any of them."""
        blocks, firsts = self._blocks, self._firsts
        if not blocks:
            return []
        if reverse:
            index = (len(blocks) if end is None else bisect_left(firsts, end)) - 1
            if index < 0:
                return []
            block = blocks[index]
            low = 0 if start is None else bisect_left(block, start)
            chunk = block[low : len(block) if end is None else bisect_left(block, end)]
            chunk.reverse()
            return chunk
        index = 0 if start is None else max(bisect_right(firsts, start) - 1, 0)
        low = 0 if start is None else bisect_left(blocks[index], start)
        if low == len(blocks[index]):
            index, low = index + 1, 0
            if index == len(blocks):
                return []
        block = blocks[index]
        return block[low : len(block) if end is None else bisect_left(block, end)]

    def _rebuild(self, ordered: list[bytes]) -> None:
        self._blocks = [ordered[low : low + _BLOCK] for low in range(0, len(ordered), _BLOCK)]
        self._firsts = [block[0] for block in self._blocks]
        self._length = len(ordered)
