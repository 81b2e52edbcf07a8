"""The TTL layer: entries vanish a given stretch of stream time after they were put."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from penstock.store import BytesStore

from .envelope import expiry_of, with_expiry

_PUTS_PER_SWEEP = 64
_ENTRIES_PER_SWEEP = 128


class TtlStore:
    """A BytesStore of envelopes that hides entries when stream time reaches their expiry, and deletes them gradually.

    An entry put at stream time t expires at t + `ttl_ms` (None: new entries do not expire, only those that an earlier
    program put with a TTL). An entry that was put before the first record, or before the store had a TTL, has no expiry
    until it is put again. Every 64 puts, and every commit, check the next 128 entries and delete the expired ones, so
    that expired entries never outnumber the others by much, and no single call deletes them all. A pass starts at a key
    that was just put: a task that is re-opened every few records would otherwise only ever check the first keys.
    """

    def __init__(self, below: BytesStore, ttl_ms: int | None, stream_time: Callable[[], int]) -> None:
        self.name = below.name
        self._below = below
        self._ttl_ms = ttl_ms
        self._stream_time = stream_time
        self._puts = 0
        self._sweep_from: bytes | None = None

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        data = self._below.get(key)
        if data is not None:
            expiry = expiry_of(data)
            if expiry is not None and expiry <= self._stream_time():
                return None
        return data

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set the value of `key`; None deletes it."""
        if value is not None and self._ttl_ms is not None:
            now = self._stream_time()
            if now >= 0:
                value = with_expiry(value, now + self._ttl_ms)
        self._below.put(key, value)
        self._puts += 1
        if self._puts == 1:
            self._sweep_from = key
        if self._puts % _PUTS_PER_SWEEP == 0:
            self.delete_expired()

    def put_all(self, entries: Mapping[bytes, bytes | None]) -> None:
        """Set the values of several keys."""
        for key, value in entries.items():
            self.put(key, value)

    def range(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) for start <= key < end in key order, or reversed."""
        for key, data in self._below.range(start, end, reverse=reverse):
            expiry = expiry_of(data)
            if expiry is None or expiry > self._stream_time():
                yield key, data

    def approximate_count(self) -> int:
        """Return about how many keys there are; expired ones count until they are swept."""
        return self._below.approximate_count()

    def sweep(self, start: bytes | None, end: bytes, limit: int) -> bool:
        """Free expired entries, as the store below does."""
        return self._below.sweep(start, end, limit)

    def free(self, keys: Iterable[bytes], *, locally: bool = False) -> None:
        """Free expired entries, as the store below does."""
        self._below.free(keys, locally=locally)

    def delete_expired(self) -> None:
        """Check the next entries, and delete the expired ones."""
        now = self._stream_time()
        start = self._sweep_from
        seen = list(islice(self._below.range(start), _ENTRIES_PER_SWEEP))
        if len(seen) < _ENTRIES_PER_SWEEP and start is not None:  # on from the first key
            seen += islice(self._below.range(None, start), _ENTRIES_PER_SWEEP - len(seen))
        self._sweep_from = seen[-1][0] + b"\x00" if seen else None
        for key, data in seen:
            expiry = expiry_of(data)
            if expiry is not None and expiry <= now:
                self._below.put(key, None)
