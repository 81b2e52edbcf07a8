"""Window stores that retain duplicates, as joins of streams use them: the rows of recently used keys stay in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any

from penstock.compiled import records as compiled

from ..rows.buckets import MAX_TIME
from ..rows.escaping import END, without_end
from ..rows.key_form import MISSING
from ..rows.scan import ListScan
from ..rows.value_form import Encoded
from . import plain
from .known_rows import PRUNED_EVERY, KnownRows, drop_oldest
from .window import BucketWindowStore, HeadersBucketWindowStore, StampedBucketWindowStore

_NUMBER, _BUCKET, _TIME_AND_NUMBER = Struct(">i"), Struct(">q"), Struct(">qi")
_TIMES = 12


class _RetainsDuplicates(BucketWindowStore):
    """A window store whose keys may have several entries in a window.

    `_known` has the rows of recently used keys. A key that is not there may have rows with times up to
    `_unknown_up_to`, which were put before the task was opened, or before its rows were dropped from memory. Keys that
    are too long to be kept are never there; `_has_long_keys` says whether any was put since the task was opened.
    `_pending` has rows that are not serialized yet: key, time, number and value.
    """

    tail_bytes = _TIMES
    entries_from = None  # type: ignore[assignment]
    """No visitor could put or delete one of several entries of a window."""

    def __init__(self, *arguments: Any) -> None:
        self._known: dict[Any, KnownRows] = {}
        self._pending: list[tuple[Any, int, int, Any]] = []
        self._unknown_up_to: int | None = None
        self._has_long_keys = False
        self._added = 0
        super().__init__(*arguments)

    # ------------------------------------------------------------------ single entries

    def _compile_fetch(self) -> Callable[..., Any]:
        known, slow, decoded, retention = self._known.get, self._fetch, self._objects, self.retention
        key_types, locate = self.keys.types, self.keys.locate
        gets = 0
        self.calls.add_total("gets", lambda: gets)

        def fetch(key: Any, time_from: Any = None, time_to: Any = None) -> Any:
            nonlocal gets
            gets += 1
            if type(time_to) is int and type(time_from) is int and type(key) in key_types:
                rows = known(key)
                if rows is not None:
                    times, kept_after = rows.times, retention.kept_after
                    first = bisect_left(times, time_from if time_from > kept_after else kept_after + 1)
                    end = bisect_right(times, time_to, first)
                    if first == end:
                        return ListScan()
                    return ListScan(zip(times[first:end], decoded(key, rows.values[first:end]), strict=True))
                unknown_up_to = self._unknown_up_to
                if (
                    unknown_up_to is not None
                    and (time_from > unknown_up_to or retention.kept_after >= unknown_up_to)
                    and not (self._has_long_keys and locate(key)[1] is MISSING)
                ):
                    return ListScan()
            return slow(key, time_from, time_to)

        if compiled is None:
            return fetch
        fast = compiled.fetch_rows(fetch, self._known, retention, key_types, ListScan, Encoded)
        self.calls.add_total("gets", lambda: fast.count)
        return fast  # type: ignore[no-any-return]

    def _compile_put(self) -> Callable[[Any, Any, int], None]:
        known, slow, pending, retention = self._known.get, self._put, self._pending, self.retention
        key_types, can_wait = self.keys.types, self.values.compile_test()
        free_types = self.values.free_values
        puts = 0
        self.calls.add_total("puts", lambda: puts)

        def put(key: Any, value: Any, window_start: Any = None) -> None:
            nonlocal puts
            puts += 1
            if (
                (type(value) in free_types or can_wait(value))
                and type(window_start) is int
                and type(key) in key_types
                and retention.kept_after < window_start <= MAX_TIME
            ):
                rows = known(key)
                if rows is not None:
                    rows.add(window_start, value, retention.kept_after)
                    pending.append((key, window_start, retention.take_number(), value))
                    if window_start > retention.newest:
                        retention.note(window_start)
                    return
            slow(key, value, window_start)

        if compiled is None or (fit := self.values.fit()) is None:
            return put
        fast = compiled.add(put, self._known, pending, retention, key_types, fit, PRUNED_EVERY)
        self.calls.add_total("puts", lambda: fast.count)
        return fast  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ the commit

    def _flush_objects(self) -> None:
        pending, kept_after = self._pending, self.retention.kept_after
        if not pending:
            return
        kept = [each for each in pending if each[1] > kept_after]
        try:
            rows = self._encoded(kept, self.keys.serializer(), self.values.encode)
        except Exception:
            # Some serdes' serializers refuse what `to_bytes` takes; and it names the key of what is wrong.
            rows = self._encoded(kept, self.keys.to_bytes, None)
        self._below.put_all(rows)
        self._written += len(kept)
        self._added += len(pending)
        pending.clear()
        if self._added > plain.CACHED_ENTRIES // 4:
            self._drop_rows()

    def _encoded(
        self,
        entries: list[tuple[Any, int, int, Any]],
        key_bytes: Callable[[Any], bytes],
        encode: Callable[[Any], bytes] | None,
    ) -> dict[bytes, bytes | None]:
        """Return entries of `_pending` as rows."""
        rows: dict[bytes, bytes | None] = {}
        heads: dict[int, bytes] = {}
        bucket_ms, to_bytes = self._buckets.bucket_ms, self.values.to_bytes
        for key, time, number, value in entries:
            bucket = time // bucket_ms
            head = heads.get(bucket)
            if head is None:
                head = heads[bucket] = _BUCKET.pack(bucket)
            row = head + without_end(key_bytes(key)) + END + _TIME_AND_NUMBER.pack(time, number)
            if type(value) is Encoded:
                rows[row] = value.data
            else:
                rows[row] = to_bytes(key, value) if encode is None else encode(value)
        return rows

    def _drop_objects(self) -> None:
        self._known.clear()
        self._pending.clear()
        self._unknown_up_to = None
        self._has_long_keys = False
        self._added = 0

    # ------------------------------------------------------------------ off the hot path

    def _fetch_one(self, key: Any, time: int) -> Any:
        # Only the entry that was put last has a number that is known, as in Kafka Streams.
        self._flush_objects()
        data = self._below.get(self._row_key(key, time, self.retention.number))
        return None if data is None else self.values.to_object(key, data)

    def _put_one(self, key: Any, value: Any, window_start: int) -> bool:
        value = None if value is None else self.values.checked(value)
        if value is None:
            return False
        raw, which = self.keys.locate(key)
        number = self.retention.take_number()
        if which is MISSING:
            self._below.put(self._row_key(key, window_start, number), self.values.to_bytes(key, value))
            self._written += 1
            self._has_long_keys = True
            return True
        kept = value if self.values.can_wait(value) else Encoded(self.values.to_bytes(key, value))
        self._rows(raw, which).add(window_start, kept, self.retention.kept_after)
        self._pending.append((which, window_start, number, kept))
        return True

    def _kept_entries(self, raw: bytes, key: Any, first: int, last: int) -> Iterable[tuple[int, Any]]:
        return self._entries(key, self._rows(raw, key), first, last)

    def _rows(self, raw: bytes, which: Any) -> KnownRows:
        """Return the rows of a key; if they are not in memory, read them from the store below."""
        rows = self._known.get(which)
        if rows is not None:
            return rows
        if self._unknown_up_to is None:
            self._unknown_up_to = self.retention.newest
        self._added += 1
        if self._added > plain.CACHED_ENTRIES // 4:
            self._flush_objects()
            self._drop_rows()
        rows = self._known[which] = KnownRows()
        first, last = self._kept(0, self._unknown_up_to)
        if last < first:
            return rows
        for _, time, value in self._decoded(self._buckets.of_key(raw, first, last, reverse=False)):
            rows.times.append(time)
            kept = self.values.can_keep(value)
            rows.values.append(value if kept else Encoded(self.values.to_bytes(which, value)))
        self._added += len(rows.times)
        return rows

    def _drop_rows(self) -> None:
        """Keep fewer rows in memory, where there are too many. All rows are written."""
        self._added = 0
        if drop_oldest(self._known, self.retention.kept_after):
            self._unknown_up_to = self.retention.newest

    def _row_key(self, key: Any, start: int, number: int) -> bytes:
        return self._buckets.row_key(self.keys.to_bytes(key), start, _NUMBER.pack(number))


class DuplicatesStore(_RetainsDuplicates):
    """A WindowStore that retains duplicates."""


class StampedDuplicatesStore(_RetainsDuplicates, StampedBucketWindowStore):
    """The same of ValueAndTimestamp."""


class HeadersDuplicatesStore(_RetainsDuplicates, HeadersBucketWindowStore):
    """The same of ValueTimestampHeaders."""
