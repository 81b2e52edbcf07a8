"""Division: how the entries of a store belong to partitions, so that a store can be divided anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..serde import Serde


@dataclass(frozen=True)
class PartitionInValue:
    """Values that have the number of a partition: that of a record with another key, in a topic of the program.

    `topic`: the internal topic whose partitions are meant. `find` returns key and partition from a value, and `put` the
    value with another partition.
    """

    topic: str
    find: Callable[[Any], tuple[Any, int]]
    put: Callable[[Any, int], Any]


@dataclass(frozen=True)
class RowKeys:
    """How to find an entry's key in a row of a store, so that `penstock reshard` can divide the rows.

    `key_of` takes the key of a row, and returns the serialized key of its entry: the key of the record that made the
    entry, or one from which `Division.record_key` finds that. It returns None for a row of the store as a whole, such
    as a count: each new task gets such rows. `serde` makes the serde of these keys from the serde that the store
    declares.
    """

    key_of: Callable[[bytes], bytes | None]
    serde: Callable[[Any], str | Serde[Any] | None]
    merged: Callable[[bytes, bytes], bytes] | None = None


@dataclass(frozen=True)
class Division:
    """How `penstock reshard` divides a store whose entries are not just by the keys of records; not saved.

    `record_key` returns, from the key of an entry, that of the records that it comes from, to whose partition it
    belongs (None: it is the same). `window_end` returns the end of a window that begins at a time (ms; None: there is
    no such window); it is needed where windows are sent when they close, and a window store ends windowed keys by it.
    `partition_in_value`: see there.
    """

    record_key: Callable[[Any], Any] | None = None
    window_end: Callable[[int], int | None] | None = None
    partition_in_value: PartitionInValue | None = None
