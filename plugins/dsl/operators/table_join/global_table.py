"""StreamGlobalTableJoin: looks up each record of a stream in a global table, by any key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.context import ProcessorContext
from penstock.operator import Operator, Run
from penstock.record import Record


class StreamGlobalTableJoin(Operator):
    """Forwards each record with what `joiner` makes of its value and of the table's value for `select_key`.

    Both functions get the value, and `with_key` the record's key before it; without `select_key` it is the record's own
    key. With `keeps_unmatched`, records that find no value are forwarded, too. Kafka Streams: KStreamGlobalKTableJoin.
    """

    def __init__(
        self,
        store: str,
        joiner: Callable[..., Any],
        select_key: Callable[..., Any] | None,
        *,
        with_key: bool = False,
        keeps_unmatched: bool = False,
    ) -> None:
        self._store = store
        self._joiner = joiner
        self._select_key = select_key
        self._with_key = with_key
        self._keeps_unmatched = keeps_unmatched

    def bind(self, context: ProcessorContext) -> Run:
        forward, drop, get = context.send, context.metrics.drop, context.get_store(self._store).get
        joiner, select, with_key, keeps = self._joiner, self._select_key, self._with_key, self._keeps_unmatched

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if value is None:
                drop("null_value")
                return
            wanted = key if select is None else select(key, value) if with_key else select(value)
            if wanted is None and not keeps:
                drop("null_key")
                return
            found = None if wanted is None else get(wanted)
            if found is not None or keeps:
                other = None if found is None else found[0]
                result = joiner(key, value, other) if with_key else joiner(value, other)
                forward((key, result, timestamp, headers))

        return run
