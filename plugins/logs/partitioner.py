"""Kafka's default partitioner: which partition a key goes to, and an output batch split by partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from penstock.errors import ProductionError
from penstock.record import Headers, OutputBatch

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_VECTOR_FROM = 24
"""Below this many keys of one length a loop is faster than numpy's set-up."""
_CACHED_KEYS = 1 << 17
"""The most keys that a cache holds."""
_CACHED_KEY_BYTES = 128
"""Longer keys are not cached, so that a cache stays under about 30 MB."""
NULL_KEY_RUN = 128
"""So many records without a key in a row go to one partition."""


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data`, signed, as `org.apache.kafka.common.utils.Utils.murmur2` does.

    >>> murmur2(b"foobar")
    -790332482
    """
    unsigned = _murmur2(data)
    return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of `key` in a topic of `partitions`, as Kafka's clients do.

    >>> partition_for_key(b"foobar", 4)
    2
    """
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_for_keys(keys: Sequence[bytes], partitions: int) -> list[int]:
    """Return the partition of each of `keys`; many keys of one length cost about 0.1 us each."""
    lengths = set(map(len, keys))
    if len(lengths) == 1 and len(keys) >= _VECTOR_FROM:
        return _murmur2_vector(b"".join(keys), lengths.pop(), len(keys), partitions)
    by_length: dict[int, list[int]] = {length: [] for length in lengths}
    for index, key in enumerate(keys):
        by_length[len(key)].append(index)
    result = [0] * len(keys)
    for length, indexes in by_length.items():
        if len(indexes) < _VECTOR_FROM:
            for index in indexes:
                result[index] = partition_for_key(keys[index], partitions)
        else:
            chosen = _murmur2_vector(b"".join(_pick(keys, indexes)), length, len(indexes), partitions)
            for index, partition in zip(indexes, chosen, strict=True):
                result[index] = partition
    return result


@dataclass(slots=True)
class Share:
    """The part of an output batch that goes to one partition, by column."""

    partition: int
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    headers: Sequence[Headers] | None


class Partitioner:
    """Splits output batches for topics of one number of partitions; remembers where recent keys go. Thread-safe."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._cache: dict[bytes | None, int] = {}

    def split(self, batch: OutputBatch, appended: Callable[[], int]) -> list[Share]:
        """Return what goes to each partition, each in the batch's order.

        `appended` says how many records the topic has been given so far; it is asked only when there are null keys,
        which are spread in runs that start from there, so that the same log makes the same choice.
        Raises ProductionError for a partition that the topic does not have.
        """
        if batch.partitions is not None:
            return self._split_as_told(batch, batch.partitions, appended)
        if self.partitions == 1:
            return [Share(0, batch.keys, batch.values, batch.timestamps, batch.headers)] if batch.keys else []
        indexes: list[list[int]] = [[] for _ in range(self.partitions)]
        appends = [each.append for each in indexes]
        for index, partition in enumerate(self._choose(batch.keys, appended)):
            appends[partition](index)
        return self._shares(batch, indexes)

    def _split_as_told(
        self, batch: OutputBatch, told: Iterable[Sequence[int] | None], appended: Callable[[], int]
    ) -> list[Share]:
        indexes: list[list[int]] = [[] for _ in range(self.partitions)]
        by_key = [index for index, targets in enumerate(told) if targets is None]
        chosen = self._choose([batch.keys[index] for index in by_key], appended) if by_key else []
        where = dict(zip(by_key, chosen, strict=True))
        for index, targets in enumerate(told):
            for partition in (where[index],) if targets is None else targets:
                if not 0 <= partition < self.partitions:
                    raise ProductionError(
                        f"topic {batch.topic!r}: a partitioner chose partition {partition!r}, but the topic has "
                        f"{self.partitions} (0 to {self.partitions - 1}): correct the partitioner"
                    )
                indexes[partition].append(index)
        return self._shares(batch, indexes)

    def _shares(self, batch: OutputBatch, indexes: list[list[int]]) -> list[Share]:
        headers = batch.headers
        return [
            Share(
                partition,
                _pick(batch.keys, chosen),
                _pick(batch.values, chosen),
                _pick(batch.timestamps, chosen),
                None if headers is None else _pick(headers, chosen),
            )
            for partition, chosen in enumerate(indexes)
            if chosen
        ]

    def _choose(self, keys: Sequence[bytes | None], appended: Callable[[], int]) -> list[int]:
        if self.partitions == 1:
            return [0] * len(keys)
        cache = self._cache
        chosen: list[Any] = list(map(cache.get, keys))
        if None not in chosen:
            return chosen
        missing = list(
            {key for key, partition in zip(keys, chosen, strict=True) if partition is None and key is not None}
        )
        if missing:
            found: dict[bytes | None, int] = dict(
                zip(missing, partitions_for_keys(missing, self.partitions), strict=True)
            )
            chosen = [found.get(key) if old is None else old for key, old in zip(keys, chosen, strict=True)]
            self._remember(found)
        if None in chosen:
            position, run = appended(), NULL_KEY_RUN
            for index, partition in enumerate(chosen):
                if partition is None:
                    chosen[index] = position // run % self.partitions
                    position += 1
        return chosen

    def _remember(self, found: dict[bytes | None, int]) -> None:
        if len(self._cache) + len(found) > _CACHED_KEYS:
            # Starting over costs one hash per hot key; keeping track of use would cost on every look-up.
            self._cache = {}
            if len(found) > _CACHED_KEYS:
                return
        if max(map(len, found)) > _CACHED_KEY_BYTES:  # type: ignore[arg-type]
            found = {key: partition for key, partition in found.items() if key and len(key) <= _CACHED_KEY_BYTES}
        self._cache.update(found)


def _pick(column: Sequence[Any], indexes: Sequence[int]) -> Sequence[Any]:
    return itemgetter(*indexes)(column) if len(indexes) > 1 else (column[indexes[0]],)


def _murmur2(data: bytes) -> int:
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        k = (k ^ (k >> 24)) * _MULTIPLIER & _MASK
        h = (h * _MULTIPLIER & _MASK) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    h = (h ^ (h >> 13)) * _MULTIPLIER & _MASK
    return h ^ (h >> 15)


def _murmur2_vector(joined: bytes, length: int, count: int, partitions: int) -> list[int]:
    # Imported here: a test driver of one partition a topic, and small batches, never need it.
    import numpy as np

    u32 = np.uint32
    multiplier = u32(_MULTIPLIER)
    data = np.frombuffer(joined, dtype=np.uint8).reshape(count, length)
    h = np.full(count, _SEED ^ length, dtype=u32)
    whole = length & ~3
    words = np.ascontiguousarray(np.ascontiguousarray(data[:, :whole]).view("<u4").T)
    for word in words:
        k = word * multiplier
        k ^= k >> u32(24)
        k *= multiplier
        h *= multiplier
        h ^= k
    if length > whole:
        for at in range(whole, length):
            h ^= data[:, at].astype(u32) << u32(8 * (at - whole))
        h *= multiplier
    h ^= h >> u32(13)
    h *= multiplier
    h ^= h >> u32(15)
    chosen: list[int] = ((h & u32(0x7FFFFFFF)) % u32(partitions)).tolist()
    return chosen
