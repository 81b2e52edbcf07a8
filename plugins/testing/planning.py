"""Which of the records that wait a task of the test driver processes before its next commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock import Log, TopicPartition

_MANY_BYTES = 1 << 20

Waiting = dict[TopicPartition, Sequence[tuple[int, int]]]
"""Records of each partition in the order of their offsets: the timestamp (ms), and the offset after the record."""


def oldest_first(waiting: Mapping[TopicPartition, Sequence[tuple[int, int]]], most: int) -> dict[TopicPartition, int]:
    """Return up to which offset of each partition the first `most` records are.

    Of the partitions' next records the one with the lowest timestamp is first, as in a task.
    """
    ends: dict[TopicPartition, int] = {}
    taken = dict.fromkeys(waiting, 0)
    for _ in range(most):
        heads = [(waiting[each][at][0], each) for each, at in taken.items() if at < len(waiting[each])]
        if not heads:
            break
        _, first = min(heads, key=lambda head: head[0])
        ends[first] = waiting[first][taken[first]][1]
        taken[first] += 1
    return ends


def waiting_records(log: Log, application_id: str, partitions: Sequence[TopicPartition], most: int) -> Waiting:
    """Return up to `most` of the first records of each partition that were not processed yet."""
    ends = log.end_offsets(partitions)
    found: Waiting = {}
    for partition, position in log.committed(application_id, partitions).items():
        if position is not None and position < ends[partition]:
            batches = log.fetch(partition, position, ends[partition], 1 if most == 1 else _MANY_BYTES)
            offsets = [
                (timestamp, offset + 1)
                for batch in batches
                for timestamp, offset in zip(batch.timestamps, batch.offsets, strict=True)
            ]
            if offsets:
                found[partition] = offsets[:most]
    return found
