"""OffsetCopies: committed offsets that are also kept as notes of their application, where Kafka does not forget them.

Brokers forget the offsets of a group without members `offsets.retention.minutes` after each was committed. A running
task repeats its commit in time. An offset that no task repeats, because a tool committed it, has a copy. The offset
and its copy are written in one transaction. So is the first commit of a task over them, which removes the copies: from
then on a missing offset is a lost one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import TopicPartition as KafkaPartition

from penstock import OutputBatch, TopicPartition

from .positions import partition_of

Records = Mapping[bytes | None, bytes | None]
"""The newest value of each key of the topic of notes; None: the note was deleted a short time ago."""


class OffsetCopies:
    """The copies of one application's offsets.

    `notes` returns its notes as they are now, and `ids` the ids of topics: the copy of an offset in a topic that was
    deleted does not count for another topic of that name. `topic`: the topic of the notes; `create` makes it.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        notes: Callable[[], Records],
        ids: Callable[[Collection[str]], Mapping[str, str]],
        create: Callable[[], None],
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._notes = notes
        self._ids = ids
        self._create = create

    def of(self, partitions: Iterable[TopicPartition]) -> tuple[dict[TopicPartition, KafkaPartition], bool]:
        """Return the copies of offsets, and whether a copy was removed lately: then there is a commit after it."""
        partitions = list(partitions)
        notes = self._notes() if partitions else {}
        found: dict[TopicPartition, dict[str, Any]] = {}
        was_removed = False
        for partition in partitions:
            note = notes.get(key := _key(partition))
            was_removed = was_removed or (key in notes and note is None)
            if note is not None:
                found[partition] = json.loads(note)
        ids = self._ids({each.topic for each in found}) if found else {}
        copies = {
            each: KafkaPartition(*each, copy["offset"], metadata=copy["metadata"])
            for each, copy in found.items()
            if not copy["topic_id"] or ids.get(each.topic, "") in ("", copy["topic_id"])
        }
        return copies, was_removed

    def records(self, offsets: Sequence[KafkaPartition]) -> dict[bytes | None, bytes | None]:
        """Return the notes that are copies of offsets."""
        ids = self._ids({offset.topic for offset in offsets})
        copies: dict[bytes | None, bytes | None] = {}
        for offset in offsets:
            copy = {"offset": offset.offset, "metadata": offset.metadata, "topic_id": ids.get(offset.topic, "")}
            copies[_key(partition_of(offset))] = json.dumps(copy).encode()
        return copies

    def batch(self, offsets: Sequence[KafkaPartition]) -> OutputBatch:
        """Return the copies of offsets as records of the transaction that commits them."""
        self._create()
        return self._batch(self.records(offsets))

    def removal(self, partitions: Iterable[TopicPartition]) -> OutputBatch:
        """Return the records that remove copies."""
        return self._batch(dict.fromkeys(map(_key, partitions)))

    def _batch(self, notes: Records) -> OutputBatch:
        count = len(notes)
        return OutputBatch(
            self._topic, list(notes), list(notes.values()), [0] * count, None, [[self._partition]] * count
        )


def with_copies(
    found: Sequence[KafkaPartition], copies: Mapping[TopicPartition, KafkaPartition]
) -> list[KafkaPartition]:
    """Return a group's offsets, with the copy of each that it does not have."""
    return [copies.get(partition_of(each), each) if _is_missing(each) else each for each in found]


def missing(found: Iterable[KafkaPartition]) -> list[TopicPartition]:
    """Return the partitions without an offset."""
    return [partition_of(each) for each in found if _is_missing(each)]


def _is_missing(found: KafkaPartition) -> bool:
    return found.error is None and found.offset < 0


def _key(partition: TopicPartition) -> bytes:
    return f"offset:{partition.topic}:{partition.partition}".encode()
