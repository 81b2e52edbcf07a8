"""BytesTimerStore: a row for each timer, by clock and key, and an index by time beside it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import Any

from penstock import BytesStore, Entries, PunctuationType, StateStore, StoreContext
from penstock.store import IndexStore
from penstock.store.envelope import PLAIN
from penstock.store.kinds.timers import TimerStore, TimerStoreSpec

from ..rows.key_form import KeyForm
from ..rows.scan import Scan
from ..rows.time_index import IndexBuild, TimeIndex

_ROW = Struct(">cq")
_HEADS = {PunctuationType.STREAM_TIME: b"\x01", PunctuationType.WALL_CLOCK_TIME: b"\x02"}
_BUILT = 10_000
"""Rows of the index that are built at once before they are written."""
_READ = 256
"""Due timers that are read at once."""


def build_timer_store(spec: TimerStoreSpec, bytes_store: BytesStore, context: StoreContext) -> StateStore:
    """Return the store that `spec` declares, on top of `bytes_store`."""
    keys = KeyForm(spec.name, context.serde(spec.key_serde, spec.name))
    return BytesTimerStore(bytes_store, keys, context.index)


class BytesTimerStore(TimerStore):
    """A TimerStore. A row has a byte for the clock and the key; its value is the time (8 bytes) in an envelope.

    No timer is kept in memory, apart from the next due ones while they fire. The index has to be complete before it is
    used, so it is built when the store is opened, and written in portions.
    """

    def __init__(self, below: BytesStore, keys: KeyForm, index: IndexStore) -> None:
        self.name = below.name
        self._below = below
        self._keys = keys
        self._index = index
        self._clocks = {clock: _Clock(TimeIndex(index, head[0])) for clock, head in _HEADS.items()}
        self._build()

    def _build(self) -> None:
        build = IndexBuild(self._index)
        while not build.is_complete:
            build.step(self._below, self._add, _BUILT)
            self._index.save()

    def _add(self, row: bytes, data: bytes) -> None:
        clock = next(clock for clock, head in _HEADS.items() if row.startswith(head))
        self._clocks[clock].times.put(_ROW.unpack(data)[1], row[1:])

    def set(self, key: Any, at: int, clock: PunctuationType) -> None:
        raw, times = self._keys.to_bytes(key), self._clocks[clock].times
        row = _HEADS[clock] + raw
        before = self._below.get(row)
        if before is not None:
            times.remove(_ROW.unpack(before)[1], raw)
        self._below.put(row, _ROW.pack(PLAIN, at))
        times.put(at, raw)
        self._clocks[clock].note(at, raw)

    def cancel(self, key: Any, clock: PunctuationType) -> None:
        raw = self._keys.to_bytes(key)
        before = self._below.get(_HEADS[clock] + raw)
        if before is not None:
            self._remove(_ROW.unpack(before)[1], raw, clock)

    def entries(self, clock: PunctuationType) -> Entries[Any, int]:
        return Scan(self._listed(clock))

    def _listed(self, clock: PunctuationType) -> Iterator[tuple[Any, int]]:
        for at, raw in self._clocks[clock].times.rows():
            if self._is_set(at, raw, clock):
                yield self._keys.to_object(raw), at

    def next_due(self, clock: PunctuationType) -> int | None:
        return self._clocks[clock].next_due()

    def first_due(self, clock: PunctuationType, now: int) -> tuple[int, bytes] | None:
        state = self._clocks[clock]
        while (first := state.first(now)) is not None:
            if self._is_set(*first, clock):
                return first
            state.pop()  # cancelled since it was read, or a row of the index that is out of date
        return None

    def take(self, clock: PunctuationType) -> tuple[Any, int]:
        at, raw = self._clocks[clock].pop()
        self._remove(at, raw, clock)
        return self._keys.to_object(raw), at

    def discard(self) -> None:
        for clock in self._clocks.values():
            clock.forget()

    def approximate_count(self) -> int:
        """Return about how many timers there are."""
        return self._below.approximate_count()

    def _is_set(self, at: int, raw: bytes, clock: PunctuationType) -> bool:
        return self._below.get(_HEADS[clock] + raw) == _ROW.pack(PLAIN, at)

    def _remove(self, at: int, raw: bytes, clock: PunctuationType) -> None:
        self._below.put(_HEADS[clock] + raw, None)
        self._clocks[clock].times.remove(at, raw)


class _Clock:
    """The timers of one clock in the order of time, read from the index a portion at a time.

    Reading continues after the last row that was read: rows that were deleted since the last commit are passed over
    once, and not again for each timer.
    """

    def __init__(self, times: TimeIndex) -> None:
        self.times = times
        self.forget()

    def forget(self) -> None:
        self._due: list[tuple[int, bytes]] = []
        self._start: bytes | None = None
        self._next: int | None = None
        self._is_known = False

    def note(self, at: int, raw: bytes) -> None:
        """Take a new timer into account."""
        if self._is_known and (self._next is None or at < self._next):
            self._next = at
        if self._start is not None:
            self._start = min(self._start, self.times.row(at, raw))
        if self._due and (at, raw) < self._due[0]:
            self._start = self.times.row(*self._due[-1]) if self._due[-1] < (at, raw) else self.times.row(at, raw)
            self._due.clear()

    def next_due(self) -> int | None:
        if not self._is_known:
            self._next = next((time for time, _ in self.times.rows(start=self._start)), None)
            self._is_known = True
        return self._next

    def first(self, now: int) -> tuple[int, bytes] | None:
        if self._due:
            return self._due[-1]
        due = self.next_due()
        if due is None or due > now:
            return None
        self._due = list(islice(self.times.rows(now, self._start), _READ))
        self._due.reverse()
        if self._due:
            self._start = self.times.row(*self._due[0]) + b"\x00"
            return self._due[-1]
        self._is_known = False
        self.next_due()
        return None

    def pop(self) -> tuple[int, bytes]:
        return self._due.pop()
