"""WindowedTable: a table whose rows are windows of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.context import ProcessorContext
from penstock.store import ValueAndTimestamp
from penstock.store.kinds.headers import ValueTimestampHeaders
from penstock.store.kinds.session import SessionStore

from ...graph.step import ProcessorStep
from ..reading import Get, ValueGetter, WrittenTable


class WindowGetter(ValueGetter):
    """Reads a window or session store by windowed key. The timestamp of a session is its end."""

    def __init__(self, store: str) -> None:
        self._store = store

    @property
    def stores(self) -> tuple[str, ...]:
        return (self._store,)

    def open(self, context: ProcessorContext) -> Get:
        store = context.get_store(self._store)
        if not isinstance(store, SessionStore):
            fetch = store.fetch
            return lambda windowed: fetch(windowed[0], windowed[1])
        find = store.fetch_session
        return self._session(lambda windowed: find(*windowed))

    def open_sent(self, context: ProcessorContext) -> Get:
        """Return the function that reads the store without what waits in its record cache."""
        store = context.get_store(self._store)
        cache = store.record_cache
        if cache is None:
            return self.open(context)

        def sent(windowed: Any) -> Any:
            return cache.sent(windowed)

        return self._session(sent) if isinstance(store, SessionStore) else sent

    def _session(self, find: Callable[[Any], Any]) -> Get:
        def session(windowed: Any) -> ValueAndTimestamp | None:
            entry = find(windowed)
            if entry is None:
                return None
            value = entry[0] if isinstance(entry, ValueTimestampHeaders) else entry
            return ValueAndTimestamp(value, windowed[2])

        return session


class WindowedTable(WrittenTable):
    """A table over windows."""

    def __init__(self, step: ProcessorStep, store: str) -> None:
        super().__init__(WindowGetter(store), step)
