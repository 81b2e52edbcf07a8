"""Reading records: from stored batches to columns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from penstock import RecordBatch, TopicPartition

from .layout import Columns, Extent, unpack, unpack_header
from .transaction import Transaction

_MERGED_RECORDS = 8192
"""Small stored batches are merged up to this many records, because each batch costs its readers some work."""


def fetch(
    transaction: Transaction,
    topic_id: int,
    partition: TopicPartition,
    offset: int,
    end: int,
    max_bytes: int,
) -> list[RecordBatch]:
    """Return records from `offset` up to `end`, decoded straight from LMDB's map. Raises DamagedBatchError."""
    found: list[RecordBatch] = []
    size, following = 0, offset
    if offset >= end:
        return found
    for base, data in transaction.batches_from(topic_id, partition.partition, offset):
        if base >= end or (found and size >= max_bytes):
            break
        header, columns = unpack(base, data)
        following = base + header.span
        batch = _slice(partition, base, header.span, columns, offset, end)
        if not batch.keys:
            continue
        size += len(data)
        if found and len(found[-1].keys) + len(batch.keys) <= _MERGED_RECORDS:
            found[-1] = _merge(found[-1], batch)
        else:
            found.append(batch)
    if found:
        # Offsets that compaction emptied after the last record are passed as well.
        found[-1].next_offset = min(max(following, found[-1].next_offset), end)
    return found


def offset_for_time(transaction: Transaction, topic_id: int, partition: int, has: Extent, timestamp_ms: int) -> int:
    """Return the offset of the first record at or after a time, else the end. Raises DamagedBatchError."""
    for base, data in transaction.batches_from(topic_id, partition, has.start):
        if unpack_header(base, data).max_timestamp < timestamp_ms:
            continue
        _, columns = unpack(base, data)
        deltas = columns.deltas if columns.deltas is not None else range(len(columns.timestamps))
        for delta, timestamp in zip(deltas, columns.timestamps, strict=True):
            if timestamp >= timestamp_ms and base + delta >= has.start:
                return base + delta
    return has.end


def _slice(partition: TopicPartition, base: int, span: int, columns: Columns, offset: int, end: int) -> RecordBatch:
    keys, values, timestamps, headers = columns.keys, columns.values, columns.timestamps, columns.headers
    offsets: Sequence[int]
    if columns.deltas is None:
        offsets = range(base, base + span)
    else:
        offsets = [base + delta for delta in columns.deltas]
    if base < offset or base + span > end:
        part = slice(bisect_left(offsets, offset), bisect_left(offsets, end))
        offsets, keys, values, timestamps = offsets[part], keys[part], values[part], timestamps[part]
        headers = None if headers is None else headers[part]
    return RecordBatch(
        partition.topic, partition.partition, offsets, keys, values, timestamps, headers, min(base + span, end)
    )


def _merge(first: RecordBatch, second: RecordBatch) -> RecordBatch:
    offsets: Sequence[int]
    if (
        isinstance(first.offsets, range)
        and isinstance(second.offsets, range)
        and first.offsets.stop == second.offsets.start
    ):
        offsets = range(first.offsets.start, second.offsets.stop)
    else:
        offsets = _extended(first.offsets, second.offsets)
    headers = None
    if first.headers is not None or second.headers is not None:
        headers = _extended(
            first.headers if first.headers is not None else [()] * len(first.keys),
            second.headers if second.headers is not None else [()] * len(second.keys),
        )
    return RecordBatch(
        first.topic,
        first.partition,
        offsets,
        _extended(first.keys, second.keys),
        _extended(first.values, second.values),
        _extended(first.timestamps, second.timestamps),
        headers,
        second.next_offset,
    )


def _extended(column: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    # A merged column is a list that this function made, so many small batches merge in linear time.
    extended = column if isinstance(column, list) else list(column)
    extended.extend(more)
    return extended
