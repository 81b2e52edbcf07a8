"""Reads a partition up to an offset, for the command line and dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock import Log, OffsetOutOfRangeError, RecordBatch, TopicPartition

_FETCH_BYTES = 1024 * 1024


def read_up_to(
    log: Log, partition: TopicPartition, start: int, end: int, on_deleted: Callable[[int, int], None] | None = None
) -> Iterator[RecordBatch]:
    """Yield the records of a partition from offset `start` to `end`, in batches.

    Offsets that retention deletes meanwhile are skipped: `on_deleted` is called with the first of them and the offset
    after the last. Raises OffsetOutOfRangeError when the partition lost its end.
    """
    position = start
    while position < end:
        try:
            batches = log.fetch(partition, position, end, _FETCH_BYTES)
        except OffsetOutOfRangeError:
            first = log.start_offsets([partition])[partition]
            if first <= position:
                raise
            if on_deleted is not None:
                on_deleted(position, first)
            position = first
            continue
        yield from batches
        # Without a batch there is no record below the end: compaction may leave none.
        position = batches[-1].next_offset if batches else end
