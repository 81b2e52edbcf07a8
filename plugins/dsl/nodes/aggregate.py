"""Count, Reduce and Aggregate: an aggregate of each key, in a key-value store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.context import ProcessorContext
from penstock.record import Record
from penstock.record_cache import Change
from penstock.store import ValueAndTimestamp
from penstock.store_kinds.versioned import NOT_PUT, VersionedKeyValueStore

from .operator import Run, new
from .updates import NULL_KEY, NULL_VALUE, UpdatingOperator

Next = Callable[[Any, Any, Any], tuple[Any, Any]]
"""Of a key, a value and the aggregate before (None: there is none): the one before as it is sent, and the new one."""


class KeyedOperator(UpdatingOperator):
    """An aggregation over a key-value store. Records without key or value are dropped and counted.

    An update has the highest timestamp of its records; after an aggregate of None, which deletes the entry, it begins
    anew. Kafka Streams: KStreamAggregate and KStreamReduce.
    """

    def bind(self, context: ProcessorContext) -> Run:
        """Return the function that gets each record."""
        store, step = context.get_store(self._store_name), self._next()
        stored, sends_old = self._stored, self._sends_old
        get, put, forward, drop = store.get, store.put, self._forward(context, store), context.metrics.drop
        if isinstance(store, VersionedKeyValueStore):
            return self._bind_versioned(context, step)

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop(NULL_KEY if key is None else NULL_VALUE)
                return
            entry = get(key)
            if entry is None:
                old, aggregate = step(key, value, None)
            else:
                old, aggregate = step(key, value, entry[0])
                if entry[1] > timestamp:
                    timestamp = entry[1]
            put(key, stored(aggregate, timestamp, headers))
            change = new(Change, (aggregate, old if sends_old else None))
            forward(new(Record, (key, change, timestamp, headers)))

        return run

    def _next(self) -> Next:
        raise NotImplementedError

    def _bind_versioned(self, context: ProcessorContext, step: Next) -> Run:
        """Return the function for a versioned store: what its history no longer takes is not forwarded."""
        store, forward, sends_old = context.get_store(self._store_name), context.forward, self._sends_old
        drop = context.metrics.drop

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop(NULL_KEY if key is None else NULL_VALUE)
                return
            entry = store.get(key)
            old, aggregate = step(key, value, None if entry is None else entry.value)
            if entry is not None:
                timestamp = max(timestamp, entry.timestamp)
            if store.put(key, aggregate, timestamp) != NOT_PUT:
                forward(Record(key, Change(aggregate, old if sends_old else None), timestamp, headers))

        return run


class Count(KeyedOperator):
    """Counts the records of each key."""

    def bind(self, context: ProcessorContext) -> Run:
        """Return the function that gets each record."""
        store = context.get_store(self._store_name)
        if self._keeps_headers or isinstance(store, VersionedKeyValueStore):
            return super().bind(context)
        get, put, forward, drop = store.get, store.put, self._forward(context, store), context.metrics.drop
        sends_old = self._sends_old

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop(NULL_KEY if key is None else NULL_VALUE)
                return
            entry = get(key)
            if entry is None:
                old = 0
            else:
                old, before = entry
                if before > timestamp:
                    timestamp = before
            count = old + 1
            put(key, new(ValueAndTimestamp, (count, timestamp)))
            forward(new(Record, (key, new(Change, (count, old if sends_old else None)), timestamp, headers)))

        return run

    def _next(self) -> Next:
        return lambda key, value, old: (old or 0, (old or 0) + 1)


class Reduce(KeyedOperator):
    """Combines the values of each key by `reducer`, a function of the aggregate and a value."""

    def __init__(self, reducer: Callable[[Any, Any], Any], store: str, **options: Any) -> None:
        super().__init__(store, **options)
        self._reducer = reducer

    def _next(self) -> Next:
        reducer = self._reducer
        return lambda key, value, old: (old, value if old is None else reducer(old, value))


class Aggregate(KeyedOperator):
    """Combines the values of each key by `aggregator`, beginning with what `initializer` makes.

    The aggregator is a function of the aggregate and the value, or with `with_key` of the key, the aggregate and the
    value. For the first record of a key, the value before is what the initializer made, as in Kafka Streams.
    """

    def __init__(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[..., Any],
        store: str,
        *,
        with_key: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(store, **options)
        self._initializer = initializer
        self._aggregator = aggregator
        self._with_key = with_key

    def _next(self) -> Next:
        initializer, aggregator = self._initializer, self._aggregator
        if self._with_key:

            def with_key(key: Any, value: Any, old: Any) -> tuple[Any, Any]:
                before = initializer() if old is None else old
                return before, aggregator(key, before, value)

            return with_key

        def without(key: Any, value: Any, old: Any) -> tuple[Any, Any]:
            before = initializer() if old is None else old
            return before, aggregator(before, value)

        return without
