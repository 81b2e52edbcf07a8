"""The default partitioner: the bytes of a key whose hash chooses the partition of a record, and this hash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from ..record import Headers, Record, Windowed
from ..serde import Serde
from .nodes import SinkNode

_MASK = 0xFFFFFFFF
SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995


def default_partitioner(key: bytes, partitions: int) -> int:
    """Return the partition of a serialized `key` in a topic of `partitions`, as Kafka's clients choose it by murmur2.

    A sink that has no `partitioner` uses it, with the part of the key that its `partition_by` returns, or with a
    windowed key's bytes without the window (Kafka Streams: DefaultStreamPartitioner, WindowedStreamPartitioner).

    >>> default_partitioner(b"foobar", 4)
    2
    """
    return (unsigned_murmur2(key) & 0x7FFFFFFF) % partitions


def unsigned_murmur2(data: bytes) -> int:
    """Return the hash of `org.apache.kafka.common.utils.Utils.murmur2`, as 32 bits without a sign."""
    length = len(data)
    h = SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * MULTIPLIER & _MASK
        k = (k ^ (k >> 24)) * MULTIPLIER & _MASK
        h = (h * MULTIPLIER & _MASK) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & _MASK
    h = (h ^ (h >> 13)) * MULTIPLIER & _MASK
    return h ^ (h >> 15)


def whole_key(key: Any) -> Any:
    """Return the key: the `partition_by` with which windowed keys are partitioned by key and window."""
    return key


def keys_to_hash(serde: Serde[Any], keys: Iterable[bytes | None]) -> list[bytes | None] | None:
    """Return the bytes that choose the partitions of serialized `keys`; None if they are the keys themselves."""
    cut = serde.window_bytes
    return [None if key is None else key[:-cut] for key in keys] if cut else None


def hashed_part(node: SinkNode, serde: Serde[Any]) -> Callable[[Any, bytes], bytes | None] | None:
    """Return the function (key, serialized key) -> the bytes that choose the partition, or None: any partition.

    `serde`: that of the sink's keys. None if these bytes are always the serialized key.
    """
    by, cut = node.partition_by, serde.window_bytes
    if node.partitioner is not None or by is whole_key:
        return None
    if by is None:
        return (lambda key, data: data[:-cut]) if cut else None

    def part_of(key: Any, data: bytes) -> bytes | None:
        part = by(key)
        if part is None or type(part) is bytes:
            return part
        if part is key:
            return data
        if cut and not isinstance(part, Windowed):
            return serde.serialize(Windowed(part, 0, 0))[:-cut]
        return serde.serialize(part)

    return part_of


def partitions_of_key(
    node: SinkNode, serde: Serde[Any], topic: str, key: Any, count: int, headers: Headers | None = None
) -> Sequence[int]:
    """Return to which of `count` partitions a sink writes records with a key; `serde` is that of its keys.

    `headers`: those of the record, for the sink's partitioner. Raises the errors of the serde and of the sink's
    functions, and ValueError if the partition does not depend on the key and the headers alone.
    """
    data = serde.serialize(key)
    if node.partitioner is not None:
        chosen = node.partitioner(topic, record_of_key(key, headers), count)
        if chosen is not None:
            return (chosen,) if isinstance(chosen, int) else tuple(chosen)
    part_of = hashed_part(node, serde)
    part = data if part_of is None else part_of(key, data)
    if part is None:
        raise ValueError("its partition_by returns None: any partition may have the key")
    return (default_partitioner(part, count),)


def record_of_key(key: Any, headers: Headers | None = None) -> Record:
    """Return a record of which only the key is known, and the headers if they are given.

    A partitioner that asks for another part raises ValueError.
    """
    return _RecordOfKey(key, headers)


class _RecordOfKey(Record):
    """As `record_of_key` says."""

    __slots__ = ()

    def __new__(cls, key: Any, headers: Headers | None = None) -> _RecordOfKey:
        """Return the record of a key."""
        return tuple.__new__(cls, (key, None, 0, headers))

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index) if index in (0, 3) else None
        if index not in (0, 3) or (index == 3 and found is None):
            raise ValueError(_MORE)
        return found

    def __iter__(self) -> NoReturn:
        raise ValueError(_MORE)

    value = property(lambda self: self[1])
    timestamp = property(lambda self: self[2])
    headers = property(lambda self: self[3])

    def with_value(self, value: Any) -> Record:
        """Return a record with a value that is known."""
        return Record(self.key, value, 0)


_MORE = "the partition depends on more of the record than its key"
