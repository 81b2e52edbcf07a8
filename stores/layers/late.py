"""What is late for a store: dropped, counted, and logged once a minute."""

from __future__ import annotations

import logging

from penstock.store import StoreContext

_log = logging.getLogger("penstock.stores")

REASON = "expired"
"""Why the record is counted as dropped."""
_LOG_EVERY_MS = 60_000


class LateDrops:
    """Counts what one store drops because it has expired already."""

    def __init__(self, store: str, context: StoreContext) -> None:
        self._store = store
        self._context = context
        self._unlogged = 0
        self._logged_at_ms: int | None = None

    def count(self, time_ms: int, kept_after_ms: int) -> None:
        """Count one entry at `time_ms`, where the store keeps what is later than `kept_after_ms`."""
        self._context.dropped(REASON)
        self._unlogged += 1
        now = self._context.wall_clock()
        if self._logged_at_ms is None or now >= self._logged_at_ms + _LOG_EVERY_MS:
            _log.warning(
                "task %s, store %r: dropped %d entries that had expired, the last one at %d: the store keeps what is "
                "later than %d. A longer retention keeps more",
                self._context.task_id, self._store, self._unlogged, time_ms, kept_after_ms,
            )  # fmt: skip
            self._unlogged, self._logged_at_ms = 0, now
