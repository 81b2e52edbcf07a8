"""TableUpdates and GlobalTableSource: turn records into the rows of a table, and of a global table."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import Change, HeadersKeyValueStore, ProcessorContext, Record, ValueAndTimestamp, ValueTimestampHeaders
from penstock.operator import Operator, Run, new

from .table_store import TableOperator


class TableUpdates(TableOperator):
    """Takes each record as the new value of its key. Records without a key are dropped.

    An update that is older than the one before replaces it all the same, unless the store keeps versions.
    """

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
