"""Errors and sizes of records that the logs share, so that each log words and counts them the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from penstock import (
    FencedError,
    LogError,
    OffsetOutOfRangeError,
    OutputBatch,
    ProductionError,
    RecordRefusedError,
    TopicPartition,
    UnknownTopicError,
)
from penstock.support.names import did_you_mean


def unknown_topic(name: str, existing: Iterable[str], where: str) -> UnknownTopicError:
    """Return the error for a missing topic."""
    question = did_you_mean(name, sorted(existing))
    return UnknownTopicError(
        f"topic {name!r} does not exist in {where}{f'; {question}' if question else '.'} Create it with `penstock "
        f"topics create {name}`."
    )


def check_partition(name: str, partition: int, partitions: int) -> None:
    """Raise LogError unless the topic has the partition."""
    if not 0 <= partition < partitions:
        raise LogError(f"topic {name!r} has no partition {partition}: it has {partitions} (0 to {partitions - 1})")


def check_sizes(batch: OutputBatch, limit: int) -> None:
    """Raise RecordRefusedError for a record above the topic's limit, naming the largest one."""
    largest = max(map(record_size, batch.keys, batch.values), default=0)
    if largest > limit:
        raise RecordRefusedError(
            f"topic {batch.topic!r}: a record of {largest} bytes is larger than the topic's 'max.message.bytes' "
            f"({limit}): make records smaller or raise that setting",
            batch.topic,
            above=limit,
        )


def about_bytes(column: Sequence[bytes | None], samples: int) -> int:
    """Return about the bytes of a column, by a sample: to add up every length takes too long."""
    step = 1 + len(column) // samples
    return sum(map(len, filter(None, column[::step]))) * step


def record_size(key: bytes | None, value: bytes | None) -> int:
    """Return the bytes of a record's key and value."""
    return (len(key) if key is not None else 0) + (len(value) if value is not None else 0)


def no_such_partition(name: str, partition: int, partitions: int) -> ProductionError:
    """Return the error for a record whose partitioner chose a partition that the topic does not have."""
    return ProductionError(
        f"topic {name!r}: a partitioner chose partition {partition!r}, but the topic has {partitions} "
        f"(0 to {partitions - 1}): correct the partitioner"
    )


def no_key(name: str) -> RecordRefusedError:
    """Return the error for a record without a key in a topic that keeps the last value of each key."""
    return RecordRefusedError(
        f"topic {name!r} is compacted (cleanup.policy=compact) and takes no record without a key: give it a key",
        name,
        without_key=True,
    )


def fenced(application_id: str, task_id: str) -> FencedError:
    """Return the error for a replaced committer."""
    return FencedError(
        f"task {task_id} of application {application_id!r} was taken over by another process, or its commits were "
        "deleted: nothing was changed; open it again"
    )


def lease_lost(application_id: str, owner: str) -> FencedError:
    """Return the error for a driver whose lease another one took."""
    return FencedError(
        f"{owner} lost the lease of application {application_id!r}: it was not renewed in time and another driver runs "
        "it now"
    )


def out_of_range(partition: TopicPartition, offset: int, start: int, end: int) -> OffsetOutOfRangeError:
    """Return the error for an offset that the log does not have."""
    error = OffsetOutOfRangeError(
        f"offset {offset} of topic {partition.topic!r} partition {partition.partition} is out of range: the log has "
        f"offsets from {start} up to, not including, {end} (how long it keeps records is the topic's `retention.ms` "
        "and `retention.bytes`)"
    )
    error.partition = partition
    return error


@contextmanager
def unknown_topics_as_production_errors() -> Iterator[None]:
    """Raise ProductionError for a missing topic: in a commit, it means that an output cannot be produced."""
    try:
        yield
    except UnknownTopicError as error:
        raise ProductionError(f"cannot produce: {error}") from error
