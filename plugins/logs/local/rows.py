"""Reading and changing a partition's rows inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .environment import Environment, Transaction
from .layout import Extent, PackedBatch, batch_base, batch_key, partition_key, unpack_header


def extent(environment: Environment, transaction: Transaction, topic_id: int, partition: int) -> Extent:
    """Return a partition's extent; an empty one when its topic was deleted."""
    row = transaction.get(partition_key(topic_id, partition), db=environment.database("ends"))
    return Extent(0, 0, 0) if row is None else Extent.from_bytes(row)


def put_extent(environment: Environment, transaction: Transaction, topic_id: int, partition: int, new: Extent) -> None:
    """Set a partition's extent."""
    transaction.put(partition_key(topic_id, partition), new.to_bytes(), db=environment.database("ends"))


def append(
    environment: Environment, transaction: Transaction, topic_id: int, partition: int, batches: Iterable[PackedBatch]
) -> None:
    """Put packed batches after the partition's end."""
    start, end, size = extent(environment, transaction, topic_id, partition)
    database = environment.database("batches")
    for span, data in batches:
        transaction.put(batch_key(topic_id, partition, end), data, db=database)
        end += span
        size += len(data)
    put_extent(environment, transaction, topic_id, partition, Extent(start, end, size))


def batches_from(
    environment: Environment, transaction: Transaction, topic_id: int, partition: int, offset: int
) -> Iterator[tuple[int, Any]]:
    """Yield (base offset, stored batch) from the one that covers `offset` on."""
    prefix = partition_key(topic_id, partition)
    key = batch_key(topic_id, partition, offset)
    with transaction.cursor(db=environment.database("batches")) as cursor:
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


def drop_before(environment: Environment, transaction: Transaction, topic_id: int, partition: int, before: int) -> None:
    """Move a partition's start to `before`, at most to its end, and delete the batches below."""
    start, end, size = extent(environment, transaction, topic_id, partition)
    before = min(before, end)
    if before <= start:
        return
    prefix = partition_key(topic_id, partition)
    with transaction.cursor(db=environment.database("batches")) as cursor:
        found = cursor.set_range(prefix)
        while found and bytes(cursor.key()[:8]) == prefix:
            data = cursor.value()
            base = batch_base(cursor.key())
            if base + unpack_header(base, data).span > before:
                break
            size -= len(data)
            found = cursor.delete()
    put_extent(environment, transaction, topic_id, partition, Extent(before, end, size))


def delete_prefix(environment: Environment, transaction: Transaction, database: str, prefix: bytes) -> None:
    """Delete every row whose key starts with `prefix`."""
    with transaction.cursor(db=environment.database(database)) as cursor:
        found = cursor.set_range(prefix)
        while found and bytes(cursor.key()[: len(prefix)]) == prefix:
            found = cursor.delete()


def delete_application(environment: Environment, transaction: Transaction, prefix: bytes) -> None:
    """Delete the positions, commits and notes of the application whose keys start with `prefix`."""
    for database in ("positions", "commits", "meta"):
        delete_prefix(environment, transaction, database, prefix)


def delete_positions_of_topic(environment: Environment, transaction: Transaction, topic_id: int) -> None:
    """Delete every application's positions in a topic."""
    wanted = partition_key(topic_id, 0)[:4]
    with transaction.cursor(db=environment.database("positions")) as cursor:
        found = cursor.first()
        while found:
            found = cursor.delete() if bytes(cursor.key()[-8:-4]) == wanted else cursor.next()
