"""Retention and compaction of a local log's topics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgpack

from penstock import Headers

from .catalogue import Topic
from .layout import (
    TARGET_BATCH_BYTES,
    BatchHeader,
    Extent,
    PackedBatch,
    StoredColumns,
    batch_key,
    pack,
    partition_key,
    unpack,
    unpack_header,
)
from .storage import LogStorage, naming_damage
from .transaction import Transaction

_READ_AT_ONCE_BYTES = 16 * 1024 * 1024
_WRITE_AT_ONCE_BYTES = 4 * 1024 * 1024
_MOST_KEYS = 2_000_000
_NEVER = (1 << 62) - 1


def maintain(storage: LogStorage, now_ms: int) -> None:
    """Apply retention, then compaction, to every topic; do nothing when another process does so already.

    Readers never wait, and writers only for the short transactions that replace compacted batches.
    """
    with storage.environment.alone_in_maintenance() as alone:
        if not alone:
            return
        storage.environment.check_readers()
        with storage.read() as (_, topics):
            found = list(topics.values())
        for topic in found:
            for partition in range(topic.info.partitions):
                with naming_damage(storage, topic.info.name, partition):
                    if topic.settings.delete:
                        _retain(storage, topic, partition, now_ms)
                    if topic.settings.compact:
                        _Compaction(storage, topic, partition, now_ms).run()


def _retain(storage: LogStorage, topic: Topic, partition: int, now_ms: int) -> None:
    """Delete the oldest stored batches while all their records are too old, or the rest is still `retention.bytes`."""
    settings = topic.settings
    if settings.retention_ms < 0 and settings.retention_bytes < 0:
        return
    with storage.read() as (transaction, _):
        start, _, size = transaction.extent(topic.id, partition)
        before = start
        for base, data in transaction.batches_from(topic.id, partition, start):
            header = unpack_header(base, data)
            too_old = settings.retention_ms >= 0 and header.max_timestamp < now_ms - settings.retention_ms
            too_many = 0 <= settings.retention_bytes <= size - len(data)
            if not too_old and not too_many:
                break
            before = base + header.span
            size -= len(data)
    if before > start:
        with storage.write(f"delete old records of {topic.info.name!r}") as (transaction, _):
            transaction.drop_before(topic.id, partition, before)


@dataclass(frozen=True)
class _Cleaned:
    """A compaction's result: done up to offset `end`, at `size` bytes; a tombstone may be deleted at `due_ms`."""

    end: int = 0
    size: int = 0
    due_ms: int = _NEVER


@dataclass
class _Group:
    """Stored batches that follow each other and become one."""

    base: int
    replaced: list[int] = field(default_factory=list)
    span: int = 0
    appended_ms: int = 0
    rows: list[tuple[int, bytes | None, bytes | None, int, Headers]] = field(default_factory=list)
    """Offset, key, value, timestamp and headers of each record."""
    size: int = 0
    dropped: int = 0

    def pack(self) -> PackedBatch:
        offsets, keys, values, timestamps, headers = zip(*self.rows, strict=True) if self.rows else ((),) * 5
        deltas = None if len(offsets) == self.span else [offset - self.base for offset in offsets]
        columns = StoredColumns(keys, values, timestamps, headers if any(headers) else None, deltas)
        return pack(columns, self.span, self.appended_ms)


class _Compaction:
    """Keeps the last record of each key of one partition, as Kafka's log cleaner does.

    One pass over what was appended since the last one finds the newest offset of each key; a second, over all
    of it, drops what is older, and tombstones that are due. Replacements go in from the oldest on, so that a tombstone
    never goes before what it deletes, wherever the pass is cut short.
    """

    def __init__(self, storage: LogStorage, topic: Topic, partition: int, now_ms: int) -> None:
        self._storage = storage
        self._topic = topic
        self._partition = partition
        self._now_ms = now_ms
        self._key = partition_key(topic.id, partition)
        self._newest: dict[bytes | None, int] = {}
        self._due_ms = _NEVER

    def run(self) -> None:
        storage, settings = self._storage, self._topic.settings
        with storage.read() as (transaction, _):
            extent = transaction.extent(self._topic.id, self._partition)
            row = transaction.get("cleaned", self._key)
            cleaned = _Cleaned() if row is None else _Cleaned(*msgpack.unpackb(row))
        fresh = extent.end > cleaned.end
        ratio = (extent.size - cleaned.size) / extent.size if extent.size else 0.0
        if not (fresh and ratio >= settings.min_cleanable_dirty_ratio) and self._now_ms < cleaned.due_ms:
            return
        stop = self._find_newest(max(cleaned.end, extent.start), extent.end)
        self._rewrite(extent.start, stop)
        with storage.write(f"compact {self._topic.info.name!r}") as (transaction, topics):
            if self._still_there(topics.get(self._topic.info.name)):
                size = transaction.extent(self._topic.id, self._partition).size
                row = msgpack.packb((stop, size, self._due_ms))
                transaction.put("cleaned", self._key, row)

    def _find_newest(self, offset: int, end: int) -> int:
        """Fill `newest`; return the offset up to which it is complete."""
        lag_ms = self._topic.settings.min_compaction_lag_ms
        for base, header, columns in self._read(offset, end):
            if lag_ms and header.max_timestamp > self._now_ms - lag_ms:
                return max(base, offset)
            if len(self._newest) > _MOST_KEYS:
                return base
            offsets = range(base, base + header.span) if columns.deltas is None else [base + d for d in columns.deltas]
            self._newest.update(zip(columns.keys, offsets, strict=True))
            offset = base + header.span
        return max(offset, end)

    def _rewrite(self, start: int, stop: int) -> None:
        ready: list[_Group] = []
        group: _Group | None = None
        size = 0
        for base, header, columns in self._read(start, stop):
            if group is None:
                group = _Group(base)
            self._add(group, base, header, columns)
            if group.size >= TARGET_BATCH_BYTES // 2:
                ready.append(group)
                size += group.size
                group = None
            if size >= _WRITE_AT_ONCE_BYTES:
                self._replace(ready)
                ready, size = [], 0
        self._replace(ready if group is None else [*ready, group])

    def _add(self, group: _Group, base: int, header: BatchHeader, columns: StoredColumns) -> None:
        """Add a batch's records to a group, without records that compaction deletes."""
        tombstone_due_ms = header.appended_ms + self._topic.settings.delete_retention_ms
        newest = self._newest
        headers = columns.headers if columns.headers is not None else [()] * len(columns.keys)
        offsets = range(base, base + header.span) if columns.deltas is None else [base + d for d in columns.deltas]
        before = len(group.rows)
        for offset, key, value, timestamp, these in zip(
            offsets, columns.keys, columns.values, columns.timestamps, headers, strict=True
        ):
            if newest.get(key, offset) > offset:
                continue
            if value is None:
                if tombstone_due_ms <= self._now_ms:
                    continue
                self._due_ms = min(self._due_ms, tombstone_due_ms)
            group.rows.append((offset, key, value, timestamp, these))
            group.size += len(key or b"") + len(value or b"") + 16
        group.dropped += header.records - (len(group.rows) - before)
        group.replaced.append(base)
        group.span = base + header.span - group.base
        group.appended_ms = max(group.appended_ms, header.appended_ms)

    def _replace(self, groups: list[_Group]) -> None:
        packed = [(group, group.pack()) for group in groups if group.dropped or len(group.replaced) > 1]
        if not packed:
            return
        with self._storage.write(f"compact {self._topic.info.name!r}") as (transaction, topics):
            if not self._still_there(topics.get(self._topic.info.name)):
                return
            for group, batch in packed:
                self._replace_one(transaction, group, batch)

    def _replace_one(self, transaction: Transaction, group: _Group, batch: PackedBatch) -> None:
        start, end, size = transaction.extent(self._topic.id, self._partition)
        keys = [batch_key(self._topic.id, self._partition, base) for base in group.replaced]
        old = [transaction.get("batches", key) for key in keys]
        if any(data is None for data in old):
            # The batches were purged meanwhile.
            return
        size -= sum(len(data) for data in old)
        for key in keys:
            transaction.delete("batches", key)
        transaction.put("batches", keys[0], batch.data)
        new = Extent(start, end, size + len(batch.data))
        transaction.put_extent(self._topic.id, self._partition, new)

    def _read(self, offset: int, end: int) -> Iterator[tuple[int, BatchHeader, StoredColumns]]:
        """Yield (base offset, header, records) from the batch that covers `offset` on, in bounded read transactions."""
        while offset < end:
            found: list[tuple[int, BatchHeader, StoredColumns]] = []
            size = 0
            with self._storage.read() as (transaction, _):
                for base, data in transaction.batches_from(self._topic.id, self._partition, offset):
                    if base >= end or size >= _READ_AT_ONCE_BYTES:
                        break
                    found.append((base, *unpack(base, data)))
                    size += len(data)
            if not found:
                return
            yield from found
            offset = found[-1][0] + found[-1][1].span

    def _still_there(self, topic: Topic | None) -> bool:
        return topic is not None and topic.id == self._topic.id
