"""TableFilter, TableMapValues and ToStream: look at one update of a table at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run, new

from ..table_store import TableOperator

Keep = Callable[[Any, Any], Any]
"""(key, value, which is not None): whether a row stays."""


@dataclass(kw_only=True, eq=False)
class TableFilter(TableOperator):
    """Forwards updates of rows that `keep` accepts. A row that it no longer accepts is deleted.

    Where the value before is known, nothing is forwarded for a row that was not there, and is not; but of a table with
    versions a deletion may count at its own time, and of a table whose rows expire it may have been there
    (`forwards_all`).
    """

    keep: Keep
    forwards_all: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        keep, sends_old = self.keep, self.sends_old
        skips = sends_old and not self.forwards_all
        if self.store is not None:
            update, get = self.compile_update(context), self.compile_get(context)

            def run_with_store(record: Record) -> None:
                key, change, timestamp, headers = record
                value = change[0] if change[0] is not None and keep(key, change[0]) else None
                before = get(key) if sends_old else None
                if before is None and value is None and skips:
                    return
                update(key, value, None if before is None else before[0], timestamp, headers)

            return run_with_store
        forward = context.send

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            value, old = change[0], change[1] if sends_old else None
            if value is not None and not keep(key, value):
                value = None
            if old is not None and not keep(key, old):
                old = None
            if value is None and old is None and skips:
                return
            forward((key, new(type(change), (value, old)), timestamp, headers))

        return run


class MappingOperator(TableOperator):
    """A processor that makes each value of a table by a function of key and value."""

    def compile_map(self, context: ProcessorContext, function: Callable[[Any, Any], Any], *, of_none: bool) -> Run:
        """Return the function that gets each update. `of_none`: `function` is also called for deletions."""
        sends_old, skips_none = self.sends_old, not of_none
        if self.store is not None:
            update, get = self.compile_update(context), self.compile_get(context)

            def run_with_store(record: Record) -> None:
                key, change, timestamp, headers = record
                value = None if change[0] is None and skips_none else function(key, change[0])
                before = get(key) if sends_old else None
                update(key, value, None if before is None else before[0], timestamp, headers)

            return run_with_store
        forward = context.send

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            value = None if change[0] is None and skips_none else function(key, change[0])
            old = None if not sends_old or (change[1] is None and skips_none) else function(key, change[1])
            forward((key, new(type(change), (value, old)), timestamp, headers))

        return run


@dataclass(kw_only=True, eq=False)
class TableMapValues(MappingOperator):
    """Forwards updates with what `function(key, value)` returns; a deletion stays one."""

    function: Callable[[Any, Any], Any]

    def bind(self, context: ProcessorContext) -> Run:
        return self.compile_map(context, self.function, of_none=False)


class ToStream(Operator):
    """Forwards the new value of each Change."""

    forwards_each = True

    def bind(self, context: ProcessorContext) -> Run:
        forward = context.send

        def run(record: Record) -> None:
            forward((record[0], record[1][0], record[2], record[3]))

        return run
