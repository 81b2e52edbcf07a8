"""Composite keys: a user's key with times behind it, in buckets of time, as ordered bytes.

A row of a window or session store has the key: number of the bucket (8 bytes), the user's key (escaped, so that order
and prefixes are those of the keys), the times (8 bytes each), and where a store retains duplicates a number (4 bytes).
Rows that expire together are in the same buckets at the front: one range of bytes. The empty key has the store's own
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from struct import Struct

from penstock import BytesStore

from .escaping import END, escaped, unescaped

_LONG = Struct(">q")
_MOST_BUCKETS = 32
"""Maximum number of buckets that a scan tries one by one; in a longer range it looks for existing ones."""

Row = tuple[bytes, bytes]
MAX_TIME = 2**63 - 1


class BucketKeys:
    """The keys of rows, with `bucket_ms` milliseconds in each bucket.

    A row is in the bucket of the first of its times, `rank_ms`. `tail` is the number of bytes behind the escaped key.
    """

    def __init__(self, bucket_ms: int, tail: int) -> None:
        self.bucket_ms = bucket_ms
        self._tail = tail

    def row_key(self, key: bytes, rank_ms: int, rest: bytes) -> bytes:
        """Return the key of a row: `rest` is what follows on the first of its times, as bytes."""
        return _LONG.pack(rank_ms // self.bucket_ms) + escaped(key) + _LONG.pack(rank_ms) + rest

    def around(self, rank_ms: int) -> tuple[bytes, bytes]:
        """Return the bytes before and behind the key, without its end, in the key of a row with one time."""
        return _LONG.pack(rank_ms // self.bucket_ms), END + _LONG.pack(rank_ms)

    def parts(self, row_key: bytes) -> tuple[bytes, int, bytes]:
        """Return the arguments of `row_key` that make this key."""
        at = len(row_key) - self._tail
        return unescaped(row_key, 8)[0], _LONG.unpack_from(row_key, at)[0], row_key[at + 8 :]


class Buckets(BucketKeys):
    """The rows of one BytesStore, in buckets."""

    def __init__(self, below: BytesStore, bucket_ms: int, tail: int) -> None:
        super().__init__(bucket_ms, tail)
        self._below = below

    def of_key(self, key: bytes, first_ms: int, last_ms: int, *, reverse: bool) -> Iterator[Row]:
        """Yield the rows of a key with first_ms <= rank <= last_ms in their order, or reversed."""
        middle = escaped(key)
        for bucket in self._between(first_ms, last_ms, reverse=reverse):
            prefix = _LONG.pack(bucket) + middle
            low = prefix + _LONG.pack(max(first_ms, bucket * self.bucket_ms))
            high = _after_time(prefix, last_ms)
            yield from self._below.range(low, high, reverse=reverse)

    def of_keys(
        self, key_from: bytes | None, key_to: bytes | None, first_ms: int, last_ms: int, *, reverse: bool
    ) -> Iterator[Row]:
        """Yield the rows of key_from <= key <= key_to by key, then by their times, or reversed."""
        at = -self._tail
        buckets = []
        for bucket in self._between(first_ms, last_ms, reverse=False):
            prefix = _LONG.pack(bucket)
            low = prefix if key_from is None else prefix + escaped(key_from)
            high = _LONG.pack(bucket + 1) if key_to is None else _after_key(prefix + escaped(key_to))
            rows = self._below.range(low, high, reverse=reverse)
            if bucket * self.bucket_ms < first_ms or (bucket + 1) * self.bucket_ms - 1 > last_ms:
                rows = _ranked(rows, at, first_ms, last_ms)
            buckets.append(rows)
        return buckets[0] if len(buckets) == 1 else merge(*buckets, key=_behind_bucket, reverse=reverse)

    def sweep(self, up_to_ms: int, limit: int) -> bool:
        """Free up to `limit` rows of buckets with no rank above `up_to_ms`; return whether there may be more."""
        return self._below.sweep(b"\x00", _LONG.pack(self.first_kept(up_to_ms)), limit)

    def first_kept(self, up_to_ms: int) -> int:
        """Return the first bucket that has a rank above `up_to_ms`."""
        return (up_to_ms + 1) // self.bucket_ms

    def _between(self, first_ms: int, last_ms: int, *, reverse: bool) -> Iterator[int]:
        """Yield the buckets with ranks from `first_ms` to `last_ms`."""
        if last_ms < first_ms:
            return iter(())
        first, last = first_ms // self.bucket_ms, last_ms // self.bucket_ms
        if last - first >= _MOST_BUCKETS:
            return self._existing(first, last, reverse=reverse)
        return iter(range(last, first - 1, -1) if reverse else range(first, last + 1))

    def _existing(self, first: int, last: int, *, reverse: bool) -> Iterator[int]:
        low, high = _LONG.pack(first), _LONG.pack(last + 1)
        while True:
            found = next(iter(self._below.range(low, high, reverse=reverse)), None)
            if found is None:
                return
            (bucket,) = _LONG.unpack_from(found[0])
            yield bucket
            if reverse:
                high = found[0][:8]
            else:
                low = _LONG.pack(bucket + 1)


def _ranked(rows: Iterator[Row], at: int, first_ms: int, last_ms: int) -> Iterator[Row]:
    first, last = _LONG.pack(first_ms), _LONG.pack(last_ms)
    end = at + 8 or None
    return (row for row in rows if first <= row[0][at:end] <= last)


def _behind_bucket(row: Row) -> bytes:
    return row[0][8:]


def _after_time(prefix: bytes, time_ms: int) -> bytes:
    """Return the least bytes above all rows of a key, whose `prefix` this is, with a time up to `time_ms`."""
    return _after_key(prefix) if time_ms >= MAX_TIME else prefix + _LONG.pack(time_ms + 1)


def _after_key(prefix: bytes) -> bytes:
    """Return the least bytes above all that begin with `prefix`, which ends in the 0 that ends an escaped key."""
    return prefix[:-1] + b"\x01"
