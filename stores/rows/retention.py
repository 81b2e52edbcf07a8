"""Retention: which times of a store have expired, how their rows are freed, and which records are dropped as late."""

from __future__ import annotations

import logging
from struct import Struct

from penstock import BytesStore, StoreContext
from penstock.store.envelope import PLAIN

from .buckets import Buckets

_log = logging.getLogger("penstock.stores")
REASON = "expired"
"""The reason under which records are counted as dropped."""
_NUMBERS = Struct(">qqq")
_META = b""
_SWEPT_ENTRIES = 4_096
"""Number of expired entries that a commit frees, beside as many as it writes."""


class Retention:
    """The times of a store: the newest one put, and `kept_after`, below which everything has expired.

    `kept_after` never goes back, so what has expired stays so when a later program has a longer retention. Both are in
    the store's own row, and thus in its changelog; it has an envelope, as all rows. `number` is that of the last
    duplicate put.
    """

    def __init__(self, below: BytesStore, buckets: Buckets, retention_ms: int, context: StoreContext) -> None:
        self._below = below
        self._buckets = buckets
        self._retention_ms = retention_ms
        self._late = LateDrops(below.name, context)
        self.is_known = self._has_changed = False
        self.newest = self.kept_after = -1
        self.number = self._freed_below = 0

    def load(self) -> None:
        """Read the numbers, if they are not known."""
        if self.is_known:
            return
        data = self._below.get(_META)
        self.newest, self.kept_after, self.number = (-1, -1, 0) if data is None else _NUMBERS.unpack_from(data, 1)
        self.is_known = True

    def drop(self, time_ms: int) -> None:
        """Count a put of a time that has expired already."""
        self._late.count(time_ms, self.kept_after)

    def note(self, time_ms: int) -> None:
        """Record a time after it was put: the put of a value that the serde refuses does not count."""
        if time_ms > self.newest:
            self.newest = time_ms
            self._has_changed = True
            self.kept_after = max(self.kept_after, time_ms - self._retention_ms)

    def take_number(self) -> int:
        """Return the number of a further duplicate."""
        self._has_changed = True
        self.number = (self.number + 1) & 0x7FFFFFFF
        return self.number

    def rows(self) -> int:
        """Return the number of rows below that are no entries."""
        return 0 if self._below.get(_META) is None else 1

    def flush(self, changes: int) -> None:
        """Write the numbers, and free what has expired; the commit has about so many `changes`.

        It frees somewhat more rows than it writes, so that expired entries do not pile up; the next record waits for
        that.
        """
        if self._has_changed:
            self._below.put(_META, PLAIN + _NUMBERS.pack(self.newest, self.kept_after, self.number))
            self._has_changed = False
        first_kept = self._buckets.first_kept(self.kept_after) if self.is_known else 0
        if first_kept > self._freed_below and not self._buckets.sweep(self.kept_after, _SWEPT_ENTRIES + changes):
            self._freed_below = first_kept

    def discard(self) -> None:
        """Drop the numbers: the commit failed."""
        self.is_known = self._has_changed = False
        self.newest = self.kept_after = -1
        self.number = self._freed_below = 0


class LateDrops:
    """Counts the records that one store drops because they have expired already."""

    def __init__(self, store: str, context: StoreContext) -> None:
        self._store = store
        self._context = context

    def count(self, time_ms: int, kept_after_ms: int) -> None:
        """Count a dropped entry at `time_ms`; the store keeps times later than `kept_after_ms`."""
        self._context.dropped(REASON)
        self._context.repeats.log(
            _log, logging.WARNING, (REASON, self._context.application_id, self._store),
            "task %s, store %r: dropped an entry at %d that had expired: the store keeps what is later than %d. A "
            "longer retention keeps more",
            self._context.task_id, self._store, time_ms, kept_after_ms,
        )  # fmt: skip
