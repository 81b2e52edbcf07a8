"""The records of a topic, for comparisons."""

from __future__ import annotations

from penstock import Log, Record, TopicPartition

from ..waiting import readable_end


def records(log: Log, topic: str) -> dict[int, list[Record]]:
    """Return the committed records of each partition, in order, as bytes."""
    found: dict[int, list[Record]] = {}
    for number in range(log.topic(topic).partitions):
        partition = TopicPartition(topic, number)
        at, end = log.start_offsets([partition])[partition], readable_end(log, partition)
        found[number] = []
        while at < end:
            batches = log.fetch(partition, at, end, 10_000_000)
            for batch in batches:
                headers = batch.headers or [()] * len(batch)
                columns = zip(batch.keys, batch.values, batch.timestamps, headers, strict=True)
                found[number] += [Record(*each) for each in columns]
            at = batches[-1].next_offset if batches else end
    return found


def values(log: Log, topic: str) -> list[bytes | None]:
    """Return the values of all partitions, one after the other."""
    return [each.value for partition in records(log, topic).values() for each in partition]
