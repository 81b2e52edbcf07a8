"""SlidingAggregate: an aggregate of each key and sliding window, in a window store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock import Change, Headers, ProcessorContext, Record, Windowed
from penstock.operator import new
from penstock.program.serdes import SerdeLike
from penstock.support.own_copy import own_copy, own_record

from ..closing import NEVER, Note, OpenWindows, WindowTime
from ..table_store import LATE
from .windowed_operator import Send, Take, WindowedOperator, bytes_of_keys
from .windows import SlidingWindows

Put = Callable[[Record, int, Any], None]
"""(record, start, entry before or None): puts the record into a window."""
Copy = Callable[[Record, int, Any], None]
"""(record, start, entry): makes a window that has what another one had."""


@dataclass(kw_only=True, eq=False)
class SlidingAggregate(WindowedOperator):
    """An aggregation over sliding windows. A window of [start, start + difference] has both its ends.

    The stored timestamp of a window is that of its last record. A record at `t` updates the windows around it, and
    makes up to three: the one that ends at `t`, the one that begins right after it, and the one that begins right after
    the record before. Those that nothing would be in are not made. Kafka Streams: KStreamSlidingWindowAggregate.
    """

    takes_null_values: ClassVar[bool] = False

    windows: SlidingWindows
    key_serde: SerdeLike = None

    @property
    def _wait_ms(self) -> int:
        return self.windows.grace_ms + 1

    def _bind_windows(
        self, context: ProcessorContext, time: WindowTime, open_windows: OpenWindows
    ) -> tuple[Take, Send]:
        store = context.get_store(self.store)
        difference, on_close = self.windows.difference_ms, self.on_close
        put, fetch, drop, stored = store.put, store.fetch, context.metrics.drop, self._stored
        initial, take_value = self.fold.initial, self.fold.compile_take(context.node)
        update, emit = self._compile_update(context, store), self._emitter(context)
        key_bytes, keeps_headers = bytes_of_keys(self.key_serde, context), self.keeps_headers
        sends_old = self.sends_old and not on_close and store.record_cache is None

        taken, known = False, set[int]()

        def write(record: Record, start: int, entry: Any) -> None:
            nonlocal taken
            # A record goes to several windows, and an entry is the beginning of several.
            key, value, timestamp, headers = own_record(record)
            if start + difference <= time.closed:
                drop(LATE)
                return
            taken = True
            old = initial() if entry is None else entry[0]
            at = timestamp if entry is None else max(timestamp, entry[1])
            # Not of `entry`: a window may begin with that of another one, and be written twice.
            sent = fetch(key, start) if sends_old else None
            before = None if sent is None else sent[0]
            aggregate = take_value(key, value, own_copy(old))
            put(key, stored(aggregate, at, headers), start)
            if on_close and aggregate is not None and start not in known:
                open_windows.add(start + difference, (start, key_bytes(key)), key)
            update(key, start, start + difference, aggregate, before, at, headers)

        def copy(record: Record, start: int, entry: Any) -> None:
            key = record[0]
            put(key, entry, start)
            if on_close:
                open_windows.add(start + difference, (start, key_bytes(key)), key)
            update(own_copy(key), start, start + difference, own_copy(entry[0]), None, entry[1], record[3])

        def take(record: Record) -> bool:
            nonlocal taken, known
            taken, timestamp = False, record[2]
            if timestamp + difference <= time.closed:
                drop(LATE)
                return False
            with fetch(record[0], max(0, timestamp - 2 * difference), timestamp + 1) as rows:
                windows = list(rows)
            if on_close:
                known = {start for start, _ in windows}
            work = _early if timestamp < difference else _in_order
            work(record, windows, difference, write, copy)
            return taken

        def send(due: list[Note], headers: Headers) -> None:
            for _, (start, _), key in due:
                entry = fetch(key, start)
                if entry is not None:
                    of_window = entry[2] if keeps_headers else headers
                    window = new(Windowed, (key, start, start + difference))
                    emit((window, new(Change, (entry[0], None)), entry[1], of_window))

        return take, send

    def _read_open(self, context: ProcessorContext, after: int) -> Iterable[Note]:
        """Return (end, (start, bytes of the key), key) of the windows in the store that end later than `after`."""
        key_bytes, difference = bytes_of_keys(self.key_serde, context), self.windows.difference_ms
        with context.get_store(self.store).fetch_all(max(0, after - difference), NEVER) as rows:
            return [(start + difference, (start, key_bytes(key)), key) for (key, start, _), _ in rows]


def _in_order(record: Record, windows: list[Any], difference: int, write: Put, copy: Copy) -> None:
    """Put a record at or after `difference` ms into its windows; `windows` are (start, entry) near it, ascending."""
    timestamp = record[2]
    starts = set()
    has_left = has_right = False
    left = right = previous = None
    for start, entry in reversed(windows):
        starts.add(start)
        end = start + difference
        if start == timestamp + 1:
            has_right = True
        elif end > timestamp:
            right = entry if right is None else right
            write(record, start, entry)
        elif end == timestamp:
            has_left = True
            write(record, start, entry)
            if entry[1] >= timestamp:
                return  # there was a record at this time before, so all windows are there
            previous = entry[1]
        else:
            left, previous = entry, entry[1]
            break
    if previous is not None and previous + 1 not in starts and previous + 1 + difference >= timestamp:
        write(record, previous + 1, None)
    if not has_left:
        joins_left = left is not None and previous is not None and previous >= timestamp - difference
        write(record, timestamp - difference, left if joins_left else None)
    if not has_right and right is not None and right[1] > timestamp:
        copy(record, timestamp + 1, right)


def _early(record: Record, windows: list[Any], difference: int, write: Put, copy: Copy) -> None:
    """Put a record before `difference` ms into its windows: the one that begins at 0 has all such records."""
    timestamp = record[2]
    starts = {start for start, _ in windows}
    combined = right = previous = None
    for start, entry in windows:
        if start == 0:
            combined = entry
            if entry[1] < timestamp:
                previous = entry[1]
        elif start <= timestamp:
            write(record, start, entry)
            right = entry
    if right is None and combined is not None and combined[1] > timestamp:
        right = combined
    if timestamp + 1 not in starts and right is not None and right[1] > timestamp:
        copy(record, timestamp + 1, right)
    if previous is not None and previous + 1 not in starts:
        write(record, previous + 1, None)
    write(record, 0, combined)
