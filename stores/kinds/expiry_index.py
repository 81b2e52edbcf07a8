"""ExpiryIndex: a BytesStore of envelopes that knows which of them have expired, and frees them in portions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from penstock import BytesStore, StoreContext

from ..rows.envelope import Expiry, expiry_of
from ..rows.time_index import IndexBuild, TimeIndex

_LEAST_FREED = 512
"""So many entries may be freed with one commit, however few were put."""
_BUILT = 4096
"""Entries that one commit takes into an index that is built for a store with content."""
_MOST_DELAY_MS = 2**22
_LATEST = 2**63 - 1

Row = tuple[int, int]
"""A clock of the index, and the time at which an entry is looked at."""


class ExpiryIndex(BytesStore):
    """Entries whose index has the time at which each entry with an expiry is looked at.

    Nothing is hidden here: the store above compares each expiry with its clock. Entries are looked at a little after
    they expire, at multiples of an eighth of the store's TTL or less, so that an entry that is put again and again
    rarely changes its row. With each commit, entries are freed up to twice as many as were put: the work is in
    proportion to what expires, and comes in portions.
    """

    def __init__(self, below: BytesStore, ttl_ms: int | None, context: StoreContext) -> None:
        self.name = below.name
        self._below = below
        delay_ms = 1024 if ttl_ms is None else min(max(ttl_ms // 8, 1), _MOST_DELAY_MS)
        self.shift = delay_ms.bit_length() - 1
        """Entries are looked at, at multiples of 2 to the power of this (ms)."""
        index = context.index
        self._clocks: list[tuple[TimeIndex, Callable[[], int]]] = [
            (TimeIndex(index, 1), context.stream_time),
            (TimeIndex(index, 2), context.wall_clock),
        ]
        self._build = IndexBuild(index, bytes((self.shift,)))
        self._written = 0
        if next(below.range(), None) is None:
            self._build.begin_empty()

    def get(self, key: bytes) -> bytes | None:
        return self._below.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        self.note(key, value)
        self._below.put(key, value)
        self._written += 1

    def put_all(self, entries: Mapping[bytes, bytes | None]) -> None:
        """Set the values of several keys, for which the index was changed before, with `note` or `move`."""
        self._below.put_all(entries)
        self._written += len(entries)

    def note(self, key: bytes, value: bytes | None) -> None:
        """Change the index as the next value of `key` asks for."""
        before = self._below.get(key)
        old = None if before is None else expiry_of(before)
        new = None if value is None else expiry_of(value)
        self.move(key, old, new)

    def move(self, key: bytes, old: Expiry | None, new: Expiry | None) -> None:
        """Change the index for an entry that expires at `new` instead of `old`."""
        before, after = self._row(old), self._row(new)
        if before != after:
            if before is not None:
                self._clocks[before[0]][0].remove(before[1], key)
            if after is not None:
                self._clocks[after[0]][0].put(after[1], key)

    def range(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._below.range(start, end, reverse=reverse)

    def approximate_count(self) -> int:
        return self._below.approximate_count()

    def sweep(self, start: bytes | None, end: bytes, limit: int) -> bool:
        return self._below.sweep(start, end, limit)

    def free(self, keys: Iterable[bytes], *, locally: bool = False) -> None:
        self._below.free(keys, locally=locally)

    def free_expired(self) -> None:
        """Free the next entries that have expired, and take the next entries into an index that is not complete."""
        limit, self._written = _LEAST_FREED + 2 * self._written, 0
        for clock, (times, now_of) in enumerate(self._clocks):
            now = now_of()
            freed = []
            for _, key in times.sweep(now, limit):
                data = self._below.get(key)
                expiry = None if data is None else expiry_of(data)
                # Or it was put again: then it has another row.
                if expiry is not None and expiry.by_wall_clock == bool(clock) and expiry.time <= now:
                    freed.append(key)
            self._below.free(freed)
        self._build.step(self._below, self._add, _BUILT)

    def _add(self, key: bytes, data: bytes) -> None:
        self.move(key, None, expiry_of(data))

    def _row(self, expiry: Expiry | None) -> Row | None:
        if expiry is None:
            return None
        return expiry.by_wall_clock, min(((expiry.time - 1 >> self.shift) + 1) << self.shift, _LATEST)
