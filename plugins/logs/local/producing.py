"""Producing in two steps: packing before the write transaction, because it takes long, and assigning offsets in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock import OutputBatch

from ..messages import check_sizes, no_key
from .catalogue import Topic, Topics
from .layout import PackedBatch, pack_share
from .storage import Storage
from .transaction import Transaction


@dataclass(frozen=True)
class PackedOutput:
    """An output batch, split by partition and packed; stale if its topic was created again meanwhile."""

    topic: Topic
    batches: dict[int, list[PackedBatch]]


def pack_outputs(storage: Storage, outputs: Sequence[OutputBatch]) -> list[PackedOutput]:
    """Partition and pack. Raises UnknownTopicError, and ProductionError for records that a topic refuses."""
    if not outputs:
        return []
    with storage.read() as (_, topics):
        targets = [topics.named(batch.topic) for batch in outputs]
    appended_ms = storage.clock.now_ms()
    return [
        PackedOutput(topic, _pack(storage, topic, batch, appended_ms))
        for topic, batch in zip(targets, outputs, strict=True)
    ]


def is_stale(packed: Sequence[PackedOutput], topics: Topics) -> bool:
    """Return whether a topic was deleted or created again since packing."""
    return any(topics.named(each.topic.info.name).id != each.topic.id for each in packed)


def append_packed(transaction: Transaction, packed: Sequence[PackedOutput]) -> None:
    """Append packed batches to their partitions."""
    for output in packed:
        for partition, batches in output.batches.items():
            transaction.append(output.topic.id, partition, batches)


def _pack(storage: Storage, topic: Topic, batch: OutputBatch, appended_ms: int) -> dict[int, list[PackedBatch]]:
    if topic.settings.compact and None in batch.keys:
        raise no_key(topic.info.name)

    def appended() -> int:
        with storage.read() as (transaction, _):
            return sum(transaction.extent(topic.id, partition).end for partition in range(topic.info.partitions))

    packed: dict[int, list[PackedBatch]] = {}
    for share in topic.partitioner.split(batch, appended):
        batches = list(pack_share(share, appended_ms, use_append_time=topic.settings.log_append_time))
        packed[share.partition] = batches
        # A record above the limit can only be in a batch above it.
        if any(len(each.data) > topic.settings.max_message_bytes for each in batches):
            check_sizes(batch, topic.settings.max_message_bytes)
    return packed
