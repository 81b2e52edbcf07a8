"""Suppress: keeps a table's updates back, and lets the last one of each key go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from penstock.context import ProcessorContext
from penstock.errors import ProcessingError
from penstock.operator import Operator, Run, new
from penstock.record import Headers, Record
from penstock.serde import Serde
from penstock.store.record_cache import Change

from ..own_time import IdleClock, OwnTime, forget_idle_time
from ..updates import LATE
from .buffered import Buffered

_OF_RECORD = 28
"""About how many bytes an update takes beside its key, values and headers."""


@dataclass(kw_only=True, eq=False)
class Suppress(Operator):
    """Keeps the last update of each key in a store, until its time is `wait_ms` before the node's stream time.

    `keys` and `values` are the serdes of the table. The time of a key is that of the first update that was kept, or
    with `by_window` the end of its window. Updates leave by time, then the bytes of their keys. With
    `drops_tombstones`, deletions do not leave. `max_records` and `max_bytes` bound the buffer: if it has more, the
    oldest leave early, or with `stops_when_full` the record fails. `idle_ms`: after so long without an update, time
    goes on with the wall clock; an update of a window that has left is late then, and dropped. Which keys wait, and
    since when, is in memory, too. Kafka Streams: KTableSuppressProcessorSupplier.
    """

    store: str
    keys: Serde[Any]
    values: Serde[Any]
    wait_ms: int
    by_window: bool = False
    drops_tombstones: bool = False
    max_records: int | None = None
    max_bytes: int | None = None
    stops_when_full: bool = False
    idle_ms: int | None = None

    def __post_init__(self) -> None:
        self._idle: IdleClock | None = None
        self._time: OwnTime | None = None
        self._let_go_until: Callable[[int], None] | None = None
        self._places: list[tuple[int, bytes]] = []
        self._sizes: dict[bytes, int] = {}
        self._bytes = 0

    @classmethod
    def saved_with(cls, *args: Any, store: str, **options: Any) -> str:
        """Return the buffer: the times belong to it."""
        return store

    def init(self, context: ProcessorContext) -> None:
        """Read which keys wait; watch for idle input."""
        super().init(context)
        with context.get_store(self.store).all() as entries:
            for raw, entry in entries:
                # An earlier program may have let updates go by another time than the end of their window.
                time = self.keys.deserialize(raw)[2] if self.by_window else entry.time
                self._places.append((time, raw))
                self._note_size(raw, entry)
        heapify(self._places)
        if self.idle_ms is not None:
            assert self._time is not None
            self._idle = IdleClock(context, self.idle_ms, self._time, self._move)
        else:
            forget_idle_time(context)

    def _move(self, time: int) -> None:
        assert self._time is not None and self._let_go_until is not None
        self._time.move(time)
        self._let_go_until(time - self.wait_ms)

    def bind(self, context: ProcessorContext) -> Run:
        store = context.get_store(self.store)
        get, put, key_bytes = store.get, store.put, self.keys.serialize
        time = self._time = OwnTime(context)
        by_window, wait, places, let_go = self.by_window, self.wait_ms, self._places, self._compile_let_go(context)
        is_watched, drop = self.idle_ms is not None, context.metrics.drop
        is_bounded = self.max_records is not None or self.max_bytes is not None
        sizes, note_size = self._sizes, self._note_size

        def let_go_until(time: int) -> None:
            while places and places[0][0] <= time:
                let_go()

        self._let_go_until = let_go_until

        def run(record: Record) -> None:
            key, (value, old), timestamp, headers = record
            if is_watched:
                self._note_arrival()
                if by_window and key[2] <= time.now - wait:
                    drop(LATE)
                    return
            raw = key_bytes(key)
            before = get(raw)
            if before is None:
                entry = Buffered(key[2] if by_window else timestamp, timestamp, headers, old, old, value)
                heappush(places, (entry[0], raw))
            else:
                entry = Buffered(before[0], timestamp, headers, before[3], old, value)
            put(raw, entry)
            if is_bounded:
                note_size(raw, entry)
            elif before is None:
                sizes[raw] = 0
            if timestamp > time.now:
                time.move(timestamp)
            let_go_until(time.now - wait)
            if is_bounded and self._is_full():
                self._make_room(context.node, let_go)

        return run

    def _note_arrival(self) -> None:
        assert self._idle is not None
        self._idle.note_arrival()

    def _compile_let_go(self, context: ProcessorContext) -> Any:
        """Return the function that removes the first update, and forwards it."""
        store = context.get_store(self.store)
        forward, places, drops_tombstones, key_of = (
            context.send,
            self._places,
            self.drops_tombstones,
            self.keys.deserialize,
        )

        def let_go() -> None:
            _, raw = heappop(places)
            entry = store.get(raw)
            store.put(raw, None)
            self._bytes -= self._sizes.pop(raw)
            if entry.new is not None or not drops_tombstones:
                change = new(Change, (entry.new, entry.old))
                forward((key_of(raw), change, entry.timestamp, entry.headers))

        return let_go

    def _is_full(self) -> bool:
        too_many = self.max_records is not None and len(self._sizes) > self.max_records
        return too_many or (self.max_bytes is not None and self._bytes > self.max_bytes)

    def _make_room(self, node: str, let_go: Any) -> None:
        if self.stops_when_full:
            raise ProcessingError(
                f"node {node!r}: its buffer has {len(self._sizes)} records and about {self._bytes} bytes, and may have "
                f"{'any number of' if self.max_records is None else self.max_records} records and "
                f"{'any number of' if self.max_bytes is None else self.max_bytes} bytes; allow more, or let the "
                'oldest leave: suppress(..., when_full="emit_early")'
            )
        while self._is_full():
            let_go()

    def _note_size(self, raw: bytes, entry: Buffered) -> None:
        size = 0
        if self.max_bytes is not None:
            values = [self.values.serialize(each) for each in entry[3:] if each is not None]
            size = _OF_RECORD + len(raw) + _size(entry.headers) + sum(map(len, values))
        self._bytes += size - self._sizes.get(raw, 0)
        self._sizes[raw] = size


def _size(headers: Headers) -> int:
    return sum(len(name) + len(data or b"") for name, data in headers)
