"""Kafka's default partitioner: which partition a key goes to, and an output batch split by partition."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from operator import itemgetter
from random import randrange
from typing import TYPE_CHECKING, Any

from penstock import Headers, OutputBatch, default_partitioner
from penstock.program.partitioning import MULTIPLIER, SEED

from .messages import no_such_partition

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Partitions = npt.NDArray[np.uint16]

_VECTOR_FROM = 128 if find_spec("numpy") is not None else sys.maxsize
"""From so many keys on, hashing them together with numpy is faster than looking them up one by one in a cache.

A small installation may lack numpy: every key is looked up then."""
_LOAD_FROM = 10_000
"""After so many keys numpy is imported, which takes four times as long as looking these up: short runs do without."""
_CACHED_KEYS = 1 << 14
"""The most keys that a cache holds."""
_CACHED_KEY_BYTES = 256
"""Longer keys are not cached, so that a cache stays under 5 MB."""
NULL_KEY_RUN = 128
"""Length of a run of records without a fixed partition, such as those without a key, that go to one partition."""


def partitions_for_keys(keys: Sequence[bytes], partitions: int) -> Partitions:
    """Return the partition of each of `keys` as an array: about 0.1 us a key, when there are hundreds."""
    # Imported here: small batches, and topics of one partition, never need it.
    import numpy as np

    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    joined = np.frombuffer(b"".join(keys), dtype=np.uint8)
    hashes = np.empty(len(keys), dtype=np.uint32)
    if not len(keys) or lengths.min() == lengths.max():
        length = int(lengths[0]) if len(keys) else 0
        hashes[:] = _murmur2_columns(joined.reshape(len(keys), length).T, length)
    else:
        starts = np.cumsum(lengths) - lengths
        order = np.argsort(lengths, kind="stable")
        bounds = np.flatnonzero(np.diff(lengths[order])) + 1
        for group in np.split(order, bounds):
            length = int(lengths[group[0]])
            hashes[group] = _murmur2_columns(joined[starts[group] + np.arange(length)[:, None]], length)
    chosen: Partitions = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.uint16)
    return chosen


def hashed_keys(batch: OutputBatch) -> list[bytes | None]:
    """Return the hashed bytes of each record for the default partitioner: its key, or the part that the batch names."""
    return batch.keys if batch.hashed is None else batch.hashed


def partitions_of(keys: Sequence[bytes], partitions: int) -> list[int]:
    """Return the partition of each of `keys`, by numpy where that is faster."""
    if len(keys) >= _VECTOR_FROM:
        result: list[int] = partitions_for_keys(keys, partitions).tolist()
        return result
    return [default_partitioner(key, partitions) for key in keys]


def runs_of_partitions(partitions: int) -> Iterator[int]:
    """Yield the partition of each next record that any partition may have: in runs, from a random partition on."""
    for number in count(NULL_KEY_RUN * randrange(partitions)):
        yield number // NULL_KEY_RUN % partitions


@dataclass(slots=True)
class Share:
    """The part of an output batch that goes to one partition, by column."""

    partition: int
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    headers: Sequence[Headers] | None


class Partitioner:
    """Splits output batches for topics of one number of partitions. Thread-safe."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._cache: dict[bytes | None, int] = {}
        self._looked_up = 0

    def split(self, batch: OutputBatch, appended: Callable[[], int]) -> list[Share]:
        """Return the records of each partition, in the batch's order.

        `appended` returns the number of records appended to the topic so far; it is asked only when there are null
        keys, which are spread in runs that start from there, so that the same log makes the same choice. Raises
        ProductionError for a partition that the topic does not have.
        """
        if not batch.keys:
            return []
        if batch.partitions is not None:
            return self._shares(batch, self._indexes_by_partition(batch, batch.partitions, appended))
        if self.partitions == 1:
            return [Share(0, batch.keys, batch.values, batch.timestamps, batch.headers)]
        return self._shares(batch, self._indexes_by_key(hashed_keys(batch), appended))

    def _indexes_by_key(self, keys: Sequence[bytes | None], appended: Callable[[], int]) -> list[list[int]]:
        if len(keys) >= _VECTOR_FROM and ("numpy" in sys.modules or self._looked_up + len(keys) > _LOAD_FROM):
            return self._many_indexes_by_key(keys, appended)
        self._looked_up += len(keys)
        cache, position = self._cache, -1
        indexes: list[list[int]] = [[] for _ in range(self.partitions)]
        for index, key in enumerate(keys):
            partition = cache.get(key)
            if partition is None:
                if key is None:
                    position = appended() if position < 0 else position + 1
                    partition = position // NULL_KEY_RUN % self.partitions
                else:
                    partition = default_partitioner(key, self.partitions)
                    self._remember(key, partition)
            indexes[partition].append(index)
        return indexes

    def _many_indexes_by_key(self, keys: Sequence[bytes | None], appended: Callable[[], int]) -> list[list[int]]:
        import numpy as np

        if None in keys:
            present = np.fromiter((key is not None for key in keys), dtype=np.bool_, count=len(keys))
            chosen = np.empty(len(keys), dtype=np.uint16)
            chosen[present] = partitions_for_keys([key for key in keys if key is not None], self.partitions)
            nulls = len(keys) - int(present.sum())
            chosen[~present] = (appended() + np.arange(nulls)) // NULL_KEY_RUN % self.partitions
        else:
            chosen = partitions_for_keys(keys, self.partitions)  # type: ignore[arg-type]
        # Of 16-bit numbers numpy's stable sort is a radix sort: cheaper than a loop over the keys.
        order: list[int] = np.argsort(chosen, kind="stable").tolist()
        ends: list[int] = np.cumsum(np.bincount(chosen, minlength=self.partitions)).tolist()
        return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _indexes_by_partition(
        self, batch: OutputBatch, partitions: Iterable[Sequence[int] | None], appended: Callable[[], int]
    ) -> list[list[int]]:
        indexes: list[list[int]] = [[] for _ in range(self.partitions)]
        by_key: list[int] = []
        for index, targets in enumerate(partitions):
            if targets is None:
                by_key.append(index)
                continue
            for partition in targets:
                if not 0 <= partition < self.partitions:
                    raise no_such_partition(batch.topic, partition, self.partitions)
                indexes[partition].append(index)
        if by_key:
            hashed = hashed_keys(batch)
            found = self._indexes_by_key([hashed[index] for index in by_key], appended)
            for partition, positions in enumerate(found):
                indexes[partition].extend(by_key[position] for position in positions)
                indexes[partition].sort()
        return indexes

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

    def _remember(self, key: bytes, partition: int) -> None:
        if len(key) <= _CACHED_KEY_BYTES:
            if len(self._cache) >= _CACHED_KEYS:
                # Starting over costs one hash per hot key; keeping track of use would cost on every look-up.
                self._cache = {}
            self._cache[key] = partition


def _pick(column: Sequence[Any], indexes: Sequence[int]) -> Sequence[Any]:
    return itemgetter(*indexes)(column) if len(indexes) > 1 else (column[indexes[0]],)


def _murmur2_columns(columns: Any, length: int) -> Any:
    """Return the hashes of keys of one length, given as an array whose row i holds byte i of every key."""
    import numpy as np

    u32 = np.uint32
    multiplier = u32(MULTIPLIER)
    hashes = np.full(columns.shape[1], SEED ^ length, dtype=u32)
    whole = length & ~3
    for at in range(0, whole, 4):
        k = _word(columns[at : at + 4]) * multiplier
        k ^= k >> u32(24)
        k *= multiplier
        hashes *= multiplier
        hashes ^= k
    if length > whole:
        hashes ^= _word(columns[whole:])
        hashes *= multiplier
    hashes ^= hashes >> u32(13)
    hashes *= multiplier
    hashes ^= hashes >> u32(15)
    return hashes


def _word(rows: Any) -> Any:
    """Return the little-endian number whose bytes, lowest first, are the given rows."""
    import numpy as np

    word = rows[0].astype(np.uint32)
    for place in range(1, len(rows)):
        word |= rows[place].astype(np.uint32) << np.uint32(8 * place)
    return word
