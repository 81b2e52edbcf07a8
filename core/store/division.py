"""Division: what a store's declaration says about its entries, for a division of the store by other partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
class Division:
    """How `penstock reshard` divides a store whose entries are not just by the keys of records; not saved.

    `record_key` returns, from the key of an entry, that of the records that it comes from, to whose partition it
    belongs (None: it is the same). `window_end` returns the end of a window that begins at a time (ms; None: there is
    no such window); it is needed where windows are sent when they close. `partition_in_value`: see there.
    """

    record_key: Callable[[Any], Any] | None = None
    window_end: Callable[[int], int | None] | None = None
    partition_in_value: PartitionInValue | None = None
