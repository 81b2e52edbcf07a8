"""TableJoin and TableMerge: join two tables by key, and put both sides' results together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run, new

from ..table_store import NotLatest, TableOperator

if TYPE_CHECKING:
    from ..reading import ValueGetter


@dataclass(kw_only=True, eq=False)
class TableJoin(Operator):
    """Joins updates of one table with the other table's rows: `joiner(key, value of this side, value of the other)`.

    `needs_this`, `needs_other`: whether a result needs the row of this table, or of the other one. The result has the
    timestamp of the later row. `ignores_older`: this table keeps versions, and only its latest ones count (KIP-914).
    """

    joiner: Callable[[Any, Any, Any], Any]
    other: ValueGetter
    needs_this: bool
    needs_other: bool
    ignores_older: bool = False
    sends_old: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        forward, drop, joiner = context.send, context.metrics.drop, self.joiner
        get = self.other.open(context, sent=True)
        needs_this, needs_other, sends_old = self.needs_this, self.needs_other, self.sends_old
        ignores_older = self.ignores_older

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            if key is None:
                drop("null_key")
                return
            if ignores_older and type(change) is NotLatest:
                drop("not_latest")
                return
            value, old = change[0], change[1]
            found = get(key)
            if found is None:
                if needs_other or (value is None and old is None):
                    return
                other = None
            else:
                other = found[0]
                if found[1] > timestamp:
                    timestamp = found[1]
            # Without its own row there is a result only if the other row is enough for one.
            alone = other is not None and not needs_this
            joined = joiner(key, value, other) if value is not None or alone else None
            joined_old = joiner(key, old, other) if sends_old and (old is not None or alone) else None
            forward((key, new(type(change), (joined, joined_old)), timestamp, headers))

        return run


class TableMerge(TableOperator):
    """Forwards the results of both sides of a join, from its store if it has one."""

    def bind(self, context: ProcessorContext) -> Run:
        forward, sends_old = context.send, self.sends_old
        if self.store is not None:
            update = self.compile_update(context)

            def run_with_store(record: Record) -> None:
                key, change, timestamp, headers = record
                update(key, change[0], change[1] if sends_old else None, timestamp, headers)

            return run_with_store
        if sends_old:
            return forward

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            forward((key, new(type(change), (change[0], None)), timestamp, headers))

        return run
