"""Where tasks start in partitions that have no committed position, as `offset_reset` says."""

from __future__ import annotations

from collections.abc import Mapping

from penstock import Log, Settings, SourceNode, TopicPartition
from penstock.program.offset_reset import (
    EARLIEST,
    LATEST,
    offset_reset_text,
    oldest_ms,
)


def offset_reset_of(source: SourceNode, settings: Settings, *, is_internal: bool) -> str:
    """Return "earliest", "latest" or a length of time. An internal topic is always read from its start.

    What it has is the application's own, also where a task opens after another has written to it.
    """
    if is_internal:
        return EARLIEST
    return offset_reset_text(source.offset_reset or settings.offset_reset, f"source {source.name!r}: offset_reset")


def starting_offsets(log: Log, resets: Mapping[TopicPartition, str], now_ms: int) -> dict[TopicPartition, int]:
    """Return the offset that each partition is first read from. `resets`: of each, what `offset_reset_of` returns.

    By a length of time, that is the first record whose timestamp is not older than it at `now_ms`, or else the end.
    """
    found: dict[TopicPartition, int] = {}
    for reset in dict.fromkeys(resets.values()):
        partitions = [each for each, of in resets.items() if of == reset]
        if reset == EARLIEST:
            found |= log.start_offsets(partitions)
        elif reset == LATEST:
            found |= log.end_offsets(partitions)
        else:
            found |= log.offsets_for_time(partitions, oldest_ms(reset, now_ms))
    return found
