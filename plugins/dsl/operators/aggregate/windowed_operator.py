"""WindowedOperator, and the aggregations over windows that follow from time, that slide, and that are sessions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from penstock import (
    Change,
    FlushListener,
    Headers,
    ProcessorContext,
    Record,
    StateStore,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
)
from penstock.operator import Operator, Run, new
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.support.own_copy import IMMUTABLE, own_copy, own_record

from ...graph.names import is_same_key
from ..closing import NEVER, IdleClock, Note, OpenWindows, WindowTime, forget_idle_time
from ..reading import forwarding_of
from ..table_store import LATE, NULL_KEY, NULL_VALUE, UpdatingOperator
from .folds import Counting, Fold
from .windows import SessionWindows, SlidingWindows, TimeWindows, TumblingWindows

Take = Callable[[Record], bool]
"""Handles a record that has a key, after stream time was moved. Returns whether any window took it."""
Send = Callable[[list[Note], Headers, bool], None]
"""Emits windows of OpenWindows as they are in the store, with these headers; if True, that they are deleted."""


@dataclass(kw_only=True, eq=False)
class WindowedOperator(UpdatingOperator):
    """An aggregation over windows. Records without a key are dropped and counted.

    `on_close`: a window is emitted once, when it closes, before the record that closes it is put: the store still has
    it. `idle_ms`: after so long without a record, time goes on with the wall clock. `late_to`: the child that gets
    records that no window took, and `updates_to` the one that gets all else.
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

    def __post_init__(self) -> None:
        self.holds_back = self.on_close

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
        # Verbs behind have rows of open windows, and get them anew when they close, those of sessions with other keys.
        takes_back = self.sends_old or isinstance(self, SessionAggregate)
        read_open = partial(self._read_open, context)
        open_windows = OpenWindows(context, time, read_open, on_close=on_close, takes_back=takes_back)
        take, send = self._bind_windows(context, time, open_windows)
        if on_close or open_windows.has_unsent:
            self._say_what_is_sent(context, time, open_windows)

        def take_back(headers: Headers) -> None:
            send(open_windows.sent(), headers, True)
            open_windows.forget_sent()

        def close(headers: Headers) -> None:
            if open_windows.has_sent:
                take_back(headers)
            if time.closed >= open_windows.next_end:
                send(open_windows.take(time.closed), headers, False)

        self._close, drop = close, context.metrics.drop
        forwarding = context.get_store(self.store).forwarding
        if forwarding is not None:
            forwarding.close.append(self._close_until)
            if on_close and self.idle_ms is None:
                forwarding.times.append(lambda: time.now)
        if self.idle_ms is not None:
            take = self._noting_arrivals(take)
        else:
            forget_idle_time(context)

        takes_null_values, waiting, wait = self.takes_null_values, context.waiting_windows, self._wait_ms

        def run(record: Record) -> None:
            key, value, timestamp, _ = record
            if key is None or (value is None and not takes_null_values):
                drop(NULL_KEY if key is None else NULL_VALUE)
                return
            if timestamp > time.now:
                if timestamp - wait >= waiting.first_end:
                    # A join below forwards these updates with rows that expire when the record is put.
                    waiting.flush()
                time.move(timestamp)
                if on_close:
                    close(record[3])
            if not take(record) and late_to is not None:
                forward(record, late_to)

        def run_after_another_emission(record: Record) -> None:
            if open_windows.has_unsent:
                send(open_windows.take_unsent(), record[3], False)
            elif open_windows.has_sent:
                take_back(record[3])
            run(record)

        return run_after_another_emission if open_windows.has_unsent or open_windows.has_sent else run

    def _say_what_is_sent(self, context: ProcessorContext, time: WindowTime, open_windows: OpenWindows) -> None:
        """Let those that read the store know which windows were sent: see `Forwarding.is_sent`."""
        forwarding, on_close = forwarding_of(context.get_store(self.store)), self.on_close

        def is_sent(windowed: Any) -> bool:
            if open_windows.has_sent:  # all, but for the one that is taken back now
                return forwarding.before is None or not is_same_key(forwarding.before[0], windowed)
            return (not on_close and not open_windows.has_unsent) or bool(windowed[2] <= time.closed)

        forwarding.is_sent = is_sent

    def init(self, context: ProcessorContext) -> None:
        """Let the record cache forward updates, unless windows are emitted when they close; watch for idle input."""
        if self.on_close:
            Operator.init(self, context)
        else:
            super().init(context)
        if self.idle_ms is not None:
            time = self._time
            assert time is not None
            self._idle = IdleClock(context, self.idle_ms, lambda: time.now, self._move)

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

    def _close_until(self, time: int) -> None:
        assert self._time is not None and self._close is not None
        self._time.close(time)
        if self.on_close:
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

        def send(due: list[Note], headers: Headers, are_deleted: bool) -> None:
            ends = {start: end for end, start, _ in due}
            for (key, start, _), entry in _rows(store, sorted(ends)):
                of_window = entry[2] if keeps_headers else headers
                change = new(Change, (None, entry[0]) if are_deleted else (entry[0], None))
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


Put = Callable[[Record, int, Any], None]
"""(record, start, entry before or None): puts the record into a window."""
Copy = Callable[[Record, int, Any], None]
"""(record, start, entry): makes a window that has what another one had."""


@dataclass(kw_only=True, eq=False)
class SlidingAggregate(WindowedOperator):
    """An aggregation over sliding windows. A window of [start, start + difference] has both its ends.

    A window's timestamp is that of its last record. A record updates the windows around it, and makes those that are
    not empty of three: the one that ends at it, and those right after it and right after the record before. Kafka
    Streams: KStreamSlidingWindowAggregate.
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

        def send(due: list[Note], headers: Headers, are_deleted: bool) -> None:
            for _, (start, _), key in due:
                entry = fetch(key, start)
                if entry is not None:
                    of_window = entry[2] if keeps_headers else headers
                    window = new(Windowed, (key, start, start + difference))
                    change = new(Change, (None, entry[0]) if are_deleted else (entry[0], None))
                    emit((window, change, entry[1], of_window))

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
            # A session that has closed stays as it was, also while the store still has it.
            earliest = timestamp - gap
            if earliest <= time.closed:
                earliest = time.closed + 1
            stored = list(find(key, earliest, timestamp + gap))
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

        def send(due: list[Note], headers: Headers, are_deleted: bool) -> None:
            closed: dict[tuple[int, int, bytes], tuple[Any, Any]] = {}
            for noted, (start, raw), key in due:
                with find(key, noted, start) as rows:
                    for (_, begin, end), entry in rows:
                        if begin != start:  # one that had closed before records around its end came
                            continue
                        if on_close and end > time.closed and not are_deleted:  # it has grown since it was noted
                            open_windows.add(end, (start, raw), key)
                        else:
                            closed[end, start, raw] = key, entry
            for end, start, raw in sorted(closed):
                key, entry = closed[end, start, raw]
                value, of_window = (entry[0], entry[2]) if keeps_headers else (entry, headers)
                change = new(Change, (None, value) if are_deleted else (value, None))
                emit((new(Windowed, (key, start, end)), change, end, of_window))

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
