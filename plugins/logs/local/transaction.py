"""Transaction: reads and changes rows of the log's databases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .layout import Extent, PackedBatch, batch_base, batch_key, partition_key, unpack_header


class Transaction:
    """A transaction of an environment. Values are memoryviews, good until it ends."""

    def __init__(self, transaction: Any, databases: Mapping[str, Any]) -> None:
        self._transaction = transaction
        self._databases = databases
        self.id = transaction.id

    def get(self, database: str, key: bytes) -> Any:
        """Return the value of a key; None if there is none."""
        return self._transaction.get(key, None, self._databases[database])

    def put(self, database: str, key: bytes, value: bytes, *, overwrite: bool = True) -> None:
        """Set the value of a key; not to `overwrite`: unless it has one."""
        self._transaction.put(key, value, overwrite=overwrite, db=self._databases[database])

    def delete(self, database: str, key: bytes) -> None:
        """Delete a key."""
        self._transaction.delete(key, db=self._databases[database])

    def cursor(self, database: str) -> Any:
        """Return LMDB's cursor over a database, a context manager."""
        return self._transaction.cursor(db=self._databases[database])

    def extent(self, topic_id: int, partition: int) -> Extent:
        """Return a partition's extent; an empty one when its topic was deleted."""
        row = self.get("ends", partition_key(topic_id, partition))
        return Extent(0, 0, 0) if row is None else Extent.from_bytes(row)

    def put_extent(self, topic_id: int, partition: int, new: Extent) -> None:
        """Set a partition's extent."""
        self.put("ends", partition_key(topic_id, partition), new.to_bytes())

    def append(self, topic_id: int, partition: int, batches: Iterable[PackedBatch]) -> None:
        """Put packed batches after the partition's end."""
        start, end, size = self.extent(topic_id, partition)
        for span, data in batches:
            self.put("batches", batch_key(topic_id, partition, end), data)
            end += span
            size += len(data)
        self.put_extent(topic_id, partition, Extent(start, end, size))

    def batches_from(self, topic_id: int, partition: int, offset: int) -> Iterator[tuple[int, Any]]:
        """Yield (base offset, stored batch) from the one that covers `offset` on."""
        prefix = partition_key(topic_id, partition)
        key = batch_key(topic_id, partition, offset)
        with self.cursor("batches") as cursor:
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

    def drop_before(self, topic_id: int, partition: int, before: int) -> None:
        """Move a partition's start to `before`, at most to its end, and delete the batches below."""
        start, end, size = self.extent(topic_id, partition)
        before = min(before, end)
        if before <= start:
            return
        prefix = partition_key(topic_id, partition)
        with self.cursor("batches") as cursor:
            found = cursor.set_range(prefix)
            while found and bytes(cursor.key()[:8]) == prefix:
                data = cursor.value()
                base = batch_base(cursor.key())
                if base + unpack_header(base, data).span > before:
                    break
                size -= len(data)
                found = cursor.delete()
        self.put_extent(topic_id, partition, Extent(before, end, size))

    def delete_prefix(self, database: str, prefix: bytes) -> None:
        """Delete every row whose key starts with `prefix`."""
        with self.cursor(database) as cursor:
            found = cursor.set_range(prefix)
            while found and bytes(cursor.key()[: len(prefix)]) == prefix:
                found = cursor.delete()

    def delete_application(self, prefix: bytes) -> None:
        """Delete the positions, commits and notes of the application whose keys start with `prefix`."""
        for database in ("positions", "commits", "meta"):
            self.delete_prefix(database, prefix)

    def delete_positions_of_topic(self, topic_id: int) -> None:
        """Delete every application's positions in a topic."""
        wanted = partition_key(topic_id, 0)[:4]
        with self.cursor("positions") as cursor:
            found = cursor.first()
            while found:
                found = cursor.delete() if bytes(cursor.key()[-8:-4]) == wanted else cursor.next()
