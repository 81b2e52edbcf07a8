"""TableAggregate: keeps an aggregate for each group of a table's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Run

from ..table_store import TableOperator
from .aggregator import Aggregator


@dataclass(kw_only=True, eq=False)
class TableAggregate(TableOperator):
    """Takes the old value out of the group's aggregate with `subtractor`, and puts the new one in with `adder`.

    The result has the latest timestamp of what went into it. Without an `initializer`, a group's first value is its
    first aggregate, and the aggregate before does not count for its timestamp.
    """

    adder: Aggregator
    subtractor: Aggregator
    initializer: Callable[[], Any] | None = None

    def bind(self, context: ProcessorContext) -> Run:
        update, get, sends_old = self.compile_update(context), self.compile_get(context), self.sends_old
        add, subtract = self.adder.compile(context.node), self.subtractor.compile(context.node)
        initializer = self.initializer

        def run(record: Record) -> None:
            key, (value, old), timestamp, headers = record
            found = get(key)
            before = aggregate = None if found is None else found[0]
            touched = False
            if old is not None and found is not None:
                aggregate, touched = subtract(key, old, aggregate), True
            if value is not None:
                if aggregate is not None:
                    aggregate, touched = add(key, value, aggregate), True
                elif initializer is None:
                    aggregate = value
                else:
                    aggregate, touched = add(key, value, initializer()), True
            if touched and found is not None and found[1] > timestamp:
                timestamp = found[1]
            update(key, aggregate, before if sends_old else None, timestamp, headers)

        return run
