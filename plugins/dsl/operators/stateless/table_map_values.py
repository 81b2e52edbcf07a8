"""TableMapValues: replaces the values of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.context import ProcessorContext
from penstock.operator import Run, new
from penstock.record import Record

from ..table_store import TableOperator


@dataclass(kw_only=True, eq=False)
class TableMapValues(TableOperator):
    """Forwards updates with what `function(key, value)` returns; a deletion stays one."""

    function: Callable[[Any, Any], Any]

    def bind(self, context: ProcessorContext) -> Run:
        function, sends_old = self.function, self.sends_old
        if self.store is not None:
            update, get = self.compile_update(context), self.compile_get(context)

            def run_with_store(record: Record) -> None:
                key, change, timestamp, headers = record
                value = None if change[0] is None else function(key, change[0])
                before = get(key) if sends_old else None
                update(key, value, None if before is None else before[0], timestamp, headers)

            return run_with_store
        forward = context.send

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            value = None if change[0] is None else function(key, change[0])
            old = function(key, change[1]) if sends_old and change[1] is not None else None
            forward((key, new(type(change), (value, old)), timestamp, headers))

        return run
