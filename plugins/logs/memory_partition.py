"""One partition of the memory log: records by column, with retention and compaction."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

from penstock import Headers, RecordBatch, TopicPartition

from .messages import out_of_range, record_size
from .partitioner import Share
from .topics import TopicSettings

_FETCH_STEP = 256


@dataclass(slots=True)
class MemoryPartition:
    """Records by column, from offset `start` up to, not including, `end`.

    `headers` is None until a record has some. `appended` (milliseconds) is filled in compacted topics only.
    """

    start: int = 0
    end: int = 0
    offsets: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    headers: list[Headers] | None = None
    appended: list[int] = field(default_factory=list)

    def append(self, share: Share, settings: TopicSettings, now_ms: int) -> None:
        """Add records at the end."""
        added = len(share.keys)
        if share.headers is not None and self.headers is None and any(share.headers):
            self.headers = [()] * len(self.keys)
        if self.headers is not None:
            self.headers.extend(share.headers if share.headers is not None else [()] * added)
        self.offsets.extend(range(self.end, self.end + added))
        self.keys.extend(share.keys)
        self.values.extend(share.values)
        self.timestamps.extend([now_ms] * added if settings.log_append_time else share.timestamps)
        if settings.compact:
            self.appended.extend([now_ms] * added)
        self.end += added

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        """Return records as `Log.fetch` does. Raises OffsetOutOfRangeError."""
        if not self.start <= offset <= self.end:
            raise out_of_range(partition, offset, self.start, self.end)
        end = min(end, self.end)
        first, stop = bisect_left(self.offsets, offset), bisect_left(self.offsets, end)
        if first >= stop:
            return []
        last, size = first, 0
        while last < stop and size < max_bytes:
            step = min(last + _FETCH_STEP, stop)
            present = filter(None, chain(self.keys[last:step], self.values[last:step]))
            size += sum(map(len, present)) + 8 * (step - last)
            last = step
        return [
            RecordBatch(
                partition.topic,
                partition.partition,
                self.offsets[first:last],
                self.keys[first:last],
                self.values[first:last],
                self.timestamps[first:last],
                None if self.headers is None else self.headers[first:last],
                end if last == stop else self.offsets[last],
            )
        ]

    def offset_for_time(self, timestamp_ms: int) -> int:
        """Return the offset of the first record at or after a time; the end where there is none."""
        found = (offset for offset, at in zip(self.offsets, self.timestamps, strict=True) if at >= timestamp_ms)
        return next(found, self.end)

    def purge(self, before: int) -> None:
        """Delete records below offset `before`."""
        self.start = max(self.start, min(before, self.end))
        self._keep_from(bisect_left(self.offsets, self.start))

    def maintain(self, settings: TopicSettings, now_ms: int) -> None:
        """Apply compaction and retention."""
        if settings.compact:
            self._compact(settings, now_ms)
        if settings.delete:
            index = 0
            if settings.retention_ms >= 0:
                oldest = now_ms - settings.retention_ms
                index = next((i for i, at in enumerate(self.timestamps) if at >= oldest), len(self.timestamps))
            if settings.retention_bytes >= 0:
                totals = list(accumulate(map(record_size, self.keys, self.values)))
                excess = (totals[-1] if totals else 0) - settings.retention_bytes
                index = max(index, bisect_right(totals, excess))
            if index:
                self.purge(self.offsets[index] if index < len(self.offsets) else self.end)

    def _compact(self, settings: TopicSettings, now_ms: int) -> None:
        stop = len(self.keys)
        if settings.min_compaction_lag_ms:
            young = now_ms - settings.min_compaction_lag_ms
            stop = next((index for index, at in enumerate(self.timestamps) if at > young), stop)
        newest = dict(zip(self.keys[:stop], self.offsets, strict=False))
        horizon = now_ms - settings.delete_retention_ms
        kept = [
            index
            for index, (key, value, offset, appended) in enumerate(
                zip(self.keys, self.values, self.offsets, self.appended, strict=True)
            )
            if index >= stop or (newest[key] == offset and (value is not None or appended > horizon))
        ]
        for column in self._columns():
            column[:] = [column[index] for index in kept]

    def _keep_from(self, index: int) -> None:
        for column in self._columns():
            del column[:index]

    def _columns(self) -> list[list[Any]]:
        columns: list[list[Any] | None] = [
            self.offsets, self.keys, self.values, self.timestamps, self.appended, self.headers,
        ]  # fmt: skip
        return [column for column in columns if column]
