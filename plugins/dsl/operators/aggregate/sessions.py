"""SessionAggregate: an aggregate of each key and session, in a session store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock import Change, FlushListener, Headers, ProcessorContext, Record, ValueTimestampHeaders, Windowed
from penstock.operator import new
from penstock.program.serdes import SerdeLike
from penstock.support.own_copy import IMMUTABLE, own_copy

from ..closing import Note, OpenWindows, WindowTime
from ..table_store import LATE
from .windowed_operator import Send, Take, WindowedOperator, bytes_of_keys
from .windows import SessionWindows


@dataclass(kw_only=True, eq=False)
class SessionAggregate(WindowedOperator):
    """An aggregation over sessions.

    A record is merged with all sessions of its key that are at most the gap away. Each of them that grows is removed: a
    tombstone with the timestamp of its end comes before the update, which has that of the new end. Kafka Streams:
    KStreamSessionWindowAggregate.
    """

    windows: SessionWindows
    key_serde: SerdeLike = None

    @property
    def _wait_ms(self) -> int:
        return self.windows.gap_ms + self.windows.grace_ms + 1

    def _bind_windows(
        self, context: ProcessorContext, time: WindowTime, open_windows: OpenWindows
    ) -> tuple[Take, Send]:
        store = context.get_store(self.store)
        find, put, remove, drop = store.find_sessions, store.put, store.remove, context.metrics.drop
        gap, on_close, keeps_headers = self.windows.gap_ms, self.on_close, self.keeps_headers
        initial, merged, take_value = self.fold.initial, self.fold.merged, self.fold.compile_take(context.node)
        emit, sends_old = self._emitter(context), self.sends_old
        send_update, of_values = self._compile_send(context, store)
        sends_updates = not on_close and store.record_cache is None
        key_bytes = bytes_of_keys(self.key_serde, context)

        def take(record: Record) -> bool:
            key, value, timestamp, headers = record
            start = end = timestamp
            aggregate = initial()
            stored = list(find(key, timestamp - gap, timestamp + gap))
            found = [(each, entry[0]) for each, entry in stored] if keeps_headers else stored
            for (_, one_start, one_end), entry in found:
                # `entry` is the old value
                aggregate = merged(key, aggregate, entry if type(entry) in IMMUTABLE else own_copy(entry))
                start = one_start if one_start < start else start
                end = one_end if one_end > end else end
            if end <= time.closed:
                drop(LATE)
                return False
            # Before a session is removed: a record that fails here is skipped, and the sessions stay.
            aggregate = take_value(key, value, aggregate)
            before = None
            kept = aggregate
            if keeps_headers and aggregate is not None:
                kept = new(ValueTimestampHeaders, (aggregate, end, headers))
            grows = start != end or end != timestamp
            if grows:
                for session, _ in found:
                    remove(session)
            elif found:  # the session of one time, which stays
                before = found[0][1]
            try:
                put(new(Windowed, (key, start, end)), kept)
            except Exception:  # the serde refuses the aggregate: the sessions stay here, too
                if grows:
                    for session, entry in stored:
                        put(session, entry)
                raise
            if sends_updates:
                for session, entry in found if grows else ():
                    own_key = key if type(key) in IMMUTABLE else own_copy(key)
                    update = None if of_values else new(Change, (None, entry if sends_old else None))
                    send_update((new(Windowed, (own_key, session[1], session[2])), update, session[2], headers))
            elif on_close and (kept is None or len(found) != 1 or found[0][0][1] != start):
                raw = key_bytes(key)
                replaced = [(session[1], raw) for session, _ in found]
                open_windows.merge(replaced, end, None if kept is None else (start, raw), key)
            if sends_updates:
                update = aggregate if of_values else new(Change, (aggregate, before if sends_old else None))
                send_update((new(Windowed, (key, start, end)), update, end, headers))
            return True

        def send(due: list[Note], headers: Headers) -> None:
            closed: dict[tuple[int, int, bytes], tuple[Any, Any]] = {}
            for _, (start, raw), key in due:
                with find(key, start, start) as rows:
                    for (_, _, end), entry in rows:
                        if on_close and end > time.closed:  # it has grown since it was noted
                            open_windows.add(end, (start, raw), key)
                        else:
                            closed[end, start, raw] = key, entry
            for end, start, raw in sorted(closed):
                key, entry = closed[end, start, raw]
                value, of_window = (entry[0], entry[2]) if keeps_headers else (entry, headers)
                emit((new(Windowed, (key, start, end)), new(Change, (value, None)), end, of_window))

        return take, send

    def _read_open(self, context: ProcessorContext, after: int) -> Iterable[Note]:
        """Return (end, (start, bytes of the key), key) of the sessions in the store that end later than `after`."""
        key_bytes, store = bytes_of_keys(self.key_serde, context), context.get_store(self.store)
        with store.find_sessions_range(None, None, after + 1, 2**63 - 1) as rows:
            return [(end, (start, key_bytes(key)), key) for (key, start, end), _ in rows]

    def _listener(self, context: ProcessorContext) -> FlushListener:
        emit, sends_old, keeps_headers = self._emitter(context), self.sends_old, self.keeps_headers

        def flushed(record: Record) -> None:
            session, (after, before), _, headers = record
            if keeps_headers:
                after, before = (None if each is None else each[0] for each in (after, before))
            change = new(Change, (after, before if sends_old else None))
            emit((session, change, session[2], headers))

        return flushed
