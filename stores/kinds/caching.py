"""Puts a record cache above a store: `put` also adds the update for the store's listener to the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import ValueAndTimestamp, Windowed
from penstock.store.record_cache import RecordCache
from penstock.support.own_copy import IMMUTABLE, own_copy

from ..rows.key_form import MISSING, KeyForm
from ..rows.value_form import Encoded, TimestampedForm, ValueForm
from .expiring import ExpiringStore
from .plain import PlainStore
from .session import BucketSessionStore
from .window import BucketWindowStore

_new = tuple.__new__
_SMALL = 16
"""About how many bytes a number has."""


class _Notes:
    """Keys and values of a store as the cache keeps them."""

    def __init__(self, cache: RecordCache, keys: KeyForm, values: ValueForm) -> None:
        self._can_wait = values.compile_test()
        self._keys = keys
        self._values = values
        cache.thaw = self._thaw
        cache.has_timestamps = isinstance(values, TimestampedForm)

    def which(self, key: Any) -> Any:
        """Return a key that is unique for the serde: keys that are equal in Python may be two for it."""
        if type(key) in self._keys.types:
            return key
        if isinstance(key, tuple):
            return (self._keys.to_bytes(key),)
        raw, located = self._keys.locate(key)  # a member of a StrEnum is its text
        return (raw,) if located is MISSING else located

    def own(self, key: Any) -> Any:
        """Return a key that later changes of the caller's object do not affect."""
        return key if type(key) in IMMUTABLE else own_copy(key)

    def frozen(self, key: Any, value: Any) -> Any:
        """Return a value that later changes of the caller's object do not affect."""
        if value is None or self._can_wait(value):
            return value
        checked = self._values.checked(value)
        return None if checked is None else Encoded(self._values.to_bytes(key, checked))

    def _thaw(self, key: Any, value: Any) -> Any:
        return self._values.to_object(key, value.data) if type(value) is Encoded else value


def cache_key_value_store(store: PlainStore, cache: RecordCache) -> PlainStore:
    """Let `cache` have the updates of a key-value store; return the store."""
    cache.entries_expire = isinstance(store, ExpiringStore)
    put, get = store.put, store.get
    notes = _Notes(cache, store.keys, store.user_values)
    has, note, frozen, key_types = cache.has, cache.note, notes.frozen, store.keys.types

    def cached(key: Any, value: Any, **options: Any) -> None:
        if cache.listener is None:
            put(key, value, **options)
            return
        is_plain = type(key) in key_types
        which = key if is_plain else notes.which(key)
        old = None if has(which) else get(key)
        if options:
            put(key, value, **options)
        else:
            put(key, value)
        new = frozen(key, value)
        note(which, key if is_plain else notes.own(key), new, old, _size(key) + _size(new))

    def sent(key: Any) -> Any:
        waiting = cache.unsent(notes.which(key))
        return get(key) if waiting is None else own_copy(waiting.old)

    cache.sent = sent
    _replace(store, cache, cached)
    return store


def cache_window_store(store: BucketWindowStore, cache: RecordCache) -> BucketWindowStore:
    """Let `cache` have the updates of a window store; return the store. Listeners get windowed keys."""
    put, fetch = store.put, store.fetch
    notes = _Notes(cache, store.keys, store.values)
    has, note, frozen, key_types, end_of = cache.has, cache.note, notes.frozen, store.keys.types, store.end_of

    def cached(key: Any, value: Any, window_start: Any = None) -> None:
        if cache.listener is None:
            put(key, value, window_start)
            return
        is_plain = type(key) in key_types
        which = (key if is_plain else notes.which(key), window_start)
        old = None if has(which) else fetch(key, window_start)
        put(key, value, window_start)
        # Also if the store has dropped it as expired: what is put there is an update, as it is without a cache.
        new = frozen(key, value)
        own_key = key if is_plain else notes.own(key)
        windowed = _new(Windowed, (own_key, window_start, end_of(window_start)))
        note(which, windowed, new, old, _size(key) + _size(new) + _SMALL)

    def sent(windowed: Any) -> Any:
        key, window_start, _ = windowed
        waiting = cache.unsent((notes.which(key), window_start))
        return fetch(key, window_start) if waiting is None else own_copy(waiting.old)

    cache.sent = sent
    _replace(store, cache, cached)
    return store


def cache_session_store(store: BucketSessionStore, cache: RecordCache) -> BucketSessionStore:
    """Let `cache` have the updates of a session store; return the store. Listeners get windowed keys."""
    put, fetch_session = store.put, store.fetch_session
    notes = _Notes(cache, store.keys, store.values)

    def cached(session: Any, value: Any) -> None:
        if cache.listener is None:
            put(session, value)
            return
        key, start, end = store.parts(session)
        which = (notes.which(key), start, end)
        old = None if cache.has(which) else fetch_session(key, start, end)
        put(session, value)
        # Also if the store has dropped it as expired: what is put there is an update, as it is without a cache.
        new = notes.frozen(key, value)
        cache.note(which, Windowed(notes.own(key), start, end), new, old, _size(key) + _size(new) + _SMALL)

    def sent(session: Any) -> Any:
        key, start, end = session
        waiting = cache.unsent((notes.which(key), start, end))
        return fetch_session(key, start, end) if waiting is None else own_copy(waiting.old)

    cache.sent = sent
    setattr(store, "remove", lambda session: cached(session, None))  # noqa: B010
    _replace(store, cache, cached)
    return store


def _replace(store: Any, cache: RecordCache, put: Callable[..., None]) -> None:
    discard = store.discard

    def discard_both() -> None:
        cache.discard()
        discard()

    store.put, store.discard, store.record_cache = put, discard_both, cache


def _size(part: Any) -> int:
    kind = type(part)
    if kind is str or kind is bytes:
        return len(part)
    if kind is int:
        return _SMALL
    if kind is ValueAndTimestamp:
        return _SMALL + _size(part[0])
    if kind is Encoded:
        return len(part.data)
    if isinstance(part, (str, bytes)):
        return len(part)
    return sum(map(_size, part)) if isinstance(part, tuple) else _SMALL
