"""TableUpdates: turns the records of a topic or stream into a table's updates."""

from __future__ import annotations

from penstock.context import ProcessorContext
from penstock.operator import Run, new
from penstock.record import Record
from penstock.store.record_cache import Change

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
