"""WindowGetter: reads a table whose rows are windows of keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, SessionStore, ValueAndTimestamp, ValueTimestampHeaders

from ..reading import Get, ValueGetter


@dataclass(eq=False)
class WindowGetter(ValueGetter):
    """Reads a window or session store by windowed key. The timestamp of a session is its end."""

    store: str

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store,)

    def open(self, context: ProcessorContext, *, sent: bool = False) -> Get:
        store = context.get_store(self.store)
        cache = store.record_cache if sent else None
        if isinstance(store, SessionStore):
            find = store.fetch_session
            return _session((lambda windowed: find(*windowed)) if cache is None else cache.sent)
        fetch = store.fetch
        read: Get = (lambda windowed: fetch(windowed[0], windowed[1])) if cache is None else cache.sent
        return read


def _session(find: Callable[[Any], Any]) -> Get:
    def session(windowed: Any) -> ValueAndTimestamp | None:
        entry = find(windowed)
        if entry is None:
            return None
        value = entry[0] if isinstance(entry, ValueTimestampHeaders) else entry
        return ValueAndTimestamp(value, windowed[2])

    return session
