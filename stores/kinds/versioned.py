"""VersionedStore: a row for each version of a key, by key and time; latest versions are kept as objects.

The row of a version is the escaped key and the timestamp (8 bytes), with the value's envelope, or with nothing where
the version is a deletion. The row b"" has the newest timestamp ever put, and the time before which history is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from struct import Struct
from typing import Any

from penstock import (
    NOT_PUT,
    VALID_TO_UNDEFINED,
    BytesStore,
    StoreContext,
    StoreError,
    StoreKind,
    TopicRows,
    VersionedKeyValueStore,
    VersionedRecord,
    VersionedStoreSpec,
)
from penstock.store.calls import StoreCalls
from penstock.store.envelope import PLAIN, unwrap, wrap

from ..rows.escaping import escaped, unescaped
from ..rows.key_form import MISSING, KeyForm
from ..rows.retention import LateDrops
from ..rows.scan import Scan
from ..rows.time_index import IndexBuild, TimeIndex
from ..rows.value_form import ValueForm
from .plain import keep

TIME = Struct(">Q")
"""A timestamp behind an escaped key."""
DELETED = b""
"""The content of the row of a version that is a deletion."""
META_ROW = b""
"""The key of the store's own row."""
LAST_TIME = 2**63 - 1

_FREED_ROWS = 4_096
"""How many rows a commit frees, or adds to an index that is built, at least; a larger one twice as many as it puts."""


class ExpiredVersions:
    """The keys with versions to free, by the time when they can be freed.

    A version is gone when the next newer one of its key is at least as old as the bound, and a deletion when it is that
    old itself. So a version that has an older one, or is a deletion, is in the index, under the end of the bucket of
    time that it is in: a key that is often put has one row for each bucket, and its versions may be kept for as much
    longer. When the bound is past that time, the key's rows are looked through from the oldest one on.

    Rows are freed on this host only: the remaining rows hide gone versions, and a changelog topic is compacted. A key's
    rows are freed in the order of time, so an older version never reappears.
    """

    def __init__(self, below: BytesStore, index: BytesStore, history_ms: int) -> None:
        self._below = below
        self._times = TimeIndex(index)
        self._build = IndexBuild(index)
        self._bucket_ms = max(1, history_ms // 4)
        self._noted: dict[bytes, int] = {}
        self._notes = 0
        self._last_key: bytes | None = None

    def note(self, key: bytes, timestamp: int) -> None:
        """Record a version that has an older one or is a deletion."""
        due = min((timestamp // self._bucket_ms + 1) * self._bucket_ms - 1, LAST_TIME)
        self._notes += 1
        if self._noted.get(key) != due:
            self._noted[key] = due
            self._times.put(due, key)

    def flush(self, bound: int) -> None:
        """Free some versions that are gone at `bound`; build a part of the index if it is incomplete."""
        limit = max(_FREED_ROWS, 2 * self._notes)
        if not self._build.is_complete:
            self._build.step(self._below, self._add, limit)
        done = set[bytes]()
        for due, key in islice(self._times.rows(bound), limit):
            if limit <= 0:
                break
            if key not in done:  # its rows are still there until the commit
                gone = self._gone(key, bound, limit)
                self._below.free(gone, locally=True)
                limit -= len(gone)
                if limit <= 0:
                    break  # there may be more of this key
                done.add(key)
            limit -= 1
            self._times.remove(due, key)
        self._forget()

    def discard(self) -> None:
        """Drop notes since the last commit, which failed."""
        self._forget()
        self._last_key = None

    def _forget(self) -> None:
        self._noted.clear()
        self._notes = 0

    def _gone(self, key: bytes, bound: int, limit: int) -> list[bytes]:
        """Return the rows of a key that are gone, the oldest `limit` ones."""
        start = escaped(key)
        end = start + TIME.pack(min(bound, LAST_TIME) + 1)
        rows = list(islice(self._below.range(start, end), limit + 1))
        if rows and (len(rows) > limit or rows[-1][1] != DELETED):
            rows.pop()  # it is valid at the bound
        return [row for row, _ in rows]

    def _add(self, row: bytes, data: bytes) -> None:
        if row == META_ROW:
            return
        key, at = unescaped(row)
        if key == self._last_key or data == DELETED:
            self.note(key, TIME.unpack_from(row, at)[0])
        self._last_key = key


_META = Struct(">qq")
META_KEY = b"__penstock.versions"
"""The key of the store's own row in a changelog topic."""
_IS = "__penstock.is"
_AFTER_ALL = b"\xff" * 9
"""Above the timestamp of any version."""
_NONE = VersionedRecord(None, -1)
"""Kept for a key without versions."""


class VersionedStore(VersionedKeyValueStore[Any, Any]):
    """A VersionedKeyValueStore.

    Which versions are gone follows from the rows and the row b"" alone, never from freed rows: a version is gone once a
    newer one is at least as old as the bound. The bound never goes back, so a program with a longer history does not
    see the part of it that is still there by chance.

    `_latest` has the latest version of some keys, with a value of None where that is a deletion: only versions whose
    values callers cannot change (see `ValueForm`).
    """

    def __init__(
        self,
        below: BytesStore,
        keys: KeyForm,
        values: ValueForm,
        history_ms: int,
        grace_ms: int,
        late: LateDrops,
        history: ExpiredVersions,
    ) -> None:
        self.name = below.name
        self._below = below
        self._keys = keys
        self._values = values
        self._history_ms = history_ms
        self._grace_ms = grace_ms
        self._late = late
        self._history = history
        self._latest: dict[Any, VersionedRecord] = {}
        self._times: tuple[int, int] | None = None
        """The newest timestamp ever put, and the time before which history is gone; None: not read yet."""
        self._saved_times: tuple[int, int] | None = None
        self.calls: StoreCalls = StoreCalls()
        # A closure, as the hot methods of PlainStore.
        setattr(self, "get", self._compile_get())  # noqa: B010

    # ------------------------------------------------------------------ reading

    def get(self, key: Any, as_of: int | None = None, to: int | None = None) -> Any:
        return self._get(key, as_of, to)

    def _compile_get(self) -> Callable[..., Any]:
        latest, slow, key_types = self._latest.get, self._get, self._keys.types
        gets = 0
        self.calls.add_total("gets", lambda: gets)

        def get(key: Any, as_of: int | None = None, to: int | None = None) -> Any:
            nonlocal gets
            gets += 1
            if as_of is None and type(key) in key_types:
                found = latest(key)
                if found is not None and to is None:
                    return found if found[0] is not None else None
            return slow(key, as_of, to)

        return get

    def _get(self, key: Any, as_of: int | None, to: int | None) -> Any:
        if as_of is None:
            if to is not None:
                raise StoreError(f"store {self.name!r}: get(key, to=...) needs `as_of`, where the versions begin")
            return _shown(self._find_latest(key))
        self._check_int("as_of", as_of)
        if to is not None:
            self._check_int("to", to)
            return Scan(self._between(key, as_of, to))
        return self._valid_at(key, as_of)

    def _valid_at(self, key: Any, time: int) -> VersionedRecord | None:
        latest = self._find_latest(key)
        if latest.timestamp <= time or time < self._bound():
            return _shown(latest) if latest.timestamp <= time else None
        raw = self._keys.to_bytes(key)
        start = escaped(raw)
        for row, data in self._below.range(start, _before(start, time + 1), reverse=True):
            if data == DELETED:
                return None
            timestamp = _timestamp(row)
            newer = next(self._below.range(_before(start, time + 1), start + _AFTER_ALL))
            return VersionedRecord(self._values.to_object(raw, data), timestamp, _timestamp(newer[0]))
        return None

    def _between(self, key: Any, first: int, last: int) -> Iterator[tuple[int, VersionedRecord]]:
        """Yield the versions that were valid at any time from `first` to `last`, the latest first."""
        raw = self._keys.to_bytes(key)
        start = escaped(raw)
        if first > last or last < 0:
            return
        end = _before(start, last + 1)
        newer = next(self._below.range(end, start + _AFTER_ALL), None)
        valid_to = VALID_TO_UNDEFINED if newer is None else _timestamp(newer[0])
        first = max(first, 0)
        gone = max(first, self._bound())
        for row, data in self._below.range(start, end, reverse=True):
            if VALID_TO_UNDEFINED != valid_to <= gone:
                return
            timestamp = _timestamp(row)
            if data != DELETED:
                yield timestamp, VersionedRecord(self._values.to_object(raw, data), timestamp, valid_to)
            valid_to = timestamp

    def all_versions(
        self, start: Any = None, end: Any = None, first: int = 0, last: int = LAST_TIME
    ) -> Iterator[tuple[Any, VersionedRecord]]:
        """Yield (key, version) of the versions valid at any time from `first` to `last`, of all keys or start to end.

        Keys come in the order of the serialized keys, both limits included; of each key the latest version first.
        """
        low = META_ROW + b"\x00" if start is None else escaped(self._keys.to_bytes(start))
        high = None if end is None else escaped(self._keys.to_bytes(end)) + _AFTER_ALL
        gone = max(first, self._bound())
        rows = ((*unescaped(row), row, data) for row, data in self._below.range(low, high))
        for raw, group in groupby(rows, itemgetter(0)):
            key, valid_to = self._keys.to_object(raw), VALID_TO_UNDEFINED
            for _, at, row, data in reversed(list(group)):
                (timestamp,) = TIME.unpack_from(row, at)
                if VALID_TO_UNDEFINED != valid_to <= gone:
                    break
                if timestamp <= last and data != DELETED:
                    yield key, VersionedRecord(self._values.to_object(raw, data), timestamp, valid_to)
                valid_to = timestamp

    def entry_of(self, row_key: bytes, data: bytes) -> tuple[Any, VersionedRecord]:
        """Return the key and the version of a row, which does not say how long the version was valid.

        The value of a deletion is None.
        """
        raw, at = unescaped(row_key)
        value = None if data == DELETED else self._values.to_object(raw, data)
        return self._keys.to_object(raw), VersionedRecord(value, TIME.unpack_from(row_key, at)[0])

    def _find_latest(self, key: Any) -> VersionedRecord:
        """Return the latest version; its value is None where that is a deletion, or there is none."""
        if type(key) in self._keys.types:
            kept = self._latest.get(key)
            if kept is not None:
                return kept
        return self._latest_of(*self._keys.locate(key))

    def _latest_of(self, raw: bytes, key: Any) -> VersionedRecord:
        if key is not MISSING:
            kept = self._latest.get(key)
            if kept is not None:
                return kept
        start = escaped(raw)
        self.calls.reads += 1
        found = _NONE
        for row, data in self._below.range(start, start + _AFTER_ALL, reverse=True):
            value = None if data == DELETED else self._values.to_object(raw, data)
            found = VersionedRecord(value, _timestamp(row))
            break
        self._keep(key, found)
        return found

    # ------------------------------------------------------------------ writing

    def put(self, key: Any, value: Any, timestamp: int) -> int:
        self.calls.puts += 1
        raw, kept_key = self._keys.locate(key)
        self._check_timestamp(timestamp)
        data = DELETED if value is None else self._values.to_bytes(raw, value)
        if self._is_late(timestamp):
            return NOT_PUT
        return self._put(raw, kept_key, VersionedRecord(value, timestamp), data)

    def delete(self, key: Any, timestamp: int) -> VersionedRecord | None:
        self.calls.puts += 1
        raw, kept_key = self._keys.locate(key)
        self._check_timestamp(timestamp)
        if self._is_late(timestamp):
            return None
        old = self._valid_at(key, timestamp)
        self._put(raw, kept_key, VersionedRecord(None, timestamp), DELETED)
        return old

    def _is_late(self, timestamp: int) -> bool:
        """Return whether it is too late to put a version; count it if so."""
        newest, bound = self._times or self._read_times()
        first = max(newest - self._grace_ms, bound)
        if timestamp >= first:
            return False
        self._late.count(timestamp, first - 1)
        return True

    def _put(self, raw: bytes, key: Any, version: VersionedRecord, data: bytes) -> int:
        timestamp = version.timestamp
        latest = self._latest_of(raw, key)
        start = escaped(raw)
        self._below.put(start + TIME.pack(timestamp), data)
        newest, bound = self._times or self._read_times()
        if timestamp > newest:
            self._times = timestamp, max(bound, timestamp - self._history_ms)
        if latest is not _NONE or version.value is None:
            self._history.note(raw, timestamp)
        if timestamp >= latest.timestamp:
            self._keep(key, version)
            return VALID_TO_UNDEFINED
        # Compaction keeps the last record of a key in a changelog topic: that must be its latest version.
        row = start + TIME.pack(latest.timestamp)
        self._below.put(row, self._below.get(row))
        newer = _timestamp(next(self._below.range(_before(start, timestamp + 1), start + _AFTER_ALL))[0])
        self._history.note(raw, newer)
        return newer

    def _keep(self, key: Any, version: VersionedRecord) -> None:
        if key is MISSING:
            return
        if version.value is None or self._values.can_keep(version.value):
            keep(self._latest, key, version)
        else:
            self._latest.pop(key, None)

    # ------------------------------------------------------------------ the commit

    def flush(self) -> None:
        times = self._times or self._read_times()
        if times != self._saved_times:
            self._below.put(META_ROW, PLAIN + _META.pack(*times))
            self._saved_times = times
        self._history.flush(times[1])

    def discard(self) -> None:
        self._latest.clear()
        self._times = self._saved_times = None
        self._history.discard()

    def close(self) -> None:
        self.discard()

    # ------------------------------------------------------------------ helpers

    def _bound(self) -> int:
        return (self._times or self._read_times())[1]

    def _read_times(self) -> tuple[int, int]:
        data = self._below.get(META_ROW)
        self._saved_times = newest, bound = (-1, -1) if data is None else _META.unpack(data[len(PLAIN) :])
        self._times = newest, max(bound, newest - self._history_ms)
        return self._times

    def _check_timestamp(self, timestamp: object) -> None:
        self._check_int("timestamp", timestamp)
        if not 0 <= timestamp <= LAST_TIME:  # type: ignore[operator]
            raise StoreError(f"store {self.name!r}: expected a timestamp from 0 to 2**63 - 1 ms, found {timestamp!r}")

    def _check_int(self, what: str, time: object) -> None:
        if type(time) is not int:
            raise StoreError(f"store {self.name!r}: expected {what} as a whole number of milliseconds, found {time!r}")


class VersionedTopicRows(TopicRows):
    """A versioned store's rows as records of its changelog topic: the user's key, and the version's timestamp.

    A deletion has no value. Semantics: Kafka Streams' versioned stores. The store's own row has the key META_KEY, and a
    user's key that begins so is followed by a 0.
    """

    def __init__(self, fixed_options: Mapping[str, int]) -> None:
        pass

    def record_of(self, row_key: bytes, data: bytes | None) -> tuple[bytes, bytes | None, int | None]:
        if row_key == META_ROW:
            return META_KEY, data, None
        key, at = unescaped(row_key)
        (timestamp,) = TIME.unpack_from(row_key, at)
        if key.startswith(META_KEY):
            key += b"\x00"
        if data is None:  # the row is gone; a record without a value would be a deletion
            return key, wrap(b"", timestamp, ((_IS, b"gone"),)), timestamp
        if timestamp == 0:  # a log may change it in a record
            return key, wrap(b"", 0, ((_IS, b"deletion"),)) if data == DELETED else wrap(unwrap(data).value, 0), 1
        return key, None if data == DELETED else data, timestamp

    def row_of(self, key: bytes, data: bytes | None, timestamp: int) -> tuple[bytes, bytes | None]:
        if key == META_KEY:
            return META_ROW, data
        if key.startswith(META_KEY):
            key = key[:-1]
        if data is None:
            return escaped(key) + TIME.pack(timestamp), DELETED
        value, at, headers, *_ = unwrap(data)
        row_key = escaped(key) + TIME.pack(timestamp if at is None else at)
        if (_IS, b"gone") in headers:
            return row_key, None
        return row_key, DELETED if (_IS, b"deletion") in headers else wrap(value)


@partial(StoreKind, topic_rows=VersionedTopicRows)
def build_versioned_store(spec: VersionedStoreSpec, bytes_store: BytesStore, context: StoreContext) -> VersionedStore:
    """Return the store that `spec` declares, on top of `bytes_store`."""
    return VersionedStore(
        bytes_store,
        KeyForm(spec.name, context.serde(spec.key_serde, spec.name)),
        ValueForm(spec.name, context.serde(spec.value_serde, spec.name)),
        spec.history_retention_ms,
        spec.grace_ms,
        LateDrops(spec.name, context),
        ExpiredVersions(bytes_store, context.index, spec.history_retention_ms),
    )


def _shown(version: VersionedRecord) -> VersionedRecord | None:
    return None if version.value is None else version


def _timestamp(row: bytes) -> int:
    return int(TIME.unpack_from(row, len(row) - TIME.size)[0])


def _before(start: bytes, time: int) -> bytes:
    """Return the end of a range of a key's versions that are older than `time`."""
    return start if time < 0 else start + (TIME.pack(time) if time <= LAST_TIME else _AFTER_ALL)
