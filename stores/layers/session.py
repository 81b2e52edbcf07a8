"""What a declared session store becomes: rows in buckets of their end, kept as objects until the commit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from struct import Struct
from typing import Any

from penstock.errors import StoreError
from penstock.serde import Serde
from penstock.store import BytesStore, Entries, StoreContext
from penstock.store_kinds.session import SessionStore, SessionStoreSpec
from penstock.store_kinds.windowed import Windowed

from .composite import MAX_TIME, BucketKeys, Buckets
from .key_form import MISSING
from .plain import CACHED_ENTRIES
from .retention import Retention
from .rows import Entry, RowKeyForm, Rows
from .scan import ListScan, Scan
from .value_form import ValueForm

_LONG = Struct(">q")
_TIMES = 16

_windowed = partial(tuple.__new__, Windowed)
"""What `Windowed._make` does, in C."""

Times = list[tuple[int, int]]
"""The sessions of a key, as (end, start), in order."""


class BucketSessionStore(SessionStore[Any, Any]):
    """A SessionStore over a BytesStore. An entry of its rows is (key, end, start).

    `_times` has, for keys that were used recently, the times of all their sessions, so most calls need no scan. A key
    that has an entry in the rows' `pending` is in `_times`. `_fresh` has entries that are in `pending` only: when such
    a session is removed, because it was merged into another, nothing of it is written.
    """

    def __init__(
        self,
        spec: SessionStoreSpec,
        below: BytesStore,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        context: StoreContext,
    ) -> None:
        self.name = spec.name
        self._below = below
        self._buckets = Buckets(below, context.fixed_options["bucket_ms"], _TIMES)
        self.retention = Retention(below, self._buckets, spec.retention_ms, context)
        row_key, parts = self._buckets.row_key, self._buckets.parts
        keys = RowKeyForm(
            self.name,
            key_serde,
            lambda key, end, start: row_key(key, end, _LONG.pack(start)),
            lambda row: _entry(*parts(row)),
        )
        self.rows = Rows(below, keys, ValueForm(self.name, value_serde))
        self._times: dict[Any, Times] = {}
        self._fresh: set[Entry] = set()

    # ------------------------------------------------------------------ single entries

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        """Return the value of a session, or None."""
        self._check(key, start, end)
        self.retention.load()
        value = self.rows.get((key, end, start))
        return value if end > self.retention.kept_after else None

    def put(self, session: Windowed, value: Any) -> None:
        """Set the value of `session`; None removes it."""
        key, start, end = self.parts(session)
        retention = self.retention
        if not retention.is_known:
            retention.load()
        if end <= retention.kept_after:
            self.rows.user.to_bytes(key)  # raises for a wrong key
            retention.drop(end)
            return
        self._put(key, start, end, value)
        if end > retention.newest:
            retention.note(end)

    def _put(self, key: Any, start: int, end: int, value: Any) -> None:
        times = self._times.get(key) if type(key) in self.rows.keys.types else None
        if times is None:
            raw, which = self.rows.user.locate(key)
            if which is MISSING:
                self.rows.put((key, end, start), value)
                return
            key, times = which, self._times_of(raw, which)
        time, at, exists = (end, start), len(times), False
        if at and times[-1] >= time:  # most are the last one, or later
            exists = times[-1] == time
            at = at - 1 if exists else bisect_left(times, time)
            exists = exists or times[at] == time
        entry = (key, end, start)
        if value is None:
            if exists:
                del times[at]
                if entry in self._fresh:
                    self._fresh.remove(entry)
                    del self.rows.pending[entry]
                else:
                    self.rows.put(entry, None)
        elif self.rows.can_wait(value):
            pending = self.rows.pending
            if not exists:
                times.insert(at, time)
                if entry not in pending:
                    self._fresh.add(entry)
            pending[entry] = value
            if len(pending) > CACHED_ENTRIES:
                self._flush_rows()
        else:
            self.rows.put(entry, value)
            self._fresh.discard(entry)
            if not exists:
                times.insert(at, time)

    # ------------------------------------------------------------------ sessions of a key

    def find_sessions(self, key: Any, earliest_session_end: int, latest_session_start: int) -> Entries[Windowed, Any]:
        """Iterate over the sessions of `key` that overlap a time, the earliest first."""
        return ListScan(self._find(key, earliest_session_end, latest_session_start))

    def backward_find_sessions(
        self, key: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        """Iterate as `find_sessions` does, the latest first."""
        return ListScan(self._find(key, earliest_session_end, latest_session_start)[::-1])

    def _find(self, key: Any, earliest_end: int, latest_start: int) -> list[tuple[Windowed, Any]]:
        retention = self.retention
        if not retention.is_known:
            retention.load()
        if type(earliest_end) is not int or type(latest_start) is not int:
            self._check(key, latest_start, earliest_end)
        times = self._times.get(key) if type(key) in self.rows.keys.types else None
        if earliest_end <= retention.kept_after:
            earliest_end = retention.kept_after + 1
        if times is None:
            self._check(key, latest_start, earliest_end)
            raw, which = self.rows.user.locate(key)
            if which is MISSING:
                rows = self._buckets.of_key(raw, earliest_end, retention.newest, reverse=False)
                return list(_sessions(self.rows.decoded(rows), latest_start))
            key, times = which, self._times_of(raw, which)
        get, found, at = self.rows.get, [], len(times)
        while at:  # from the last one back: only few overlap
            at -= 1
            end, start = times[at]
            if end < earliest_end:
                break
            if start <= latest_start:
                found.append((_windowed((key, start, end)), get((key, end, start))))
        if len(found) > 1:
            found.reverse()
        return found

    def _times_of(self, raw: bytes, key: Any) -> Times:
        """Return the times of a key's sessions; read them if they are not known."""
        times = self._times.get(key)
        if times is None:
            if len(self._times) >= CACHED_ENTRIES:
                self._flush_rows()
                for old in list(islice(self._times, CACHED_ENTRIES // 2)):
                    del self._times[old]
            found = self._buckets.of_key(raw, self.retention.kept_after + 1, self.retention.newest, reverse=False)
            parts = (self._buckets.parts(row) for row, _ in found)
            times = self._times[key] = [(end, _LONG.unpack(start)[0]) for _, end, start in parts]
        elif times and times[0][0] <= self.retention.kept_after:
            del times[: bisect_left(times, (self.retention.kept_after + 1,))]
        return times

    # ------------------------------------------------------------------ sessions of several keys

    def find_sessions_range(
        self, key_from: Any, key_to: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        """Iterate as `find_sessions` does, over key_from <= key <= key_to, by key."""
        return self._scan(key_from, key_to, earliest_session_end, latest_session_start, reverse=False)

    def backward_find_sessions_range(
        self, key_from: Any, key_to: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        """Iterate as `find_sessions_range` does, in the opposite order."""
        return self._scan(key_from, key_to, earliest_session_end, latest_session_start, reverse=True)

    def _scan(
        self, key_from: Any, key_to: Any, earliest_end: int, latest_start: int, *, reverse: bool
    ) -> Entries[Windowed, Any]:
        self._check(key_from, latest_start, earliest_end)
        self.retention.load()
        self._flush_rows()
        low = None if key_from is None else self.rows.user.locate(key_from)[0]
        high = None if key_to is None else self.rows.user.locate(key_to)[0]
        first = max(earliest_end, self.retention.kept_after + 1)
        rows = self._buckets.of_keys(low, high, first, self.retention.newest, reverse=reverse)
        return Scan(_sessions(self.rows.decoded(rows), latest_start))

    def approximate_count(self) -> int:
        """Return about how many sessions there are."""
        self._flush_rows()
        return self._below.approximate_count() - self.retention.rows()

    # ------------------------------------------------------------------ the commit

    def flush(self) -> None:
        """Serialize what is kept as objects, and free what has expired."""
        changes = len(self.rows.pending)
        self._flush_rows()
        self.retention.flush(changes)

    def _flush_rows(self) -> None:
        self.rows.flush_cache()
        self._fresh.clear()

    def discard(self) -> None:
        """Drop what is kept as objects."""
        self.rows.discard()
        self.retention.discard()
        self._times.clear()
        self._fresh.clear()

    def close(self) -> None:
        """Drop what is kept as objects."""
        self.discard()

    # ------------------------------------------------------------------ wrong use

    def parts(self, session: Any) -> tuple[Any, int, int]:
        """Return key, start and end of a session. Raises StoreError for anything else."""
        try:
            key, start, end = session
            if type(start) is int and type(end) is int and 0 <= start <= end <= MAX_TIME:
                return key, start, end
        except (TypeError, ValueError):
            raise StoreError(
                f"store {self.name!r} is a session store: expected Windowed(key, start, end), found "
                f"{str(session)[:60]!r}"
            ) from None
        self._check(key, start, end)
        raise StoreError(
            f"store {self.name!r}: a session starts at 0 ms or later and does not end before that, found start "
            f"{start}, end {end} of key {str(key)[:40]!r}"
        )

    def _check(self, key: Any, start: Any, end: Any) -> None:
        if type(start) is not int or type(end) is not int or max(start, end) > MAX_TIME:
            raise StoreError(
                f"store {self.name!r} is a session store: with key {str(key)[:40]!r} it takes times in ms (ints of 64 "
                f"bits), found {str(start)[:40]!r} and {str(end)[:40]!r}"
            )


def _entry(key: bytes, end: int, start: bytes) -> Entry:
    return key, end, _LONG.unpack(start)[0]


def _sessions(entries: Iterator[tuple[Entry, Any]], latest_start: int) -> Iterator[tuple[Windowed, Any]]:
    for (key, end, start), value in entries:
        if start <= latest_start:
            yield Windowed(key, start, end), value


class SessionTopicRows:
    """A session store's rows as records of its changelog topic: key, session end and start (8 bytes each).

    Semantics: Kafka Streams' SessionKeySchema. The store's own row has the empty key.
    """

    def __init__(self, fixed_options: Mapping[str, int]) -> None:
        self._keys = BucketKeys(fixed_options["bucket_ms"], _TIMES)

    def record_of(self, row_key: bytes, data: bytes | None) -> tuple[bytes, bytes | None, int | None]:
        """Return the key, value and timestamp of the record for a row."""
        if not row_key:
            return row_key, data, None
        key, end, start = self._keys.parts(row_key)
        return key + _LONG.pack(end) + start, data, end

    def row_of(self, key: bytes, data: bytes | None, timestamp: int) -> tuple[bytes, bytes | None]:
        """Return the row for a record."""
        if not key:
            return key, data
        (end,) = _LONG.unpack_from(key, len(key) - _TIMES)
        return self._keys.row_key(key[:-_TIMES], end, key[-8:]), data
