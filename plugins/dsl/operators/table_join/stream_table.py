"""StreamTableJoin: looks up each record of a stream in a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.context import ProcessorContext
from penstock.operator import Operator, Run
from penstock.record import Record

if TYPE_CHECKING:
    from ..reading import ValueGetter

Lookup = Callable[[Any, int], Any]


class StreamTableJoin(Operator):
    """Forwards each record with what `joiner` makes of its value and of the table's value for its key.

    A versioned table is read as of the record's time. `joiner` takes the left value and the right one, `with_key` the
    key before them. With `keeps_unmatched`, records that find no value are forwarded, too; the others are not. Kafka
    Streams: KStreamKTableJoin.
    """

    def __init__(
        self,
        table: ValueGetter,
        joiner: Callable[..., Any],
        *,
        with_key: bool = False,
        keeps_unmatched: bool = False,
    ) -> None:
        self._table = table
        self._joiner = joiner
        self._with_key = with_key
        self._keeps_unmatched = keeps_unmatched

    def bind(self, context: ProcessorContext) -> Run:
        if self._table.history_ms is not None or self._with_key:
            return self._bind_general(context)
        forward, drop, get = context.send, context.metrics.drop, self._table.open(context)
        joiner, keeps = self._joiner, self._keeps_unmatched

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if value is None or key is None:
                if value is None or not keeps:
                    drop("null_value" if value is None else "null_key")
                    return
                found = None
            else:
                found = get(key)
            if found is not None:
                forward((key, joiner(value, found[0]), timestamp, headers))
            elif keeps:
                forward((key, joiner(value, None), timestamp, headers))

        return run

    def _bind_general(self, context: ProcessorContext) -> Run:
        drop, join, keeps = context.metrics.drop, self.bind_join(context), self._keeps_unmatched

        def run(record: Record) -> None:
            if record[1] is None or (record[0] is None and not keeps):
                drop("null_value" if record[1] is None else "null_key")
            else:
                join(record)

        return run

    def bind_join(self, context: ProcessorContext) -> Run:
        """Return the function that joins a record which has a value."""
        forward, joiner, keeps, with_key = context.send, self._joiner, self._keeps_unmatched, self._with_key
        lookup = lookup_of(self._table, context)

        def join(record: Record) -> None:
            key, value, timestamp, headers = record
            found = None if key is None else lookup(key, timestamp)
            if found is not None or keeps:
                other = None if found is None else found[0]
                result = joiner(key, value, other) if with_key else joiner(value, other)
                forward((key, result, timestamp, headers))

        return join


def lookup_of(table: ValueGetter, context: ProcessorContext) -> Lookup:
    """Return the function that reads a table by key and, if it has versions, as of a time."""
    if table.history_ms is not None:
        return table.open_as_of(context)
    get = table.open(context)
    return lambda key, time: get(key)
