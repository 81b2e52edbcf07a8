"""Processors that write the store of a table and send its updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import (
    NOT_PUT,
    VALID_TO_UNDEFINED,
    Change,
    FlushListener,
    Headers,
    HeadersKeyValueStore,
    ProcessorContext,
    Record,
    StateStore,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    VersionedKeyValueStore,
)
from penstock.operator import Operator, Run, new


class NotLatest(Change):
    """An update older than its key's latest one in a versioned table (KIP-914): joins and groupings ignore it."""

    __slots__ = ()


Update = Callable[[Any, Any, Any, int, Headers], None]
"""(key, new value, old value, timestamp, headers): puts the value in the store and forwards the Change."""


@dataclass(kw_only=True, eq=False)
class TableOperator(Operator):
    """A processor that makes a table.

    `store` is the table's store; None: it has none. `sends_old`: updates carry the value before. If the store has a
    record cache, updates leave when it is flushed; of several processors with one store, one that `flushes` sends the
    updates of all.
    """

    store: str | None = None
    sends_old: bool = False
    flushes: bool = True

    def init(self, context: ProcessorContext) -> None:
        """Let the record cache, if the store has one, forward the updates."""
        super().init(context)
        if self.store is not None and self.flushes and context.get_store(self.store).record_cache is not None:
            context.set_flush_listener(self.store, self._listener(context))

    def _listener(self, context: ProcessorContext) -> FlushListener:
        """Return the listener that gets the record cache's updates and forwards their values."""
        forward, sends_old = self._emitter(context), self.sends_old

        def flushed(record: Record) -> None:
            key, (after, before), timestamp, headers = record
            old = before[0] if sends_old and before is not None else None
            change = new(Change, (None if after is None else after[0], old))
            forward((key, change, timestamp, headers))

        return flushed

    def _emitter(self, context: ProcessorContext) -> Run:
        """Return the function that sends a record to the children of the table."""
        return self._announcing(context, context.send)

    def _announcing(self, context: ProcessorContext, send: Run) -> Run:
        """Return the function that sends, beside which joins of the table with itself may read the row before."""
        forwarding = None if self.store is None else context.get_store(self.store).forwarding
        return send if forwarding is None else forwarding.announcing(send)

    def compile_get(self, context: ProcessorContext) -> Callable[[Any], Any]:
        """Return the `get` of the table's store, whose entries begin with value and timestamp."""
        assert self.store is not None
        get: Callable[[Any], Any] = context.get_store(self.store).get
        return get

    def compile_update(self, context: ProcessorContext) -> Update:
        """Return the function that puts an update in the store, if there is one, and forwards it."""
        if self.store is None:
            return _forwarding(context)
        return _putting(context.get_store(self.store), self._emitter(context))


def _forwarding(context: ProcessorContext) -> Update:
    forward = context.send

    def update(key: Any, value: Any, old: Any, timestamp: int, headers: Headers) -> None:
        forward((key, new(Change, (value, old)), timestamp, headers))

    return update


def _putting(store: Any, send: Run) -> Update:
    if isinstance(store, VersionedKeyValueStore):
        return _putting_versions(store, send)
    put, forward = store.put, send if store.record_cache is None else waiting
    if isinstance(store, HeadersKeyValueStore):

        def update(key: Any, value: Any, old: Any, timestamp: int, headers: Headers) -> None:
            put(key, None if value is None else new(ValueTimestampHeaders, (value, timestamp, headers)))
            forward((key, new(Change, (value, old)), timestamp, headers))
    else:

        def update(key: Any, value: Any, old: Any, timestamp: int, headers: Headers) -> None:
            put(key, None if value is None else new(ValueAndTimestamp, (value, timestamp)))
            forward((key, new(Change, (value, old)), timestamp, headers))

    return update


def _putting_versions(store: Any, forward: Run) -> Update:
    put = store.put

    def update(key: Any, value: Any, old: Any, timestamp: int, headers: Headers) -> None:
        valid_to = put(key, value, timestamp)
        if valid_to != NOT_PUT:  # The store counts what it drops.
            kind = Change if valid_to == VALID_TO_UNDEFINED else NotLatest
            forward((key, new(kind, (value, old)), timestamp, headers))

    return update


def waiting(record: object, to: str | None = None) -> None:
    """Forward nothing: the flush listener does."""


class TableUpdates(TableOperator):
    """Takes each record as the new value of its key. Records without a key are dropped.

    An update that is older than the one before replaces it all the same, unless the store keeps versions.
    """

    forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        drop = context.metrics.drop
        if self.store is None:
            forward = context.send

            def run_without_store(record: Record) -> None:
                key, value, timestamp, headers = record
                if key is None:
                    drop("null_key")
                    return
                forward((key, new(Change, (value, None)), timestamp, headers))

            return run_without_store
        update, get, sends_old = self.compile_update(context), self.compile_get(context), self.sends_old

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None:
                drop("null_key")
                return
            old = get(key) if sends_old else None
            update(key, value, None if old is None else old[0], timestamp, headers)

        return run


@dataclass(kw_only=True, eq=False)
class GlobalTableSource(Operator):
    """Puts the value of each record under its key, with its timestamp; the one that is read last counts.

    Records without a key are dropped. Kafka Streams: KTableSource.
    """

    store: str

    def bind(self, context: ProcessorContext) -> Run:
        store, drop = context.get_store(self.store), context.metrics.drop
        put, has_headers = store.put, isinstance(store, HeadersKeyValueStore)

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None:
                drop("null_key")
            elif value is None:
                put(key, None)
            elif has_headers:
                put(key, new(ValueTimestampHeaders, (value, timestamp, headers)))
            else:
                put(key, new(ValueAndTimestamp, (value, timestamp)))

        return run


Stored = Callable[[Any, int, Headers], Any]
"""Returns a store's entry for an aggregate: with its timestamp, or with timestamp and headers."""

NULL_KEY, NULL_VALUE, LATE = "null_key", "null_value", "late"
"""Why aggregations drop records."""


@dataclass(kw_only=True, eq=False)
class UpdatingOperator(TableOperator):
    """A processor that puts aggregates into its store, named `store`, and sends what changed as a Change.

    With `keeps_headers`, the store keeps the last record's headers. With `sends_values`, new values are sent in place
    of Changes.
    """

    store: str
    keeps_headers: bool = False
    sends_values: bool = False

    @property
    def _stored(self) -> Stored:
        return with_headers if self.keeps_headers else with_timestamp

    def _announcing(self, context: ProcessorContext, send: Run) -> Run:
        if not self.sends_values:
            return super()._announcing(context, send)

        def send_value(record: Any) -> None:
            send((record[0], record[1][0], record[2], record[3]))

        return super()._announcing(context, send_value)

    def _compile_send(self, context: ProcessorContext, store: StateStore) -> tuple[Run, bool]:
        """Return the function that sends an update at once, and whether it takes the new value in place of a Change.

        It does nothing if updates leave when the record cache is flushed.
        """
        if store.record_cache is not None:
            return waiting, True
        if self.sends_values and store.forwarding is None:
            return context.send, True
        return self._emitter(context), False


def with_timestamp(value: Any, timestamp: int, headers: Headers) -> Any:
    """Return the entry of a timestamped store. An aggregate of None is no entry."""
    return None if value is None else new(ValueAndTimestamp, (value, timestamp))


def with_headers(value: Any, timestamp: int, headers: Headers) -> Any:
    """Return the entry of a store with headers. An aggregate of None is no entry."""
    return None if value is None else new(ValueTimestampHeaders, (value, timestamp, headers))
