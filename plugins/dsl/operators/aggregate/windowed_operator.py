"""WindowedOperator: the base of aggregations over windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from penstock import Change, Headers, ProcessorContext, Record, StateStore, Windowed
from penstock.operator import Operator, Run, new
from penstock.program.serdes import SerdeLike, resolve_serde

from ..closing import IdleClock, Note, OpenWindows, WindowTime, forget_idle_time
from ..reading import forwarding_of
from ..table_store import NULL_KEY, NULL_VALUE, UpdatingOperator
from .folds import Fold

Take = Callable[[Record], bool]
"""Handles a record that has a key, after stream time was moved. Returns whether any window took it."""
Send = Callable[[list[Note], Headers], None]
"""Emits windows of OpenWindows as they are in the store, with these headers."""


@dataclass(kw_only=True, eq=False)
class WindowedOperator(UpdatingOperator):
    """An aggregation over windows. Records without a key are dropped and counted.

    With `on_close`, a window is emitted once, when it closes, and updates are not. `idle_ms`: after so long without a
    record, time goes on with the wall clock. `late_to`: the child that gets records that no window took, and
    `updates_to` the one that gets all else.

    Windows that close are emitted before the record that closes them is put: the store then still has them, whatever
    its retention. A record never closes a window that takes it, so the order is that of Kafka Streams.
    """

    takes_null_values: ClassVar[bool] = True
    """Whether a value of None counts as any other; else such records are dropped and counted."""

    fold: Fold
    on_close: bool = False
    idle_ms: int | None = None
    late_to: str | None = None
    updates_to: str | None = None
    _time: WindowTime | None = field(default=None, init=False)
    _close: Callable[[Headers], None] | None = field(default=None, init=False)
    _idle: IdleClock | None = field(default=None, init=False)

    @classmethod
    def saved_with(cls, *args: Any, store: str, **options: Any) -> str:
        """Return the store of the windows: the times belong to it."""
        return store

    @property
    @abstractmethod
    def _wait_ms(self) -> int:
        """How long after its last ms, or the ms behind it, a window closes; as `_read_open` returns its end."""

    @abstractmethod
    def _bind_windows(
        self, context: ProcessorContext, time: WindowTime, open_windows: OpenWindows
    ) -> tuple[Take, Send]:
        """Return the functions that take a record and that emit windows."""

    @abstractmethod
    def _read_open(self, context: ProcessorContext, after: int) -> Iterable[Note]:
        """Return the windows in the store that end later than `after`, or more."""

    def _emitter(self, context: ProcessorContext) -> Run:
        forward, updates_to = context.send, self.updates_to
        return self._announcing(context, forward if updates_to is None else lambda record: forward(record, updates_to))

    def bind(self, context: ProcessorContext) -> Run:
        time = self._time = WindowTime(context, self._wait_ms)
        forward, late_to = context.send, self.late_to
        on_close = self.on_close
        open_windows = OpenWindows(context, time, partial(self._read_open, context), on_close=on_close)
        take, send = self._bind_windows(context, time, open_windows)
        if on_close:
            forwarding_of(context.get_store(self.store)).is_sent = lambda windowed: windowed[2] <= time.closed

        def close(headers: Headers) -> None:
            if time.closed >= open_windows.next_end:
                send(open_windows.take(time.closed), headers)

        self._close, drop = close, context.metrics.drop
        if self.idle_ms is not None:
            take = self._noting_arrivals(take)
        else:
            forget_idle_time(context)

        takes_null_values = self.takes_null_values

        def run(record: Record) -> None:
            key, value, timestamp, _ = record
            if key is None or (value is None and not takes_null_values):
                drop(NULL_KEY if key is None else NULL_VALUE)
                return
            if timestamp > time.now:
                time.move(timestamp)
                if on_close:
                    close(record[3])
            if not take(record) and late_to is not None:
                forward(record, late_to)

        def run_after_unsent(record: Record) -> None:
            if open_windows.has_unsent:
                send(open_windows.take_unsent(), record[3])
            run(record)

        return run_after_unsent if open_windows.has_unsent else run

    def init(self, context: ProcessorContext) -> None:
        """Let the record cache forward updates, unless windows are emitted when they close; watch for idle input."""
        if self.on_close:
            Operator.init(self, context)
        else:
            super().init(context)
        if self.idle_ms is not None:
            assert self._time is not None
            self._idle = IdleClock(context, self.idle_ms, self._time, self._move)

    def _noting_arrivals(self, take: Take) -> Take:
        def noting(record: Record) -> bool:
            assert self._idle is not None
            self._idle.note_arrival()
            return take(record)

        return noting

    def _move(self, time: int) -> None:
        assert self._time is not None and self._close is not None
        self._time.move(time)
        self._close(())

    def _compile_update(self, context: ProcessorContext, store: StateStore) -> Callable[..., None]:
        """Return update(key, start, end, new, old, timestamp, headers), which sends an update of a window."""
        if self.on_close or store.record_cache is not None:
            return _nothing
        sends_old, emit = self.sends_old, self._emitter(context)

        def update(key: Any, start: int, end: int, aggregate: Any, old: Any, timestamp: int, headers: Headers) -> None:
            change = new(Change, (aggregate, old if sends_old else None))
            emit((new(Windowed, (key, start, end)), change, timestamp, headers))

        return update


def _nothing(*update: Any) -> None:
    """Do nothing: the update leaves when the record cache is flushed, or when its window closes."""


def bytes_of_keys(key_serde: SerdeLike, context: ProcessorContext) -> Callable[[Any], bytes]:
    """Return the function that makes a key's bytes, as the store of the node does."""
    return resolve_serde(key_serde, None, f"node {context.node!r}: key_serde", context.config).serialize
