"""UpdatingOperator: the base of processors that write a store of their own and send its updates, sources of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.context import ProcessorContext
from penstock.operator import Operator, Run, new
from penstock.record import Headers, Record
from penstock.store import StateStore, ValueAndTimestamp, ValueTimestampHeaders
from penstock.store.kinds.versioned import VersionedStoreSpec
from penstock.store.record_cache import Change, FlushListener

from ..graph.materialized import TableStoreSpec
from ..graph.step import ProcessorStep
from ..graph.writer import Writer

Stored = Callable[[Any, int, Headers], Any]
"""Returns what a store keeps for an aggregate: with its timestamp, or with timestamp and headers."""

NULL_KEY, NULL_VALUE, LATE = "null_key", "null_value", "late"
"""Why aggregations drop records."""


@dataclass(kw_only=True, eq=False)
class UpdatingOperator(Operator):
    """A processor that puts aggregates into its store, named `store`, and sends what changed as a Change.

    With `sends_old`, updates carry the value before. With `keeps_headers`, the store keeps the last record's headers.
    If the store has a record cache, updates leave when it is flushed; of several processors with one store, one that
    `flushes` sends the updates of all.
    """

    store: str
    sends_old: bool = False
    keeps_headers: bool = False
    flushes: bool = True

    def init(self, context: ProcessorContext) -> None:
        """Let the record cache, if the store has one, forward the updates."""
        super().init(context)
        if self.flushes and context.get_store(self.store).record_cache is not None:
            context.set_flush_listener(self.store, self._listener(context))

    def _listener(self, context: ProcessorContext) -> FlushListener:
        """Return the listener that gets the record cache's updates and forwards their values."""
        return flush_listener(self._emitter(context), sends_old=self.sends_old)

    def _emitter(self, context: ProcessorContext) -> Run:
        """Return the function that sends a record to the children of the table."""
        return context.send

    @property
    def _stored(self) -> Stored:
        return with_headers if self.keeps_headers else with_timestamp

    def _forward(self, context: ProcessorContext, store: StateStore) -> Run:
        """Return the function that sends an update at once, or does nothing if it leaves when the cache is flushed."""
        return self._emitter(context) if store.record_cache is None else _later


def updating_step(
    name: str,
    supplier: Callable[..., UpdatingOperator],
    options: Mapping[str, Any],
    declare: Callable[[Writer], TableStoreSpec],
    *,
    needs_key_serde: bool = False,
) -> ProcessorStep:
    """Return the step of an UpdatingOperator with the store that `declare` returns.

    One that `needs_key_serde` gets that of the store, as well.
    """

    def late(writer: Writer) -> dict[str, Any]:
        store = declare(writer)
        keeps_headers = not isinstance(store, VersionedStoreSpec) and store.headers
        found: dict[str, Any] = {"store": store.name, **({"keeps_headers": True} if keeps_headers else {})}
        if needs_key_serde:
            found["key_serde"] = store.key_serde or writer.settings.state_serde
        return found

    return ProcessorStep(name, supplier, options, stores=lambda writer: (declare(writer),), late=late)


def flush_listener(forward: Run, *, sends_old: bool) -> FlushListener:
    """Return the listener that gets a record cache's updates and forwards their values."""

    def flushed(record: Record) -> None:
        key, (after, before), timestamp, headers = record
        old = before[0] if sends_old and before is not None else None
        change = new(Change, (None if after is None else after[0], old))
        forward((key, change, timestamp, headers))

    return flushed


def with_timestamp(value: Any, timestamp: int, headers: Headers) -> Any:
    """Return the entry of a timestamped store. An aggregate of None is no entry."""
    return None if value is None else new(ValueAndTimestamp, (value, timestamp))


def with_headers(value: Any, timestamp: int, headers: Headers) -> Any:
    """Return the entry of a store with headers. An aggregate of None is no entry."""
    return None if value is None else new(ValueTimestampHeaders, (value, timestamp, headers))


def _later(record: object) -> None:
    """Do nothing: the flush listener forwards it."""
