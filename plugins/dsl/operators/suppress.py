"""Suppress: keeps a table's updates back in a buffer, and lets the last one of each key go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from struct import Struct
from types import SimpleNamespace
from typing import Any, NamedTuple

from penstock import (
    Change,
    Duration,
    Headers,
    ProcessingError,
    ProcessorContext,
    Record,
    Serde,
    SerdeError,
    StoreBuilder,
    TopologyError,
    ValueAndTimestamp,
    duration_ms,
    key_value_store,
)
from penstock.operator import Operator, Run, new
from penstock.program.row_serde import RowSerde
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.store.division import Division
from penstock.support.parts import headers_at, headers_bytes, part_at, sized

from ..graph.serdes import Serdes, WindowedKey, key_of_store, value_of_store
from ..graph.sources import RepartitionStep
from ..graph.step import Flow, ProcessorStep, Step, Writer
from .aggregate.windows import SessionWindows
from .closing import IdleClock, OwnTime, forget_idle_time
from .reading import Get, RowsBefore, TableSource, ValueGetter, forwarding_of
from .table_store import LATE

_FULL = ("emit_early", "stop")

_OF_RECORD = 28
"""About how many bytes an update takes beside its key, values and headers."""


@dataclass(kw_only=True, eq=False)
class Suppress(Operator):
    """Keeps the last update of each key in a store, until its time is `wait_ms` before the node's stream time.

    `keys` and `values` are the serdes of the table. The time of a key is that of the first update that was kept, or
    with `by_window` the end of its window. Updates leave by time, then the bytes of their keys. With
    `drops_tombstones`, deletions do not leave. `max_records` and `max_bytes` bound the buffer: if it has more, the
    oldest leave early, or with `stops_when_full` the record fails. `idle_ms`: after so long without an update, time
    goes on with the wall clock. `closes`: the stores of the windows above, whose processors are told which windows have
    left. `drops_late`: an update of a window that has left is dropped, since some updates are not of these processors.
    What they send was in time, though it may have waited in a record cache since then. Which keys wait, and since when,
    is in memory, too. Kafka Streams: KTableSuppressProcessorSupplier.
    """

    holds_back = True

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
    closes: tuple[str, ...] = ()
    drops_late: bool = False

    def __post_init__(self) -> None:
        self._idle: IdleClock | None = None
        self._time: OwnTime | None = None
        self._let_go_until: Callable[[int], None] | None = None
        self._close_until: Callable[[int], None] = lambda until: None
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
            time, stores = self._time, map(context.get_store, self.closes)
            assert time is not None
            times = [each for store in stores for each in forwarding_of(store).times]
            self._idle = IdleClock(
                context, self.idle_ms, lambda: max([time.now, *(each() for each in times)]), self._move
            )
        else:
            forget_idle_time(context)

    def _move(self, time: int) -> None:
        assert self._time is not None and self._let_go_until is not None
        # What that sends is not late.
        self._close_until(time - self.wait_ms)
        self._time.move(max(time, self._time.now))
        self._let_go_until(self._time.now - self.wait_ms)

    def bind(self, context: ProcessorContext) -> Run:
        store = context.get_store(self.store)
        get, put, key_bytes = store.get, store.put, self.keys.serialize
        time = self._time = OwnTime(context)
        by_window, wait, places, let_go = self.by_window, self.wait_ms, self._places, self._compile_let_go(context)
        closers = [forwarding_of(context.get_store(each)).close for each in self.closes]

        def close_until(time: int) -> None:
            for each in closers:
                for close in each:
                    close(time)

        self._close_until = close_until
        is_watched, drops_late, drop = self.idle_ms is not None, self.drops_late, context.metrics.drop
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
                if drops_late and key[2] <= time.now - wait:
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
                if closers:
                    close_until(timestamp - wait)
                time.move(max(timestamp, time.now))
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
        forward, places, drops_tombstones, key_of, forwarding = (
            context.send,
            self._places,
            self.drops_tombstones,
            self.keys.deserialize,
            store.forwarding,
        )

        def let_go() -> None:
            _, raw = heappop(places)
            entry = store.get(raw)
            store.put(raw, None)
            self._bytes -= self._sizes.pop(raw)
            if entry.new is not None or not drops_tombstones:
                change = new(Change, (entry.new, entry.prior))
                record = (key_of(raw), change, entry.timestamp, entry.headers)
                if forwarding is None:
                    forward(record)
                else:
                    forwarding.send(forward, record, entry.prior)

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


_HEAD = Struct(">qqi")


class Buffered(NamedTuple):
    """The last update of a key: its place in time (ms), timestamp and headers, and new and old value.

    `prior` is the value before the first update in the buffer, so the old value of the one that leaves. `old` is the
    value before the last update; only the saved form has it.
    """

    time: int
    timestamp: int
    headers: Headers
    prior: Any
    old: Any
    new: Any


class BufferedSerde(RowSerde[Buffered]):
    """Buffered updates; `inner` is the serde of the table's values.

    >>> serde = BufferedSerde("str")
    >>> serde.deserialize(serde.serialize(Buffered(5, 7, (("h", None),), None, "", "x")))
    Buffered(time=5, timestamp=7, headers=(('h', None),), prior=None, old='', new='x')
    """

    fields = Buffered._fields

    def __init__(self, inner: SerdeLike) -> None:
        self.inner: Serde[Any] = resolve_serde(inner, None, "BufferedSerde: inner")

    def row(self, parts: Sequence[Any]) -> Buffered:
        return Buffered(*parts)

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        return dict.fromkeys((3, 4, 5), self.inner)

    def serialize(self, value: Buffered) -> bytes:
        """Return times, headers and values, each with its length (-1: None)."""
        time, timestamp, headers, prior, old, new = value
        serialize = self.inner.serialize
        values = [sized(None if each is None else serialize(each)) for each in (prior, old, new)]
        head = _HEAD.pack(time, timestamp, len(headers))
        return b"".join((head, headers_bytes(headers) if headers else b"", *values))

    def deserialize(self, data: bytes) -> Buffered:
        try:
            time, timestamp, count = _HEAD.unpack_from(data)
            headers, at = headers_at(data, _HEAD.size, count)
            values = []
            for _ in range(3):
                part, at = part_at(data, at)
                values.append(None if part is None else self.inner.deserialize(part))
        except (ValueError, IndexError) as error:
            raise SerdeError(f"BufferedSerde: not an update of a suppression: {data[:40]!r}") from error
        return Buffered(time, timestamp, headers, *values)


def suppress_options(
    table: Step,
    until: Duration,
    max_records: int | None,
    max_bytes: int | None,
    when_full: str | None,
    idle: Duration | None,
) -> dict[str, Any]:
    """Return the options of a Suppress of the table that `table` makes. Raises TopologyError for wrong ones."""
    by_window = until == "window_closes"
    wait_ms = grace_above(table) if by_window else duration_ms(until, "suppress: until")
    if by_window and idle is not None:
        _check_idle(table)
    full = ("stop" if by_window else "emit_early") if when_full is None else when_full
    if full not in _FULL:
        raise TopologyError(f'suppress: when_full is "emit_early" or "stop", found {when_full!r}')
    if by_window and full == "emit_early":
        raise TopologyError(
            'suppress: a window may not leave before it closes, so when_full="emit_early" does not go with '
            'until="window_closes"; write when_full="stop", or until=DURATION'
        )
    if when_full is not None and max_records is None and max_bytes is None:
        raise TopologyError("suppress: when_full= needs max_records= or max_bytes=; without them it is never full")
    return {
        "wait_ms": wait_ms,
        "by_window": by_window,
        "drops_tombstones": by_window,
        "max_records": max_records,
        "max_bytes": max_bytes,
        "stops_when_full": full == "stop",
        "idle_ms": None if idle is None else max(1, duration_ms(idle, "suppress: idle")),
    }


def suppress_step(name: str, store: str, table: Flow, options: Mapping[str, Any], **kept: Any) -> ProcessorStep:
    """Return the step of a Suppress with its buffer, named `store`; `kept` are options of `key_value_store`."""
    serdes = table.serdes
    is_closing = options["by_window"] and options["idle_ms"] is not None
    closed = _windowed_above(table.step) if is_closing else []
    if is_closing and not _is_of_windows(table.step):
        options = {**options, "drops_late": True}

    def late(writer: Writer) -> dict[str, Any]:
        state, config = writer.settings.state_serde, writer.settings.of_plugins
        key, value = key_of_store(serdes.key, writer.settings), value_of_store(serdes.value, writer.settings)
        return {
            "keys": resolve_serde(key, state, f"store {store!r}: key_serde", config),
            "values": resolve_serde(value, state, f"store {store!r}: value_serde", config),
            "closes": stores_above(writer),
        }

    def stores_above(writer: Writer) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.declare(writer).name for each in closed))

    def buffer(writer: Writer) -> tuple[str | StoreBuilder, ...]:
        serde = late(writer)
        made = key_value_store(store, key_serde="bytes", value_serde=BufferedSerde(serde["values"]), **kept)
        made = replace(made, division=Division(record_key=serde["keys"].deserialize))
        if isinstance(serdes.key, WindowedKey):
            made = replace(made, windows=_windows(table.step))
        return *stores_above(writer), made

    return ProcessorStep(name, Suppress, {**options, "store": store}, stores=buffer, late=late)


@dataclass(eq=False)
class SuppressedTable(TableSource):
    """A table whose updates are held back. Reads of a waiting key return the value before its update."""

    step: Step
    buffer: str
    serdes: Serdes
    parent: TableSource

    def getter(self) -> ValueGetter:
        return SuppressedGetter(self.buffer, self.serdes, self.parent.getter())

    def writers(self) -> tuple[Step, ...]:
        return (self.step, *self.parent.writers())

    @property
    def expiring(self) -> str | None:
        return self.parent.expiring

    def send_old_values(self, *, force: bool) -> bool:
        """Let the table above send them, which it does for the buffer anyway."""
        return self.parent.send_old_values(force=force)


@dataclass(eq=False)
class SuppressedGetter(ValueGetter):
    """Reads a suppressed table: the buffer for a key that waits, else the table above, as its updates were sent."""

    store: str
    serdes: Serdes
    parent: ValueGetter

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store, *self.parent.stores)

    def open(self, context: ProcessorContext, *, sent: bool = False, before: RowsBefore | None = None) -> Get:
        # Also where others read what is in a record cache: that has not come to the buffer yet.
        buffer, get = context.get_store(self.store), self.parent.open(context, sent=True, before=before)
        waiting = buffer.get
        settings: Any = SimpleNamespace(**context.config)
        key_serde = key_of_store(self.serdes.key, settings)
        what = f"store {self.store!r}: key_serde"
        key_bytes = resolve_serde(key_serde, settings.state_serde, what, context.config).serialize

        def read(key: Any) -> ValueAndTimestamp | None:
            entry = waiting(key_bytes(key))
            if entry is None:
                return get(key)
            return None if entry.prior is None else ValueAndTimestamp(entry.prior, -1)

        return read if before is None else before.of_store(buffer, read)


def grace_above(step: Step) -> int:
    """Return the time (ms) from the end of a table's window to its closing. Raises TopologyError if it has none."""
    found = _grace(step)
    if found is None:
        raise TopologyError(
            'suppress: until="window_closes" is for tables of windows, which windowed_by makes; for another table say '
            'how long: suppress(until="10s")'
        )
    return found


def _windows(step: Step) -> str:
    """Return the windows of a table's keys; empty if the keys have none."""
    return step.window_form or next(filter(None, map(_windows, step.parents)), "")


def _windowed_above(table: Step, *, behind_topics: bool = False) -> list[Any]:
    """Return the aggregations that make the windows of a table: in its task, or also `behind_topics`."""
    found, pending, seen = [], [table], set[int]()
    while pending:
        step = pending.pop()
        if id(step) in seen or (isinstance(step, RepartitionStep) and not behind_topics):
            continue
        seen.add(id(step))
        if step.window_grace_ms is None:
            pending.extend(step.parents)
        else:
            found.append(step)
    return found


def _is_of_windows(table: Step) -> bool:
    """Return whether all updates of a table are of aggregations over windows in its task."""
    if isinstance(table, RepartitionStep) or (table.window_grace_ms is None and not table.parents):
        return False
    return table.window_grace_ms is not None or all(map(_is_of_windows, table.parents))


def _check_idle(table: Step) -> None:
    """Refuse to let sessions leave whose aggregation cannot learn of it: it would send them again in longer ones."""
    in_task = _windowed_above(table)
    for step in _windowed_above(table, behind_topics=True):
        if step not in in_task and isinstance(step.options["windows"], SessionWindows):
            raise TopologyError(
                f"suppress: idle= lets a session leave, and node {step.name!r}, which makes the sessions in front of a "
                "topic, would not know that it has closed: it could leave again as a part of a longer one. Let them "
                'leave there: windowed_by(sessions(...), emit="on_close", idle=...)'
            )


def _grace(step: Step) -> int | None:
    if step.window_grace_ms is not None:
        return step.window_grace_ms
    return max((each for each in map(_grace, step.parents) if each is not None), default=None)
