"""Timestamp extractors: choose the timestamp of each record that is read."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ProcessingError
from ..record import Record

TimestampExtractor = Callable[[Record, int, int], int]
"""(record, partition time, wall clock) -> the record's timestamp in ms; below 0 drops the record, counted.

The record carries the log's timestamp. The partition time is the highest timestamp of this partition so far, -1 at
first. Semantics: Kafka Streams' TimestampExtractor.
"""


def fail_on_invalid_timestamp(record: Record, partition_time: int, wall_clock: int) -> int:
    """Return the record's own timestamp; fail when it is negative. The default."""
    if record.timestamp < 0:
        raise ProcessingError(
            f"record with key {record.key!r} has the invalid timestamp {record.timestamp}; set a timestamp_extractor "
            "on the source, for instance skip_on_invalid_timestamp or use_partition_time_on_invalid_timestamp"
        )
    return record.timestamp


def skip_on_invalid_timestamp(record: Record, partition_time: int, wall_clock: int) -> int:
    """Return the record's own timestamp; a negative one drops the record, counted."""
    return record.timestamp


def use_partition_time_on_invalid_timestamp(record: Record, partition_time: int, wall_clock: int) -> int:
    """Return the record's own timestamp, or the partition's time when it is negative; fail when there is none yet."""
    if record.timestamp >= 0:
        return record.timestamp
    if partition_time < 0:
        raise ProcessingError(
            f"record with key {record.key!r} has the invalid timestamp {record.timestamp}, and its partition has no "
            "time yet"
        )
    return partition_time


def wall_clock_timestamp(record: Record, partition_time: int, wall_clock: int) -> int:
    """Return the time at which the record is processed."""
    return wall_clock


EXTRACTORS = (
    fail_on_invalid_timestamp, skip_on_invalid_timestamp, use_partition_time_on_invalid_timestamp, wall_clock_timestamp,
)  # fmt: skip
"""Extractors that a file or an option may name without a module."""
