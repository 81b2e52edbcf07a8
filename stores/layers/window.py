"""What a declared window store becomes: rows in buckets of time, kept as objects until the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Any, ClassVar

from penstock.errors import StoreError
from penstock.serde import Serde
from penstock.store import BytesStore, Entries, StoreContext
from penstock.store_kinds.window import HeadersWindowStore, TimestampedWindowStore, WindowStore, WindowStoreSpec
from penstock.store_kinds.windowed import Windowed

from .composite import MAX_TIME, BucketKeys, Buckets
from .escaping import without_end
from .headers_form import HeadersForm
from .key_form import MISSING
from .retention import Retention
from .rows import Entry, RowKeyForm, Rows
from .scan import Scan
from .value_form import TimestampedForm, ValueForm

_LONG, _NUMBER = Struct(">q"), Struct(">i")
_TIME, _TIMES = 8, 12
_KNOWN_WINDOWS = 1_024


class BucketWindowStore(WindowStore[Any, Any]):
    """A WindowStore over a BytesStore. `fetch` and `put` are compiled, as those of a key-value store are."""

    form_of_values: ClassVar[type[ValueForm]] = ValueForm

    def __init__(
        self,
        spec: WindowStoreSpec,
        below: BytesStore,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        context: StoreContext,
    ) -> None:
        self.name = spec.name
        self._below = below
        self.size_ms = spec.window_size_ms
        self._duplicates = bool(context.fixed_options["duplicates"])
        buckets = Buckets(below, context.fixed_options["bucket_ms"], _TIMES if self._duplicates else _TIME)
        self._buckets = buckets
        self.retention = Retention(below, buckets, spec.retention_ms, context)
        row_key, parts = _numbered(buckets) if self._duplicates else _unnumbered(buckets)
        keys = RowKeyForm(self.name, key_serde, row_key, parts)
        self.rows = Rows(below, keys, self.form_of_values(self.name, value_serde))
        setattr(self, "fetch", self._compile_fetch())  # noqa: B010
        setattr(self, "put", self._compile_put())  # noqa: B010

    # ------------------------------------------------------------------ single entries

    def fetch(self, key: Any, time_from: int, time_to: int | None = None) -> Any:
        """Return the value of a window; with `time_to`, iterate over those of several windows."""
        return self._fetch(key, time_from, time_to)

    def put(self, key: Any, value: Any, window_start: int) -> None:
        """Set the value of `key` in the window that starts at `window_start`; None deletes it."""
        self._put(key, value, window_start)

    def _compile_fetch(self) -> Callable[..., Any]:
        pending, clean, slow = self.rows.pending.get, self.rows.clean.get, self._fetch
        key_types, retention, read = self.rows.keys.types, self.retention, self.rows.read
        duplicates = self._duplicates

        def fetch(key: Any, time_from: Any = None, time_to: Any = None) -> Any:
            if time_to is None and type(key) in key_types:
                entry = (key, time_from)
                value = pending(entry, MISSING)
                if value is MISSING:
                    value = clean(entry, MISSING)
                    if (
                        value is MISSING
                        and type(time_from) is int
                        and not duplicates
                        and retention.kept_after < time_from <= retention.newest
                    ):
                        return read(entry)
                if value is not MISSING and time_from > retention.kept_after:
                    return value
            return slow(key, time_from, time_to)

        return fetch

    def _compile_put(self) -> Callable[[Any, Any, int], None]:
        pending, clean, slow = self.rows.pending, self.rows.clean, self._put
        key_types, can_wait, retention = self.rows.keys.types, self.rows.can_wait, self.retention
        free_types = self.rows.free_types
        if self._duplicates:
            return slow

        def put(key: Any, value: Any, window_start: Any = None) -> None:
            entry = (key, window_start)
            if (
                (type(value) in free_types or can_wait(value))
                and type(key) in key_types
                and (entry in pending or entry in clean)  # so the serde takes the key
                and retention.kept_after < window_start <= retention.newest
            ):
                pending[entry] = value
            else:
                slow(key, value, window_start)

        return put

    # ------------------------------------------------------------------ scans

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Entries[int, Any]:
        """Iterate over (window start, value) of `key`, the latest window first."""
        return self._scan_key(key, time_from, time_to, reverse=True)

    def fetch_range(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> Entries[Windowed, Any]:
        """Iterate over (windowed key, value) of key_from <= key <= key_to, by key, then window start."""
        return self._scan_keys(key_from, key_to, time_from, time_to, reverse=False)

    def backward_fetch_range(self, key_from: Any, key_to: Any, time_from: int, time_to: int) -> Entries[Windowed, Any]:
        """Iterate as `fetch_range` does, in the opposite order."""
        return self._scan_keys(key_from, key_to, time_from, time_to, reverse=True)

    def approximate_count(self) -> int:
        """Return about how many windows there are."""
        self.rows.flush_cache()
        return self._below.approximate_count() - self.retention.rows()

    # ------------------------------------------------------------------ the commit

    def flush(self) -> None:
        """Serialize what is kept as objects, and free what has expired."""
        changes = len(self.rows.pending)
        self.rows.flush_cache()
        self.retention.flush(changes)

    def discard(self) -> None:
        """Drop what is kept as objects."""
        self.rows.discard()
        self.retention.discard()

    def close(self) -> None:
        """Drop what is kept as objects."""
        self.rows.close()

    # ------------------------------------------------------------------ off the hot path

    def _fetch(self, key: Any, time_from: int, time_to: int | None) -> Any:
        if time_to is not None:
            return self._scan_key(key, time_from, time_to, reverse=False)
        self._check_time(key, time_from)
        self.retention.load()
        if time_from <= self.retention.kept_after:
            self.rows.user.locate(key)  # raises for a wrong key
            return None
        # With duplicates only the entry that was put last has a number that is known, as in Kafka Streams.
        return self.rows.get((key, time_from, self.retention.number) if self._duplicates else (key, time_from))

    def _put(self, key: Any, value: Any, window_start: int) -> None:
        self._check_time(key, window_start)
        if window_start < 0:
            raise StoreError(f"store {self.name!r}: a window starts at 0 ms or later, found {window_start}")
        self.retention.load()
        entry: Entry = (key, window_start)
        if self._duplicates and value is None:
            return
        if window_start <= self.retention.kept_after:
            self.rows.user.to_bytes(key)  # raises for a wrong key
            self.retention.drop(window_start)
            return
        if self._duplicates:
            entry = (key, window_start, self.retention.take_number())
        self.rows.put(entry, value)
        self.retention.note(window_start)

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
        self.rows.flush_cache()
        raw = self.rows.user.to_bytes(key)
        first, last = self._kept(time_from, time_to)
        rows = self.rows.decoded(self._buckets.of_key(raw, first, last, reverse=reverse))
        return Scan((entry[1], value) for entry, value in rows)

    def _scan_keys(
        self, key_from: Any, key_to: Any, time_from: int, time_to: int, *, reverse: bool
    ) -> Entries[Windowed, Any]:
        self._check_time(key_from, time_from)
        self._check_time(key_to, time_to)
        self.retention.load()
        self.rows.flush_cache()
        low = None if key_from is None else self.rows.user.to_bytes(key_from)
        high = None if key_to is None else self.rows.user.to_bytes(key_to)
        first, last = self._kept(time_from, time_to)
        rows = self.rows.decoded(self._buckets.of_keys(low, high, first, last, reverse=reverse))
        return Scan(self._windowed(rows))

    def _kept(self, time_from: int, time_to: int) -> tuple[int, int]:
        """Return the part of a range of times in which there can be windows: each bucket costs a search."""
        return max(time_from, self.retention.kept_after + 1, 0), min(time_to, self.retention.newest)

    def _windowed(self, rows: Iterator[tuple[Entry, Any]]) -> Iterator[tuple[Windowed, Any]]:
        size = self.size_ms
        for entry, value in rows:
            yield Windowed(entry[0], entry[1], min(entry[1] + size, MAX_TIME)), value


class StampedBucketWindowStore(BucketWindowStore, TimestampedWindowStore[Any]):
    """A TimestampedWindowStore: values are ValueAndTimestamp."""

    form_of_values = TimestampedForm


class HeadersBucketWindowStore(BucketWindowStore, HeadersWindowStore[Any]):
    """A HeadersWindowStore: values are ValueTimestampHeaders."""

    form_of_values = HeadersForm


def _unnumbered(keys: BucketKeys) -> tuple[Callable[..., bytes], Callable[[bytes], Entry]]:
    # Most rows are of few windows: what is around the key is made once for each.
    around: dict[int, tuple[bytes, bytes]] = {}

    def row_key(key: bytes, start: int) -> bytes:
        found = around.get(start)
        if found is None:
            if len(around) >= _KNOWN_WINDOWS:
                around.clear()
            found = around[start] = keys.around(start)
        return found[0] + without_end(key) + found[1]

    return row_key, lambda row: keys.parts(row)[:2]


def _numbered(keys: BucketKeys) -> tuple[Callable[..., bytes], Callable[[bytes], Entry]]:
    def row_key(key: bytes, start: int, number: int) -> bytes:
        return keys.row_key(key, start, _NUMBER.pack(number))

    def parts(row: bytes) -> Entry:
        key, start, rest = keys.parts(row)
        return key, start, _NUMBER.unpack(rest)[0]

    return row_key, parts


class WindowTopicRows:
    """A window store's rows as records of its changelog topic: key, window start (8 bytes) and number (4 bytes).

    Semantics: Kafka Streams' WindowKeySchema. The number is 0 in a store that does not retain duplicates. The store's
    own row has the empty key.
    """

    def __init__(self, fixed_options: Mapping[str, int]) -> None:
        self._duplicates = bool(fixed_options["duplicates"])
        self._keys = BucketKeys(fixed_options["bucket_ms"], _TIMES if self._duplicates else _TIME)

    def record_of(self, row_key: bytes, data: bytes | None) -> tuple[bytes, bytes | None, int | None]:
        """Return the key, value and timestamp of the record for a row."""
        if not row_key:
            return row_key, data, None
        key, start, number = self._keys.parts(row_key)
        return key + _LONG.pack(start) + (number or _NUMBER.pack(0)), data, start

    def row_of(self, key: bytes, data: bytes | None, timestamp: int) -> tuple[bytes, bytes | None]:
        """Return the row for a record."""
        if not key:
            return key, data
        (start,) = _LONG.unpack_from(key, len(key) - _TIMES)
        return self._keys.row_key(key[:-_TIMES], start, key[-4:] if self._duplicates else b""), data
