"""Caches: the record caches of a task's stores, and how their updates are forwarded."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ProcessingError
from ..record import Record
from ..store import StateStore
from ..store.record_cache import FlushListener, SourceRecord
from .failures import RECORD_ERRORS, Failures
from .progress import Progress

_MOST_FLUSHES = 100


class Caches:
    """The record caches of one task, in the order in which its stores were declared."""

    def __init__(self, task_id: str, stores: Mapping[str, StateStore], progress: Progress, failures: Failures) -> None:
        self._task_id = task_id
        self._progress = progress
        self._failures = failures
        self._caches = [store.record_cache for store in stores.values() if store.record_cache is not None]
        progress.keeps_sources = failures.need_sources
        for cache in self._caches:
            cache.context, cache.emit = progress.record_context, self._forward

    def flush(self) -> None:
        """Forward the updates of all, until those that this makes are forwarded as well."""
        for _ in range(_MOST_FLUSHES):
            if not sum(cache.flush() for cache in self._caches):
                return
        names = ", ".join(repr(cache.store) for cache in self._caches)
        raise ProcessingError(
            f"task {self._task_id}: after {_MOST_FLUSHES} flushes, the record caches of {names} still have updates: a "
            "flush listener puts into its own store, or its children do; put into it in `process` only"
        )

    def _forward(self, node: str, listener: FlushListener, record: Record, source: SourceRecord | None) -> None:
        progress = self._progress
        before = progress.record, progress.input, progress.flushed
        progress.record, progress.input, progress.flushed = record, None, source
        try:
            listener(record)
        except RECORD_ERRORS as error:
            self._failures.processing(node, record, error)
        finally:
            progress.record, progress.input, progress.flushed = before
