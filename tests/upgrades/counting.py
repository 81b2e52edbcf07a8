"""Counts in a store, whatever its kind: one number for each key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock import ListStore, SessionStore, ValueAndTimestamp, VersionedKeyValueStore, Windowed, WindowStore
from penstock.store import ValueTimestampHeaders

KEYS = [f"k{number}" for number in range(10)]


def add_one(store: Any, spec: Any, key: str, now: int) -> int:
    """Add 1 to the count of a key, and return it. Windows and sessions are at time 0."""
    if isinstance(store, ListStore):
        store.add(key, 1)
        return len(store.get(key))
    if isinstance(store, WindowStore):
        before = store.fetch(key, 0)
    elif isinstance(store, SessionStore):
        before = store.fetch_session(key, 0, 0)
    else:
        before = store.get(key)
    counted = int(_number(before) or 0) + 1
    value: Any = counted
    if getattr(spec, "headers", False):
        value = ValueTimestampHeaders(counted, now, (("header", b"x"),))
    elif getattr(spec, "timestamped", False):
        value = ValueAndTimestamp(counted, now)
    if isinstance(store, WindowStore):
        store.put(key, value, 0)
    elif isinstance(store, SessionStore):
        store.put(Windowed(key, 0, 0), value)
    elif isinstance(store, VersionedKeyValueStore):
        store.put(key, value, now)
    else:
        store.put(key, value)
    return counted


def counts(store: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a store with their counts; a list store has a key several times, with 1."""
    if isinstance(store, VersionedKeyValueStore):
        yield from ((key, _number(found)) for key in KEYS if (found := store.get(key)) is not None)
        return
    with store.fetch_range(None, None) if isinstance(store, SessionStore) else store.all() as rows:
        yield from ((key.key if isinstance(key, Windowed) else key, _number(value)) for key, value in rows)


def _number(value: Any) -> Any:
    return getattr(value, "value", value)
