"""Aggregate: an aggregate of each key, in a key-value store."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import (
    NOT_PUT,
    VALID_TO_UNDEFINED,
    Change,
    ProcessorContext,
    Record,
    ValueAndTimestamp,
    VersionedKeyValueStore,
)
from penstock.operator import Run, new
from penstock.support.own_copy import IMMUTABLE, own_copy

from ..table_store import NULL_KEY, NULL_VALUE, NotLatest, UpdatingOperator
from .folds import Counting, Fold


@dataclass(kw_only=True, eq=False)
class Aggregate(UpdatingOperator):
    """An aggregation over a key-value store. Records without key or value are dropped and counted.

    The aggregator may change its argument: the old value that is sent is a copy. An update has the highest timestamp of
    its records; after an aggregate of None, which deletes the entry, it begins anew. The first update of a key has no
    old value. Kafka Streams: KStreamAggregate and KStreamReduce.
    """

    forwards_last = True

    fold: Fold

    def bind(self, context: ProcessorContext) -> Run:
        store = context.get_store(self.store)
        if isinstance(store, VersionedKeyValueStore):
            return self._bind_versioned(context)
        self.forwards_each = store.record_cache is None
        initial, take, counts = self.fold.initial, self.fold.compile_take(context.node), isinstance(self.fold, Counting)
        stored, keeps_headers, sends_old = self._stored, self.keeps_headers, self.sends_old and self.forwards_each
        get, put, drop = store.get, store.put, context.metrics.drop
        send, of_values = self._compile_send(context, store)

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop(NULL_KEY if key is None else NULL_VALUE)
                return
            entry = get(key)
            if entry is None:
                old, before = initial(), None
            else:
                old = entry[0]
                if entry[1] > timestamp:
                    timestamp = entry[1]
                before = (old if type(old) in IMMUTABLE else own_copy(old)) if sends_old else None
            aggregate = old + 1 if counts else take(key, value, old)
            if aggregate is None or keeps_headers:
                put(key, stored(aggregate, timestamp, headers))
            else:  # the common case, without a call
                put(key, new(ValueAndTimestamp, (aggregate, timestamp)))
            send((key, aggregate if of_values else new(Change, (aggregate, before)), timestamp, headers))

        return run

    def _bind_versioned(self, context: ProcessorContext) -> Run:
        """Return the function for a versioned store: what its history no longer takes is not forwarded."""
        store, forward, sends_old = context.get_store(self.store), self._emitter(context), self.sends_old
        initial, take, drop = self.fold.initial, self.fold.compile_take(context.node), context.metrics.drop

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop(NULL_KEY if key is None else NULL_VALUE)
                return
            entry = store.get(key)
            if entry is None:
                old, before = initial(), None
            else:
                old, timestamp = entry.value, max(timestamp, entry.timestamp)
                before = own_copy(old) if sends_old else None
            aggregate = take(key, value, old)
            valid_to = store.put(key, aggregate, timestamp)
            if valid_to != NOT_PUT:
                # It is not the latest version where a later one deleted the row.
                kind = Change if valid_to == VALID_TO_UNDEFINED else NotLatest
                forward((key, new(kind, (aggregate, before)), timestamp, headers))

        return run
