"""ExpiringStore: a key-value store whose entries may expire, on stream time or the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from struct import Struct
from typing import Any, cast

from penstock import (
    BytesStore,
    ConfigError,
    Duration,
    ExpiringKeyValueStore,
    KeyValueStoreSpec,
    PunctuationType,
    Serde,
    StoreContext,
    duration_ms,
)
from penstock.store.envelope import EXPIRING, EXPIRING_BY_WALL_CLOCK, PLAIN, Expiry, expiry_of, with_expiry

from ..rows.headers_form import HeadersForm
from ..rows.key_form import MISSING, KeyForm
from ..rows.time_index import IndexBuild, TimeIndex
from ..rows.value_form import TimestampedForm, ValueForm
from .plain import PlainStore

_LEAST_FREED = 512
"""So many entries may be freed with one commit, however few were put."""
_BUILT = 4096
"""Entries that one commit takes into an index that is built for a store with content."""
_MOST_DELAY_MS = 2**22
_LATEST = 2**63 - 1

Row = tuple[int, int]
"""A clock of the index, and the time at which an entry is looked at."""


class ExpiryIndex(BytesStore):
    """Entries whose index has the time at which each entry with an expiry is looked at.

    Nothing is hidden here: the store above compares each expiry with its clock. Entries are looked at a little after
    they expire, at multiples of an eighth of the store's TTL or less, so that an entry that is put again and again
    rarely changes its row. With each commit, entries are freed up to twice as many as were put: the work is in
    proportion to expired entries, in portions.
    """

    def __init__(self, below: BytesStore, ttl_ms: int | None, context: StoreContext) -> None:
        self.name = below.name
        self._below = below
        delay_ms = 1024 if ttl_ms is None else min(max(ttl_ms // 8, 1), _MOST_DELAY_MS)
        self.shift = delay_ms.bit_length() - 1
        """Entries are looked at, at multiples of 2 to the power of this (ms)."""
        index = context.index
        self._clocks: list[tuple[TimeIndex, Callable[[], int]]] = [
            (TimeIndex(index, 1), context.stream_time),
            (TimeIndex(index, 2), context.wall_clock),
        ]
        self._build = IndexBuild(index, bytes((self.shift,)))
        self._written = 0
        if next(below.range(), None) is None:
            self._build.begin_empty()

    def get(self, key: bytes) -> bytes | None:
        return self._below.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        self.note(key, value)
        self._below.put(key, value)
        self._written += 1

    def put_all(self, entries: Mapping[bytes, bytes | None]) -> None:
        """Set the values of several keys, for which the index was changed before, with `note` or `move`."""
        self._below.put_all(entries)
        self._written += len(entries)

    def note(self, key: bytes, value: bytes | None) -> None:
        """Change the index as the next value of `key` asks for."""
        before = self._below.get(key)
        old = None if before is None else expiry_of(before)
        new = None if value is None else expiry_of(value)
        self.move(key, old, new)

    def move(self, key: bytes, old: Expiry | None, new: Expiry | None) -> None:
        """Change the index for an entry that expires at `new` instead of `old`."""
        before, after = self._row(old), self._row(new)
        if before != after:
            if before is not None:
                self._clocks[before[0]][0].remove(before[1], key)
            if after is not None:
                self._clocks[after[0]][0].put(after[1], key)

    def range(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._below.range(start, end, reverse=reverse)

    def approximate_count(self) -> int:
        return self._below.approximate_count()

    def sweep(self, start: bytes | None, end: bytes, limit: int) -> bool:
        return self._below.sweep(start, end, limit)

    def free(self, keys: Iterable[bytes], *, locally: bool = False) -> None:
        self._below.free(keys, locally=locally)

    def free_expired(self) -> None:
        """Free the next entries that have expired, and take the next entries into an index that is not complete."""
        limit, self._written = _LEAST_FREED + 2 * self._written, 0
        for clock, (times, now_of) in enumerate(self._clocks):
            now = now_of()
            freed = []
            for _, key in times.sweep(now, limit):
                data = self._below.get(key)
                expiry = None if data is None else expiry_of(data)
                # Or it was put again: then it has another row.
                if expiry is not None and expiry.by_wall_clock == bool(clock) and expiry.time <= now:
                    freed.append(key)
            self._below.free(freed)
        self._build.step(self._below, self._add, _BUILT)

    def _add(self, key: bytes, data: bytes) -> None:
        self.move(key, None, expiry_of(data))

    def _row(self, expiry: Expiry | None) -> Row | None:
        if expiry is None:
            return None
        return expiry.by_wall_clock, min(((expiry.time - 1 >> self.shift) + 1) << self.shift, _LATEST)


_NEVER = 2**63 - 1
_HEAD = Struct(">Bq")
_MOST_DURATIONS = 1000


class ExpiringStore(PlainStore, ExpiringKeyValueStore[Any, Any]):
    """A KeyValueStore in which an entry is hidden from the moment on at which its clock reaches its expiry.

    What is kept as an object, and what `_get` and `_put` of PlainStore pass on, is an entry: a tuple of the value and
    its expiry by the store's clock (ms; `_NEVER`: it has none). An entry that an earlier program put by the other clock
    has this clock as a third element, and is not kept as an object.
    """

    def __init__(
        self, below: BytesStore, key_serde: Serde[Any], spec: KeyValueStoreSpec, context: StoreContext
    ) -> None:
        by_wall_clock = self._by_wall_clock = spec.ttl_clock is PunctuationType.WALL_CLOCK_TIME
        self._now, other = context.stream_time, context.wall_clock
        if by_wall_clock:
            self._now, other = other, self._now
        self._ttl = _NEVER if spec.ttl_ms is None else spec.ttl_ms
        self._durations: dict[Duration, int] = {}
        serde = context.serde(spec.value_serde, spec.name)
        form = HeadersForm if spec.headers else TimestampedForm if spec.timestamped else ValueForm
        inner = form(spec.name, serde)
        self._form = ExpiringForm(inner, by_wall_clock, other)
        self._user_values = inner
        self._expiries = ExpiryIndex(below, spec.ttl_ms, context)
        self._begin(self._expiries, KeyForm(spec.name, key_serde), self._form)

    @property
    def user_values(self) -> ValueForm:
        return self._user_values

    def put(self, key: Any, value: Any, ttl: Duration | None = None) -> None:
        """Set the value of `key` for `ttl` (None: the store's TTL); a value of None deletes the key."""
        self._put(key, self._entry(value, ttl))

    def _compile_get(self) -> Callable[[Any], Any]:
        pending, clean, slow, key_types = self.pending.get, self.clean.get, self._get_alive, self.keys.types
        now, with_int = self._now, int in self.keys.types
        gets = 0
        self.calls.add_total("gets", lambda: gets)

        def get(key: Any) -> Any:
            nonlocal gets
            gets += 1
            try:
                if with_int and type(key) not in key_types:
                    return slow(key)
                entry = pending(key, MISSING)
                if entry is MISSING:
                    entry = clean(key, MISSING)
                    if entry is MISSING:
                        return slow(key)
            except TypeError:  # unhashable; the slow path raises the right error
                return slow(key)
            return None if entry is None or entry[1] <= now() else entry[0]

        return get

    def _compile_put(self) -> Callable[..., None]:
        pending, clean, slow, key_types = self.pending, self.clean, self._put, self.keys.types
        free_types, can_wait, now, entry_for = self._form.free_types, self._form.fits, self._now, self._entry
        lasts, with_int = self._ttl, int in key_types
        puts = 0
        self.calls.add_total("puts", lambda: puts)

        def put(key: Any, value: Any, ttl: Duration | None = None) -> None:
            nonlocal puts
            puts += 1
            if value is None or ttl is not None:
                entry = entry_for(value, ttl)
            else:
                time = now()
                entry = (value, time + lasts if time >= 0 else _NEVER)
            try:
                if (
                    (type(value) in free_types or can_wait(value))
                    and (not with_int or type(key) in key_types)
                    and (key in pending or key in clean)
                ):
                    pending[key] = entry
                    return
            except TypeError:  # unhashable; the slow path raises the right error
                pass
            slow(key, entry)

        return put

    def flush(self) -> None:
        """Serialize the cache into the BytesStore below, and free expired entries."""
        self.flush_cache()
        self._expiries.free_expired()

    def encoded(self) -> dict[bytes, bytes | None]:
        """Return the pending entries as bytes, and change the index for them."""
        encoded = super().encoded()
        clean, shift, index, by_wall_clock = self.clean.get, self._expiries.shift, self._expiries, self._by_wall_clock
        for raw, (key, entry) in zip(encoded, self.pending.items(), strict=True):
            old = clean(key, MISSING)
            if old is MISSING:
                index.note(raw, encoded[raw])
            elif old is None or entry is None or (old[1] - 1) >> shift != (entry[1] - 1) >> shift:
                # What is kept as an object is as the store below has it: no need to read that.
                index.move(raw, _expiry(old, by_wall_clock), _expiry(entry, by_wall_clock))
        return encoded

    def _entry(self, value: Any, ttl: Duration | None) -> tuple[Any, int] | None:
        lasts = self._ttl if ttl is None else self._lasts(ttl)
        time = self._now()
        # Before the first record there is no stream time to count from.
        return None if value is None else (value, time + lasts if time >= 0 else _NEVER)

    def _lasts(self, ttl: Duration) -> int:
        try:
            return self._durations[ttl]
        except (KeyError, TypeError):
            pass
        ms = duration_ms(ttl, f"ttl of an entry of store {self.name!r}")
        if ms < 1:
            raise ConfigError(
                f"ttl of an entry of store {self.name!r}: expected a duration of at least 1ms, found {ttl!r}; to "
                "remove the entry now, delete it"
            )
        if len(self._durations) >= _MOST_DURATIONS:
            self._durations.clear()
        self._durations[ttl] = ms
        return ms

    def _get_alive(self, key: Any) -> Any:
        entry = self._get(key)
        return entry[0] if entry is not None and self._is_alive(entry) else None

    def _is_alive(self, entry: tuple[Any, ...]) -> bool:
        now = self._now if len(entry) == 2 else entry[2]
        return bool(entry[1] > now())

    def portions(self, size: int) -> Iterator[tuple[list[Any], list[Any]]]:
        with self.all() as found:
            while entries := list(islice(found, size)):
                keys, values = zip(*entries, strict=True)
                yield list(keys), list(values)

    def _decoded(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[Any, Any]]:
        for key, entry in super()._decoded(entries):
            if self._is_alive(entry):
                yield key, entry[0]


def _expiry(entry: tuple[Any, int] | None, by_wall_clock: bool) -> Expiry | None:
    return None if entry is None or entry[1] >= _NEVER else Expiry(entry[1], by_wall_clock)


class ExpiringForm(ValueForm):
    """Entries of a value and its expiry, over the form of the values; for `ExpiringStore` alone.

    `free_types` and `fits` are of the values: the store tests them before it makes an entry.
    """

    def __init__(self, values: ValueForm, by_wall_clock: bool, other_clock: Callable[[], int]) -> None:
        self._values = values
        self._by_wall_clock = by_wall_clock
        self._other_clock = other_clock
        self._is_plain = type(values) is ValueForm
        self.free_types = values.free_types if self._is_plain else frozenset[type]()
        self.fits = values.fits if self._is_plain else values.compile_test()

    def can_wait(self, entry: tuple[Any, ...]) -> bool:
        return self._values.can_wait(entry[0])

    def can_keep(self, entry: tuple[Any, ...]) -> bool:
        return len(entry) == 2 and self._values.can_keep(entry[0])

    def checked(self, entry: tuple[Any, ...]) -> Any:
        return None if self._values.checked(entry[0]) is None else entry

    def to_bytes(self, key: object, entry: tuple[Any, ...]) -> bytes:
        return self._expiring(self._values.to_bytes(key, entry[0]), entry[1])

    def to_object(self, key: object, data: bytes) -> tuple[Any, ...]:
        value = self._values.to_object(key, data)
        expiry = expiry_of(data)
        if expiry is None:
            return value, _NEVER
        if expiry.by_wall_clock != self._by_wall_clock:
            return value, expiry.time, self._other_clock
        return value, expiry.time

    def encode(self, entry: tuple[Any, ...]) -> bytes:
        return self._expiring(self._values.encode(entry[0]), entry[1])

    def encode_all(self, entries: Mapping[Any, Any], key_bytes: Callable[[Any], bytes]) -> dict[bytes, bytes | None]:
        flag, head = EXPIRING_BY_WALL_CLOCK if self._by_wall_clock else EXPIRING, _HEAD.pack
        if self._is_plain:
            serialize = self._values.serializer()
            return {
                key_bytes(key): None
                if entry is None
                else (head(flag, entry[1]) if entry[1] < _NEVER else PLAIN) + serialize(entry[0])
                for key, entry in entries.items()
            }
        values = self._values.encode_all(
            {key: None if entry is None else entry[0] for key, entry in entries.items()}, key_bytes
        )
        return {
            key: data
            if data is None or (expiry := cast(int, entry[1])) >= _NEVER
            else head(data[0] | flag, expiry) + data[1:]
            for (key, data), entry in zip(values.items(), entries.values(), strict=True)
        }

    def _expiring(self, data: bytes, expiry: int) -> bytes:
        return data if expiry >= _NEVER else with_expiry(data, expiry, self._by_wall_clock)
