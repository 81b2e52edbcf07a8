"""Reading and changing a partition's rows inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .environment import Transaction
from .layout import Extent, PackedBatch, batch_base, batch_key, partition_key, unpack_header


def extent(transaction: Transaction, topic_id: int, partition: int) -> Extent:
    """Return a partition's extent; an empty one when its topic was deleted."""
    row = transaction.get("ends", partition_key(topic_id, partition))
    return Extent(0, 0, 0) if row is None else Extent.from_bytes(row)


def put_extent(transaction: Transaction, topic_id: int, partition: int, new: Extent) -> None:
    """Set a partition's extent."""
    transaction.put("ends", partition_key(topic_id, partition), new.to_bytes())


def append(transaction: Transaction, topic_id: int, partition: int, batches: Iterable[PackedBatch]) -> None:
    """Put packed batches after the partition's end."""
    start, end, size = extent(transaction, topic_id, partition)
    for span, data in batches:
        transaction.put("batches", batch_key(topic_id, partition, end), data)
        end += span
        size += len(data)
    put_extent(transaction, topic_id, partition, Extent(start, end, size))


def batches_from(transaction: Transaction, topic_id: int, partition: int, offset: int) -> Iterator[tuple[int, Any]]:
    """Yield (base offset, stored batch) from the one that covers `offset` on."""
    prefix = partition_key(topic_id, partition)
    key = batch_key(topic_id, partition, offset)
    with transaction.cursor("batches") as cursor:
        found = cursor.set_range(key)
        if not found or bytes(cursor.key()) != key:
            # The batch that covers `offset` starts before it, if any does.
            before = cursor.prev() if found else cursor.last()
            if not before or bytes(cursor.key()[:8]) != prefix:
                found = cursor.set_range(key)
            else:
                found = True
        while found and bytes(cursor.key()[:8]) == prefix:
            yield batch_base(cursor.key()), cursor.value()
            found = cursor.next()


def drop_before(transaction: Transaction, topic_id: int, partition: int, before: int) -> None:
    """Move a partition's start to `before`, at most to its end, and delete the batches below."""
    start, end, size = extent(transaction, topic_id, partition)
    before = min(before, end)
    if before <= start:
        return
    prefix = partition_key(topic_id, partition)
    with transaction.cursor("batches") as cursor:
        found = cursor.set_range(prefix)
        while found and bytes(cursor.key()[:8]) == prefix:
            data = cursor.value()
            base = batch_base(cursor.key())
            if base + unpack_header(base, data).span > before:
                break
            size -= len(data)
            found = cursor.delete()
    put_extent(transaction, topic_id, partition, Extent(before, end, size))


def delete_prefix(transaction: Transaction, database: str, prefix: bytes) -> None:
    """Delete every row whose key starts with `prefix`."""
    with transaction.cursor(database) as cursor:
        found = cursor.set_range(prefix)
        while found and bytes(cursor.key()[: len(prefix)]) == prefix:
            found = cursor.delete()


def delete_application(transaction: Transaction, prefix: bytes) -> None:
    """Delete the positions, commits and notes of the application whose keys start with `prefix`."""
    for database in ("positions", "commits", "meta"):
        delete_prefix(transaction, database, prefix)


def delete_positions_of_topic(transaction: Transaction, topic_id: int) -> None:
    """Delete every application's positions in a topic."""
    wanted = partition_key(topic_id, 0)[:4]
    with transaction.cursor("positions") as cursor:
        found = cursor.first()
        while found:
            found = cursor.delete() if bytes(cursor.key()[-8:-4]) == wanted else cursor.next()
