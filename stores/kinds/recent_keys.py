"""RecentKeys: the keys of a window store that were fetched over a range of times, with their rows as objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from ..rows.buckets import Buckets
from ..rows.key_form import MISSING, KeyForm
from ..rows.value_form import Encoded, ValueForm
from . import plain
from .known_rows import LatestRows, drop_oldest
from .open_window import OpenWindow

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
        """Return the key under which rows are kept, and the rows if they are known at `time`."""
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
