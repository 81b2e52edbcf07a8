"""What is late for a store: dropped, counted, and logged once a minute."""

from __future__ import annotations

import logging

from penstock.store import StoreContext

_log = logging.getLogger("penstock.stores")

REASON = "expired"
"""Why the record is counted as dropped."""


class LateDrops:
    """Counts what one store drops because it has expired already."""

    def __init__(self, store: str, context: StoreContext) -> None:
        self._store = store
        self._context = context

    def count(self, time_ms: int, kept_after_ms: int) -> None:
        """Count one entry at `time_ms`, where the store keeps what is later than `kept_after_ms`."""
        self._context.dropped(REASON)
        self._context.repeats.log(
            _log, logging.WARNING, (REASON, self._context.application_id, self._store),
            "task %s, store %r: dropped an entry at %d that had expired: the store keeps what is later than %d. A "
            "longer retention keeps more",
            self._context.task_id, self._store, time_ms, kept_after_ms,
        )  # fmt: skip
