"""GlobalTableSource: fills the store of a global table."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.context import ProcessorContext
from penstock.operator import Operator, Run, new
from penstock.record import Record
from penstock.store import ValueAndTimestamp
from penstock.store.kinds.headers import ValueTimestampHeaders
from penstock.store.kinds.key_value import HeadersKeyValueStore


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
