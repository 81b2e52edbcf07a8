"""The session store: rows in buckets of their end, kept as objects until the commit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from struct import Struct
from typing import Any

from penstock import BytesStore, Entries, Serde, SessionStore, SessionStoreSpec, StoreContext, StoreError, Windowed

from ..rows.buckets import MAX_TIME, Row
from ..rows.escaping import escaped
from ..rows.headers_form import HeadersForm
from ..rows.key_form import MISSING
from ..rows.scan import ListScan, Scan
from ..rows.value_form import Encoded, ValueForm
from . import plain
from .retained import TIME, RetainedRows, RetainedStore

SessionRow = tuple[int, int, Any]
"""End, start and value of a session."""

MOST_OF_A_KEY = 16
"""Maximum number of cached sessions of a key; above it, the latest half are kept."""


class KnownSessions:
    """The sessions of one key that end after `known_after`, in order: earlier ones, and the latest one set apart.

    Most calls are about the latest session. It is in `end`, `start` and `value`, so these calls do not make and free
    objects that the garbage collector has in its list, which is slow. `end` is -1 if no session is set apart. No other
    session ends after `alone_after`.
    """

    __slots__ = ("_earlier", "_stored", "alone_after", "end", "is_changed", "known_after", "start", "value")

    def __init__(self, known_after: int) -> None:
        self.end = self.start = -1
        self.value: Any = None
        self.known_after = self.alone_after = known_after
        self.is_changed = False
        """Whether sessions were put or removed since `take_changes`."""
        self._earlier: list[SessionRow] = []
        self._stored: list[SessionRow] = []

    def get(self, start: int, end: int) -> Any:
        """Return the value of a session, or None."""
        rows = self._joined()
        at, exists = _place(rows, start, end)
        value = rows[at][2] if exists else None
        self._set_apart()
        return value

    def overlapping(self, earliest_end: int, latest_start: int) -> list[SessionRow]:
        """Return the sessions with end >= earliest_end and start <= latest_start."""
        rows = self._joined()
        found = [row for row in rows[bisect_left(rows, (earliest_end,)) :] if row[1] <= latest_start]
        self._set_apart()
        return found

    def put(self, start: int, end: int, value: Any) -> None:
        """Set the value of a session, or remove it if that is None."""
        rows = self._joined()
        at, exists = _place(rows, start, end)
        rows[at : at + exists] = () if value is None else ((end, start, value),)
        self._set_apart()

    def add_earlier(self, rows: list[SessionRow], known_after: int) -> None:
        """Add the sessions of the store below that end after `known_after`, up to the present one."""
        self._joined()[:0] = rows
        self._stored[:0] = rows
        self.known_after = known_after
        self._set_apart()

    def take_changes(self, kept_after: int) -> tuple[list[SessionRow], list[SessionRow]]:
        """Return the rows to remove from the store below, and the rows to add: then it has these sessions.

        A session with another value is in both. Sessions that end at `kept_after` or earlier are dropped first: the
        store frees all expired rows elsewhere.
        """
        rows, stored = self._joined(), self._stored
        if rows and rows[0][0] <= kept_after:
            self._drop_earlier(kept_after)
        first, both = 0, min(len(stored), len(rows))
        while first < both and _are_same(stored[first], rows[first]):
            first += 1
        gone, added = stored[first:], rows[first:]
        stored[first:] = added
        while gone and added and _are_same(gone[-1], added[-1]):
            gone.pop()
            added.pop()
        if len(rows) > MOST_OF_A_KEY:
            self._drop_earlier(rows[-1 - MOST_OF_A_KEY // 2][0])
        self._set_apart()
        self.is_changed = False
        return gone, added

    def _joined(self) -> list[SessionRow]:
        """Return all known sessions; none is set apart any more."""
        if self.end >= 0:
            self._earlier.append((self.end, self.start, self.value))
            self.end = -1
        return self._earlier

    def _set_apart(self) -> None:
        """Set the latest session apart, if there is one."""
        rows = self._earlier
        if rows:
            self.end, self.start, self.value = rows.pop()
        self.alone_after = rows[-1][0] if rows else self.known_after

    def _drop_earlier(self, known_after: int) -> None:
        for rows in (self._earlier, self._stored):
            del rows[: bisect_left(rows, (known_after + 1,))]
        self.known_after = known_after


def _place(rows: list[SessionRow], start: int, end: int) -> tuple[int, bool]:
    """Return the index of a session in the list, or where to insert it, and whether it is there."""
    at = bisect_left(rows, (end, start))
    return at, at < len(rows) and rows[at][:2] == (end, start)


def _are_same(one: SessionRow, other: SessionRow) -> bool:
    return one is other or (one[0] == other[0] and one[1] == other[1] and one[2] is other[2])


_PAIR = Struct(">qq")


class BucketSessionStore(RetainedStore, SessionStore[Any, Any]):
    """A SessionStore over a BytesStore. Its rows are entries (key, end, start).

    `_known`: the latest sessions of recently used keys, as objects. `_changed`: keys with unwritten changes. So most
    calls need no scan, and of a session that grew into another before the commit nothing is written. The sessions of a
    key that cannot be kept as an object (see `KeyForm`) are written at once.
    """

    tail_bytes = _PAIR.size

    def __init__(
        self,
        spec: SessionStoreSpec,
        below: BytesStore,
        key_serde: Serde[Any],
        value_serde: Serde[Any],
        context: StoreContext,
    ) -> None:
        form = HeadersForm if spec.headers else ValueForm
        super().__init__(spec, below, key_serde, form(spec.name, value_serde), context)
        self._slack_ms = spec.retention_ms // 64
        self._can_wait = self.values.compile_test()
        self._known: dict[Any, KnownSessions] = {}
        self._changed: list[tuple[Any, KnownSessions]] = []
        setattr(self, "find_sessions", self._compile_find())  # noqa: B010
        setattr(self, "put", self._compile_put())  # noqa: B010
        setattr(self, "remove", self._compile_remove())  # noqa: B010

    # ------------------------------------------------------------------ the hot path

    def put(self, session: Windowed, value: Any) -> None:
        self._put(session, value)

    def find_sessions(self, key: Any, earliest_session_end: int, latest_session_start: int) -> Entries[Windowed, Any]:
        return self._find(key, earliest_session_end, latest_session_start)

    def _compile_find(self) -> Callable[[Any, int, int], Entries[Windowed, Any]]:
        known, key_types, retention, slow = self._known.get, self.keys.types, self.retention, self._find
        windowed, to_object = tuple.__new__, self._to_object
        gets = 0
        self.calls.add_total("gets", lambda: gets)

        def find_sessions(key: Any, earliest_session_end: int, latest_session_start: int) -> Entries[Windowed, Any]:
            nonlocal gets
            gets += 1
            sessions = known(key) if type(key) in key_types else None
            if (
                sessions is None
                or type(earliest_session_end) is not int
                or type(latest_session_start) is not int
                or earliest_session_end <= sessions.alone_after
            ):
                return slow(key, earliest_session_end, latest_session_start)
            start, end, value = sessions.start, sessions.end, sessions.value
            if end < earliest_session_end or start > latest_session_start or end <= retention.kept_after:
                return ListScan(())
            if type(value) is Encoded:
                value = to_object(key, value)
            return ListScan(((windowed(Windowed, (key, start, end)), value),))

        return find_sessions

    def _compile_put(self) -> Callable[[Windowed, Any], None]:
        known, key_types, retention, slow = self._known.get, self.keys.types, self.retention, self._put
        changed, can_wait, free_types = self._changed, self._can_wait, self.values.free_values
        puts = 0
        self.calls.add_total("puts", lambda: puts)

        def put(session: Windowed, value: Any) -> None:
            nonlocal puts
            puts += 1
            if type(session) is Windowed and (type(value) in free_types or can_wait(value)):
                key, start, end = session
                sessions = known(key) if type(key) in key_types else None
                if (
                    sessions is not None
                    and type(start) is int
                    and type(end) is int
                    and 0 <= start <= end
                    and retention.kept_after < end <= MAX_TIME
                    and end > sessions.alone_after
                ):
                    if sessions.end < 0:
                        sessions.start, sessions.end, sessions.value = start, end, value
                    else:
                        sessions.put(start, end, value)
                    if not sessions.is_changed:
                        sessions.is_changed = True
                        changed.append((key, sessions))
                    if end > retention.newest:
                        retention.note(end)
                    return
            slow(session, value)

        return put

    def _compile_remove(self) -> Callable[[Windowed], None]:
        known, key_types, retention, slow = self._known.get, self.keys.types, self.retention, self._put
        changed = self._changed
        puts = 0
        self.calls.add_total("puts", lambda: puts)

        def remove(session: Windowed) -> None:
            nonlocal puts
            puts += 1
            if type(session) is Windowed:
                key, start, end = session
                sessions = known(key) if type(key) in key_types else None
                if (
                    sessions is not None
                    and sessions.end == end
                    and sessions.start == start
                    and end > retention.kept_after
                ):
                    sessions.end = -1
                    if not sessions.is_changed:
                        sessions.is_changed = True
                        changed.append((key, sessions))
                    return
            slow(session, None)

        return remove

    # ------------------------------------------------------------------ off the hot path

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        self._check(key, start, end)
        self.retention.load()
        raw, which = self.keys.locate(key)
        if end <= self.retention.kept_after or end < 0 or start < 0:
            return None
        if which is MISSING:
            data = self._below.get(self._row_key(raw, end, start))
            return None if data is None else self.values.to_object(key, data)
        return self._to_object(key, self._sessions(raw, which, end).get(start, end))

    def backward_find_sessions(
        self, key: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        return ListScan(reversed(list(self.find_sessions(key, earliest_session_end, latest_session_start))))

    def _find(self, key: Any, earliest_end: int, latest_start: int) -> Entries[Windowed, Any]:
        self._check(key, latest_start, earliest_end)
        self.retention.load()
        raw, which = self.keys.locate(key)
        first = max(earliest_end, self.retention.kept_after + 1)
        if which is not MISSING:
            found = self._sessions(raw, which, first).overlapping(first, latest_start)
            return ListScan([(Windowed(which, start, end), self._to_object(key, value)) for end, start, value in found])
        rows = self._buckets.of_key(raw, first, self.retention.newest, reverse=False)
        return Scan(self._windowed(rows, latest_start))

    def _put(self, session: Windowed, value: Any) -> None:
        key, start, end = self.parts(session)
        if value is not None:
            value = self.values.checked(value)
        self.retention.load()
        raw, which = self.keys.locate(key)
        if end <= self.retention.kept_after:
            self.retention.drop(end)
            return
        if which is MISSING:
            data = None if value is None else self.values.to_bytes(key, value)
            self._below.put(self._row_key(raw, end, start), data)
        else:
            if value is not None and not self._can_wait(value):
                value = Encoded(self.values.to_bytes(key, value))
            sessions = self._sessions(raw, which, end)
            sessions.put(start, end, value)
            if not sessions.is_changed:
                sessions.is_changed = True
                self._changed.append((which, sessions))
        self.retention.note(end)

    def _sessions(self, raw: bytes, key: Any, first_end: int) -> KnownSessions:
        """Return a key's sessions that end at `first_end` or later, or more; read unknown ones from the store below."""
        sessions = self._known.get(key)
        if sessions is None:
            if len(self._known) >= plain.CACHED_ENTRIES:
                self._flush_objects()
                for old in list(islice(self._known, plain.CACHED_ENTRIES // 2)):
                    del self._known[old]
            sessions = self._known[key] = KnownSessions(self.retention.newest)
        if max(first_end - 1, self.retention.kept_after) < sessions.known_after:
            self.calls.reads += 1
            # Somewhat earlier, so that records that are a little late need not read again.
            known_after = max(first_end - 1 - self._slack_ms, self.retention.kept_after)
            rows = []
            for row_key, data in self._buckets.of_key(raw, known_after + 1, sessions.known_after, reverse=False):
                _, end, rest = self._buckets.parts(row_key)
                (start,) = TIME.unpack(rest)
                value = self.values.to_object(key, data)
                rows.append((end, start, value if self._can_wait(value) else Encoded(data)))
            sessions.add_earlier(rows, known_after)
        return sessions

    def _to_object(self, key: Any, value: Any) -> Any:
        return self.values.to_object(key, value.data) if type(value) is Encoded else value

    def _row_key(self, raw: bytes, end: int, start: int) -> bytes:
        return self._buckets.row_key(raw, end, TIME.pack(start))

    # ------------------------------------------------------------------ sessions of several keys

    def find_sessions_range(
        self, key_from: Any, key_to: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        return self._scan(key_from, key_to, earliest_session_end, latest_session_start, reverse=False)

    def backward_find_sessions_range(
        self, key_from: Any, key_to: Any, earliest_session_end: int, latest_session_start: int
    ) -> Entries[Windowed, Any]:
        return self._scan(key_from, key_to, earliest_session_end, latest_session_start, reverse=True)

    def _scan(
        self, key_from: Any, key_to: Any, earliest_end: int, latest_start: int, *, reverse: bool
    ) -> Entries[Windowed, Any]:
        self._check(key_from, latest_start, earliest_end)
        rows = self._rows_between(key_from, key_to, earliest_end, MAX_TIME, reverse=reverse)
        return Scan(self._windowed(rows, latest_start))

    def _windowed(self, rows: Iterable[Row], latest_start: int) -> Iterator[tuple[Windowed, Any]]:
        for row_key, data in rows:
            if TIME.unpack_from(row_key, len(row_key) - TIME.size)[0] <= latest_start:
                yield self.entry_of(row_key, data)

    def entry_of(self, row_key: bytes, data: bytes | None) -> tuple[Windowed, Any]:
        """Return the entry of a row; its value is None if the row was deleted (`data` is None)."""
        raw, end, rest = self._buckets.parts(row_key)
        key = self.keys.to_object(raw)
        value = None if data is None else self.values.to_object(key, data)
        return Windowed(key, TIME.unpack(rest)[0], end), value

    def entries_from(self, row: bytes) -> Iterator[tuple[bytes, Windowed, Any]]:
        """Yield row, key and present value of the entries from a row on; see VisitableStore."""
        for row_key, key, end, rest in self._rows_from(row):
            (start,) = TIME.unpack(rest)
            yield row_key, Windowed(key, start, end), self.fetch_session(key, start, end)

    # ------------------------------------------------------------------ the commit

    def unflushed(self) -> int:
        """Return the number of keys with sessions that are not serialized yet."""
        return len(self._changed)

    def _flush_objects(self) -> None:
        key_bytes, encode, kept_after = self.keys.to_bytes, self.values.encode, self.retention.kept_after
        bucket_ms, pack_bucket, pack_times = self._buckets.bucket_ms, TIME.pack, _PAIR.pack
        written: dict[bytes, bytes | None] = {}
        for key, sessions in self._changed:
            middle = escaped(key_bytes(key))
            gone, added = sessions.take_changes(kept_after)
            for end, start, _ in gone:
                written[pack_bucket(end // bucket_ms) + middle + pack_times(end, start)] = None
            for end, start, value in added:
                data = value.data if type(value) is Encoded else encode(value)
                written[pack_bucket(end // bucket_ms) + middle + pack_times(end, start)] = data
        self._changed.clear()
        if written:
            self._below.put_all(written)
            self._written += len(written)

    def _drop_objects(self) -> None:
        self._known.clear()
        self._changed.clear()

    # ------------------------------------------------------------------ wrong use

    def parts(self, session: Any) -> tuple[Any, int, int]:
        """Return key, start and end of a session. Raises StoreError for anything else."""
        try:
            key, start, end = session
        except (TypeError, ValueError):
            raise StoreError(
                f"store {self.name!r} is a session store: expected Windowed(key, start, end), found "
                f"{str(session)[:60]!r}"
            ) from None
        self._check(key, start, end)
        if not 0 <= start <= end:
            raise StoreError(
                f"store {self.name!r}: a session starts at 0 ms or later and does not end before that, found start "
                f"{start}, end {end} of key {str(key)[:40]!r}"
            )
        return key, start, end

    def _check(self, key: Any, start: Any, end: Any) -> None:
        if type(start) is not int or type(end) is not int or max(start, end) > MAX_TIME:
            raise StoreError(
                f"store {self.name!r} is a session store: with key {str(key)[:40]!r} it takes times in ms (ints of 64 "
                f"bits), found {str(start)[:40]!r} and {str(end)[:40]!r}"
            )


class SessionTopicRows(RetainedRows):
    """The first time is a session's end, the rest its start. Semantics: Kafka Streams' SessionKeySchema."""

    rest_bytes = TIME.size
