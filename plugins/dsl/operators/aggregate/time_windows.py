"""WindowAggregate: an aggregate of each key and window, in a window store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock import Change, Headers, ProcessorContext, Record, ValueAndTimestamp, Windowed
from penstock.operator import new
from penstock.support.own_copy import IMMUTABLE, own_copy

from ..closing import NEVER, Note, OpenWindows, WindowTime
from ..table_store import LATE
from .folds import Counting
from .windowed_operator import Send, Take, WindowedOperator
from .windows import TimeWindows, TumblingWindows


@dataclass(kw_only=True, eq=False)
class WindowAggregate(WindowedOperator):
    """An aggregation over windows that follow from timestamps.

    A window takes a record until the operator's stream time reaches its end and the grace. For each window of a record
    that is too late for it, one drop is counted. Kafka Streams: KStreamWindowAggregate.
    """

    windows: TimeWindows

    @property
    def _wait_ms(self) -> int:
        return self.windows.grace_ms

    def _bind_windows(
        self, context: ProcessorContext, time: WindowTime, open_windows: OpenWindows
    ) -> tuple[Take, Send]:
        store = context.get_store(self.store)
        fetch, put, drop = store.fetch, store.put, context.metrics.drop
        initial, take_value, stored = self.fold.initial, self.fold.compile_take(context.node), self._stored
        counts = isinstance(self.fold, Counting)
        windows_for, length, on_close = self.windows.compile(), _tumbling_ms(self.windows), self.on_close
        emit, sends_old, keeps_headers = self._emitter(context), self.sends_old, self.keeps_headers
        send_update, of_values = self._compile_send(context, store)
        sends_updates = not on_close and store.record_cache is None
        sends_old = sends_old and sends_updates

        def take(record: Record) -> bool:
            key, value, timestamp, headers = record
            closed = time.closed
            if length is None:
                windows = windows_for(timestamp)
            else:  # the most common windows, without a call
                first = timestamp - timestamp % length
                windows = ((first, first + length),)
            taken = not windows
            # Each of several windows gets its own: it may be changed there, or become the aggregate.
            are_own = len(windows) < 2 or (type(value) in IMMUTABLE and type(key) in IMMUTABLE)
            for start, end in windows:
                if end <= closed:
                    drop(LATE)
                    continue
                taken = True
                if not are_own:
                    key, value = own_copy(record[0]), own_copy(record[1])
                entry = fetch(key, start)
                if entry is None:
                    old, at, before = initial(), timestamp, None
                else:
                    old = entry[0]
                    at = timestamp if timestamp >= entry[1] else entry[1]
                    before = (old if type(old) in IMMUTABLE else own_copy(old)) if sends_old else None
                aggregate = old + 1 if counts else take_value(key, value, old)
                if aggregate is None or keeps_headers:
                    put(key, stored(aggregate, at, headers), start)
                else:  # the common case, without a call
                    put(key, new(ValueAndTimestamp, (aggregate, at)), start)
                if on_close:
                    open_windows.add(end, start)
                elif sends_updates:
                    update = aggregate if of_values else new(Change, (aggregate, before))
                    send_update((new(Windowed, (key, start, end)), update, at, headers))
            return taken

        def send(due: list[Note], headers: Headers) -> None:
            ends = {start: end for end, start, _ in due}
            for (key, start, _), entry in _rows(store, sorted(ends)):
                of_window = entry[2] if keeps_headers else headers
                change = new(Change, (entry[0], None))
                emit((new(Windowed, (key, start, ends[start])), change, entry[1], of_window))

        return take, send

    def _read_open(self, context: ProcessorContext, after: int) -> Iterable[Note]:
        """Return (end, start, None) of the windows in the store that end later than `after`."""
        with context.get_store(self.store).fetch_all(max(0, after - self.windows.size_ms), NEVER) as rows:
            starts = {windowed.start for windowed, _ in rows}
        ends = [(start, self.windows.end_of(start)) for start in starts]
        return [(end, start, None) for start, end in ends if end is not None]


def _tumbling_ms(windows: TimeWindows) -> int | None:
    """Return how long tumbling windows are; None for others."""
    return windows.length_ms if isinstance(windows, TumblingWindows) and windows.are_of_one_length else None


def _rows(store: Any, starts: list[int]) -> Iterable[tuple[Windowed, Any]]:
    """Return the rows of windows by start, then key."""
    if len(starts) == 1:  # the common case needs no copy of all rows
        return store.fetch_all(starts[0], starts[0])  # type: ignore[no-any-return]
    if not starts:
        return ()
    wanted = set(starts)
    with store.fetch_all(starts[0], starts[-1]) as rows:
        found = [row for row in rows if row[0].start in wanted]
    return sorted(found, key=lambda row: row[0].start)
