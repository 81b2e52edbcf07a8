"""The window store: rows in buckets of time, kept as objects until the commit."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar

from penstock import (
    BytesStore,
    Entries,
    HeadersWindowStore,
    Serde,
    StoreContext,
    StoreError,
    TimestampedWindowStore,
    Windowed,
    WindowStore,
    WindowStoreSpec,
)
from penstock.compiled import records as compiled

from ..rows.buckets import MAX_TIME, Buckets, Row
from ..rows.escaping import without_end
from ..rows.headers_form import HeadersForm
from ..rows.key_form import MISSING, KeyForm
from ..rows.scan import ListScan, Scan
from ..rows.value_form import Encoded, TimestampedForm, ValueForm
from . import plain
from .known_rows import KnownRows, LatestRows, drop_oldest
from .plain import PlainStore
from .retained import TIME, RetainedRows, RetainedStore


class WindowKeys(KeyForm):
    """The form of the keys in one window.

    `user`: the form of the user's keys. `around`: the bytes before and behind them; see `BucketKeys.around`.
    """

    def __init__(self, user: KeyForm, around: tuple[bytes, bytes]) -> None:
        self.types = user.types
        self.user = user
        self._before, self._behind = around

    def locate(self, key: Any) -> tuple[bytes, Any]:
        raw, which = self.user.locate(key)
        return self._before + without_end(raw) + self._behind, which

    def to_bytes(self, key: Any, serde: Serde[Any] | None = None) -> bytes:
        return self._before + without_end(self.user.to_bytes(key, serde)) + self._behind

    def serializer(self) -> Callable[[Any], bytes]:
        before, behind, serialize = self._before, self._behind, self.user.serializer()

        def row_key(key: Any) -> bytes:
            raw = serialize(key)
            return before + (without_end(raw) if b"\x00" in raw else raw) + behind

        return row_key if compiled is None else compiled.around(row_key, serialize, before, behind)


class OpenWindow(PlainStore):
    """One window: what a key-value store does for single entries, with the user's keys. It is not scanned.

    `is_new`: the store below has no rows of it, so nothing need be read.
    """

    def __init__(self, start: int, below: BytesStore, keys: WindowKeys, values: ValueForm, *, is_new: bool) -> None:
        self.start = start
        self._begin(below, keys, values)
        self.is_complete = is_new
        self._user = keys.user

    def read(self, key: Any) -> Any:
        """Return the value of an entry whose key may be cached and is not."""
        if self.is_complete:
            _, which = self._user.locate(key)
            if which is not MISSING:
                self._keep(which, None)
                return None
        return self._read(*self.keys.locate(key))

    def expire(self) -> None:
        """Drop unwritten entries; deletions stay, because the store below may have the entries."""
        self.pending = {key: None for key, value in self.pending.items() if value is None}

    def _compile(self) -> None:
        """Compile nothing: there may be many windows, and cached objects are looked up without these methods."""


_MOST_READ = 1_024
"""How many rows of a key are read into memory at most; a fetch of more reads them one by one from the store below."""


class RecentKeys:
    """Rows of `known` keys, each from a time of its own on. No OpenWindow has an entry for such a row.

    `flush` writes what has changed of the whole store.
    """

    def __init__(self, buckets: Buckets, keys: KeyForm, values: ValueForm, flush: Callable[[], None]) -> None:
        self.known: dict[Any, LatestRows] = {}
        self._buckets = buckets
        self._keys = keys
        self._values = values
        self._flush = flush
        self._changed: list[tuple[Any, LatestRows]] = []
        self._added = 0

    def at(self, key: Any, time: int) -> tuple[Any, LatestRows | None]:
        """Return the cache's key for a user's key, and the key's rows if they are known at `time`."""
        if not self.known:
            return MISSING, None
        _, which = self._keys.locate(key)
        rows = self.known.get(which)
        return which, rows if rows is not None and time >= rows.known_from else None

    def put(self, key: Any, rows: LatestRows, time: int, value: Any, kept_after: int) -> None:
        """Set the value (None, an object that may wait, or Encoded) of a known row."""
        is_new = time not in rows.changed
        if not rows.changed:
            self._changed.append((key, rows))
        rows.put(time, value, kept_after)
        if is_new:
            self._count(1)  # at last: it may write and drop these rows

    def reach(
        self, raw: bytes, key: Any, first: int, last: int, newest: int, opened: dict[int, OpenWindow]
    ) -> LatestRows | None:
        """Return the rows of a key, known from `first` on.

        Return None if reading unknown rows would read much more than the range up to `last`.
        """
        rows = self.known.get(key)
        up_to = newest if rows is None else min(rows.known_from - 1, newest)
        if first > up_to and rows is not None:
            return rows
        room = _MOST_READ if rows is None else _MOST_READ - len(rows.times)
        if up_to - last > last - first or room <= 0:
            return None
        # From the latest one on, so that what is read counts even if there are too many.
        found = list(islice(self._buckets.of_key(raw, first, up_to, reverse=True), room))
        times, values = [], []
        for row_key, data in reversed(found):
            value = self._values.to_object(key, data)
            times.append(self._buckets.parts(row_key)[1])
            values.append(value if self._values.can_keep(value) else Encoded(data))
        known_from = times[0] if len(found) == room else first
        if rows is None:
            rows = self.known[key] = LatestRows(known_from)
        rows.add_earlier(times, values, known_from)
        for time, window in opened.items():
            if known_from <= time <= up_to:
                value = window.pending.pop(key, MISSING)
                window.clean.pop(key, None)
                if value is not MISSING:
                    if not rows.changed:
                        self._changed.append((key, rows))
                    rows.put(time, value, -1)
        self._count(len(times) + 1)
        return rows if known_from <= first else None

    def encoded(self, kept_after: int) -> dict[bytes, bytes | None]:
        """Return changed rows as bytes; of expired rows only deletions."""
        row_key, to_bytes = self._buckets.row_key, self._values.to_bytes
        changes: dict[bytes, bytes | None] = {}
        for key, rows in self._changed:
            raw = self._keys.to_bytes(key)
            for time, value in rows.changed.items():
                if time <= kept_after and value is not None:
                    continue
                if type(value) is Encoded:
                    changes[row_key(raw, time, b"")] = value.data
                else:
                    changes[row_key(raw, time, b"")] = None if value is None else to_bytes(key, value)
        return changes

    def settle(self, kept_after: int, opened: Iterable[OpenWindow]) -> None:
        """Count changed rows as written; if there are too many rows, drop the keys that have been known longest."""
        for _, rows in self._changed:
            rows.changed.clear()
        self._changed.clear()
        if self._added > plain.CACHED_ENTRIES // 4:
            self._added = 0
            if drop_oldest(self.known, kept_after):
                for window in opened:
                    window.is_complete = False  # the store below may have entries of keys that were dropped

    def discard(self) -> None:
        """Drop all rows."""
        self.known.clear()
        self._changed.clear()
        self._added = 0

    def _count(self, added: int) -> None:
        self._added += added
        if self._added > plain.CACHED_ENTRIES // 4:
            self._flush()


_OPEN_WINDOWS = 1_024
"""Maximum number of cached windows."""


class BucketWindowStore(RetainedStore, WindowStore[Any, Any]):
    """A WindowStore over a BytesStore. `fetch` and `put` are compiled, as those of a key-value store are.

    `_open`: recently used windows by their start, with entries as objects. `_changed`: windows with unwritten entries.
    `_recent`: rows of keys that are fetched over a range of times.
    """

    form_of_values: ClassVar[type[ValueForm]] = ValueForm
    tail_bytes = TIME.size

    def __init__(
        self,
        spec: WindowStoreSpec,
        below: BytesStore,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        context: StoreContext,
    ) -> None:
        super().__init__(spec, below, key_serde, self.form_of_values(spec.name, value_serde), context)
        self.end_of = lru_cache(_OPEN_WINDOWS)(spec.end_of)
        self._open: dict[int, OpenWindow] = {}
        self._changed: list[OpenWindow] = []
        self._recent = RecentKeys(self._buckets, self.keys, self.values, lambda: self._flush_objects())
        self._misses = 0
        setattr(self, "fetch", self._compile_fetch())  # noqa: B010
        setattr(self, "put", self._compile_put())  # noqa: B010

    # ------------------------------------------------------------------ single entries

    def fetch(self, key: Any, time_from: int, time_to: int | None = None) -> Any:
        return self._fetch(key, time_from, time_to)

    def put(self, key: Any, value: Any, window_start: int) -> None:
        self._put(key, value, window_start)

    def _compile_fetch(self) -> Callable[..., Any]:
        opened, read, slow, rows_of = self._open.get, self._read, self._fetch, self._recent.known.get
        key_types, retention, entries_of = self.keys.types, self.retention, self._entries
        gets = 0
        self.calls.add_total("gets", lambda: gets)

        def fetch(key: Any, time_from: Any = None, time_to: Any = None) -> Any:
            nonlocal gets
            gets += 1
            if type(time_from) is int and type(key) in key_types:
                if time_to is None:
                    window = opened(time_from)
                    if window is not None and time_from > retention.kept_after:
                        value = window.pending.get(key, MISSING)
                        if value is MISSING:
                            value = window.clean.get(key, MISSING)
                            if value is MISSING and rows_of(key) is None:
                                return read(window, key)
                        if value is not MISSING:
                            return value
                elif type(time_to) is int:
                    rows = rows_of(key)
                    if rows is not None:
                        first = max(time_from, retention.kept_after + 1)
                        if first >= rows.known_from:
                            return ListScan(entries_of(key, rows, first, time_to))
            return slow(key, time_from, time_to)

        if compiled is None:
            return fetch
        fast = compiled.fetch(fetch, self._open, retention, key_types)
        self.calls.add_total("gets", lambda: fast.count)
        return fast  # type: ignore[no-any-return]

    def _compile_put(self) -> Callable[[Any, Any, int], None]:
        opened, slow, changed = self._open.get, self._put, self._changed
        key_types, can_wait, retention = self.keys.types, self.values.compile_test(), self.retention
        free_types, rows_of, put_row = self.values.free_values, self._recent.known.get, self._recent.put
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
                window = opened(window_start)
                if window is not None and window_start <= retention.newest:
                    pending = window.pending
                    if key in pending or key in window.clean:  # so the serde takes the key
                        if not pending:
                            changed.append(window)
                        pending[key] = value
                        return
                rows = rows_of(key)
                if rows is not None and window_start >= rows.known_from:
                    put_row(key, rows, window_start, value, retention.kept_after)
                    if window_start > retention.newest:
                        retention.note(window_start)
                    return
            slow(key, value, window_start)

        if compiled is None or (fit := self.values.fit()) is None:
            return put
        fast = compiled.put_window(put, self._open, changed, retention, key_types, fit)
        self.calls.add_total("puts", lambda: fast.count)
        return fast  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ scans

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Entries[int, Any]:
        return self._scan_key(key, time_from, time_to, reverse=True)

    def fetch_range(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> Entries[Windowed, Any]:
        return self._scan_keys(key_from, key_to, time_from, time_to, reverse=False)

    def backward_fetch_range(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> Entries[Windowed, Any]:
        return self._scan_keys(key_from, key_to, time_from, time_to, reverse=True)

    def entries_from(self, row: bytes) -> Iterator[tuple[bytes, Windowed, Any]]:
        """Yield row, key and present value of the entries from a row on; see VisitableStore."""
        for row_key, key, start, _ in self._rows_from(row):
            yield row_key, Windowed(key, start, self.end_of(start)), self.fetch(key, start)

    # ------------------------------------------------------------------ the commit

    def unflushed(self) -> int:
        """Return the number of rows that are not serialized yet, without rows of keys fetched over several windows."""
        return sum(window.unflushed() for window in self._changed)

    def _flush_objects(self) -> None:
        changes: dict[bytes, bytes | None] = {}
        kept_after = self.retention.kept_after
        for window in self._changed:
            if window.start <= kept_after:
                window.expire()
            changes.update(window.encoded())
        changes.update(self._recent.encoded(kept_after))
        if changes:
            self._below.put_all(changes)
            self._written += len(changes)
        for window in self._changed:
            if window.start > kept_after:
                window.settle()
            else:
                self._open.pop(window.start, None)
        self._changed.clear()
        self._recent.settle(kept_after, self._open.values())

    def _drop_objects(self) -> None:
        self._open.clear()
        self._changed.clear()
        self._recent.discard()

    # ------------------------------------------------------------------ off the hot path

    def _fetch(self, key: Any, time_from: int, time_to: int | None) -> Any:
        if time_to is not None:
            return self._scan_key(key, time_from, time_to, reverse=False)
        self._check_time(key, time_from)
        self.retention.load()
        if not self.retention.kept_after < time_from <= self.retention.newest:
            self.keys.to_bytes(key)  # raises for a wrong key
            return None
        return self._fetch_one(key, time_from)

    def _fetch_one(self, key: Any, time: int) -> Any:
        which, rows = self._recent.at(key, time)
        if rows is None:
            return self._window(time).get(key)
        [value] = self._objects(which, [rows.get(time)])
        return value

    def _put(self, key: Any, value: Any, window_start: int) -> None:
        self._check_time(key, window_start)
        if window_start < 0:
            raise StoreError(f"store {self.name!r}: a window starts at 0 ms or later, found {window_start}")
        self.retention.load()
        if window_start <= self.retention.kept_after:
            self.keys.to_bytes(key)  # raises for a wrong key
            self.retention.drop(window_start)
            return
        if self._put_one(key, value, window_start):
            self.retention.note(window_start)

    def _put_one(self, key: Any, value: Any, window_start: int) -> bool:
        """Put an entry that has not expired; return whether its time counts as put."""
        which, rows = self._recent.at(key, window_start)
        if rows is not None:
            value = None if value is None else self.values.checked(value)
            if value is not None and not self.values.can_wait(value):
                value = Encoded(self.values.to_bytes(key, value))
            self._recent.put(which, rows, window_start, value, self.retention.kept_after)
            return True
        window = self._window(window_start)
        was_changed = bool(window.pending)
        window.put(key, value)
        if window.pending and not was_changed:
            self._changed.append(window)
        return True

    def _read(self, window: OpenWindow, key: Any) -> Any:
        self._count_miss()
        return window.read(key)

    def _window(self, start: int) -> OpenWindow:
        """Return a window, to read or put an entry that is not cached yet."""
        self._count_miss()
        window = self._open.get(start)
        if window is None:
            keys = WindowKeys(self.keys, self._buckets.around(start))
            window = OpenWindow(start, self._below, keys, self.values, is_new=start > self.retention.newest)
            self._open[start] = window
        return window

    def _count_miss(self) -> None:
        """Count an entry that will be cached; close the oldest windows if there are too many."""
        self._misses += 1
        if self._misses <= plain.CACHED_ENTRIES // 4 and len(self._open) <= _OPEN_WINDOWS:
            return
        self._flush_objects()
        self._misses = 0
        entries = sum(len(window.clean) for window in self._open.values())
        if entries > plain.CACHED_ENTRIES or len(self._open) > _OPEN_WINDOWS:
            while entries > plain.CACHED_ENTRIES // 2 or len(self._open) > _OPEN_WINDOWS // 2:
                entries -= len(self._open.pop(next(iter(self._open))).clean)

    def _check_time(self, key: Any, time: Any) -> None:
        if type(time) is not int or time > MAX_TIME:
            raise StoreError(
                f"store {self.name!r} is a window store: with key {str(key)[:40]!r} it takes the start of a window in "
                f"ms (an int of 64 bits), found {str(time)[:40]!r}: fetch(key, window_start), fetch(key, time_from, "
                "time_to), put(key, value, window_start)"
            )

    def _scan_key(self, key: Any, time_from: int, time_to: int, *, reverse: bool) -> Entries[int, Any]:
        self._check_time(key, time_from)
        self._check_time(key, time_to)
        self.retention.load()
        raw, which = self.keys.locate(key)
        first, last = self._kept(time_from, time_to)
        entries = None if which is MISSING else self._kept_entries(raw, which, first, last)
        if entries is not None:
            return ListScan(reversed(list(entries)) if reverse else entries)
        self._flush_objects()
        rows = self._buckets.of_key(raw, first, last, reverse=reverse)
        return Scan((start, value) for _, start, value in self._decoded(rows))

    def _kept_entries(self, raw: bytes, key: Any, first: int, last: int) -> Iterable[tuple[int, Any]] | None:
        """Return the cached entries of a key; None if the range is not cached as a whole."""
        if last < first:
            return ()
        rows = self._recent.reach(raw, key, first, last, self.retention.newest, self._open)
        return None if rows is None else self._entries(key, rows, first, last)

    def _entries(self, key: Any, rows: KnownRows, first: int, last: int) -> Iterator[tuple[int, Any]]:
        """Return a copy of the known rows of a key with first <= start <= last."""
        at = bisect_left(rows.times, first)
        end = bisect_right(rows.times, last, at)
        return zip(rows.times[at:end], self._objects(key, rows.values[at:end]), strict=True)

    def _objects(self, key: Any, values: list[Any]) -> list[Any]:
        for value in values:
            if type(value) is Encoded:
                to_object = self.values.to_object
                return [to_object(key, each.data) if type(each) is Encoded else each for each in values]
        return values

    def _scan_keys(
        self, key_from: Any, key_to: Any, time_from: int, time_to: int, *, reverse: bool
    ) -> Entries[Windowed, Any]:
        self._check_time(key_from, time_from)
        self._check_time(key_to, time_to)
        return Scan(self._windowed(self._rows_between(key_from, key_to, time_from, time_to, reverse=reverse)))

    def _windowed(self, rows: Iterator[Row]) -> Iterator[tuple[Windowed, Any]]:
        end_of = self.end_of
        for key, start, value in self._decoded(rows):
            yield Windowed(key, start, end_of(start)), value

    def entry_of(self, row_key: bytes, data: bytes | None) -> tuple[Windowed, Any]:
        """Return the entry of a row; its value is None if the row was deleted (`data` is None)."""
        raw, start, _ = self._buckets.parts(row_key)
        key = self.keys.to_object(raw)
        value = None if data is None else self.values.to_object(key, data)
        return Windowed(key, start, self.end_of(start)), value

    def _decoded(self, rows: Iterator[Row]) -> Iterator[tuple[Any, int, Any]]:
        """Yield key, window start and value."""
        for row_key, data in rows:
            raw, start, _ = self._buckets.parts(row_key)
            key = self.keys.to_object(raw)
            yield key, start, self.values.to_object(key, data)


class StampedBucketWindowStore(BucketWindowStore, TimestampedWindowStore[Any]):
    """A TimestampedWindowStore: values are ValueAndTimestamp."""

    form_of_values = TimestampedForm


class HeadersBucketWindowStore(BucketWindowStore, HeadersWindowStore[Any]):
    """A HeadersWindowStore: values are ValueTimestampHeaders."""

    form_of_values = HeadersForm


class WindowTopicRows(RetainedRows):
    """The rest is the number of a duplicate, 0 in a store without. Semantics: Kafka Streams' WindowKeySchema."""

    rest_bytes = 4

    def __init__(self, fixed_options: Mapping[str, int]) -> None:
        super().__init__(fixed_options, has_rest=bool(fixed_options["duplicates"]))
